"""Compile functions so that equal ones share one compiled program.

A function is traced at each call, which takes milliseconds, because the values that it closes over
may have changed. What equals an earlier program is not compiled again: `jit_cached` is for
functions of programs (kernels), `SharedJit` for functions of arrays (steps, engines, solvers).
"""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jaxtyping import Array, PyTree

from iterlin.linearise.devices import to_array
from iterlin.linearise.digests import device_ids, program_key
from iterlin.linearise.programs import Program, opaque_parts
from iterlin.linearise.validation import is_traced

CACHE_SIZE = 64  # the number of compiled functions kept; the least recently used goes first

_compiled: dict[tuple, Callable] = {}
_lock = Lock()


def _shared(key: tuple, function: Callable, store: dict[tuple, Callable]) -> Callable:
    """Return the compiled function that is kept under the key, or keep this one."""
    with _lock:
        found = store[key] = store.pop(key, function)  # the latest comes last
        while len(store) > CACHE_SIZE:
            del store[next(iter(store))]
    return found


def jit_cached(function: Callable, *programs: Program, **options) -> Callable:
    """Jit a function of programs and arguments, compiled once for equal programs.

    Returns ``jax.jit(partial(function, *programs), **options)``. Programs are equal if they differ
    in their constants alone. The constants are arguments of the compiled function, so the cache
    keeps neither them nor the traced functions alive. Programs with opaque parts (`Program.opaque`)
    cannot be compared and are compiled at each call. The function must be the same object in each
    call.
    """
    bare = [program._replace(constants={}) for program in programs]

    def with_constants(constants, *arguments, **settings):
        given = zip(bare, constants, strict=True)
        return function(*(p._replace(constants=c) for p, c in given), *arguments, **settings)

    found: Callable = jax.jit(with_constants, **options)
    if not any(program.opaque for program in programs):
        # Operations traced inside `shard_map` carry its mesh, which their text does not show.
        mesh = jax.sharding.get_abstract_mesh()
        ids = device_ids(o.equation for program in programs for o in program.operations)
        key = (function, repr(options), mesh, ids, *(program.text for program in programs))
        found = _shared(key, found, _compiled)
    return partial(found, [program.constants for program in programs])


def as_argument(number: Any, dtype: Any = None) -> Array:
    """Return a number as an array, which a `SharedJit` that uses it takes as an argument.

    So functions that differ in the number share one program. JAX would write a number that is
    converted while it traces into the program.
    """
    if is_traced(number):
        return number
    with jax.ensure_compile_time_eval():
        return to_array(number, dtype)


class SharedJit:
    """A jitted function that reuses the compiled program of an equal function.

    The arrays that the function closes over are arguments of the program. So functions that differ
    in these arrays alone share one, and the programs that are kept hold neither the arrays nor the
    function. The function is traced once for arguments of each shape. Functions with opaque parts
    (`Program.opaque`) are not compared with others.

    Args:
        function: A function of pytrees of arrays that returns a pytree of arrays.
        donate: Whether the program takes over the buffers of the first argument, of which the
            function must not close over any.
        own: Where a program with opaque parts is kept, for functions of which the caller knows that
            equal texts with equal arrays compute the same; None keeps it nowhere.
    """

    def __init__(
        self,
        function: Callable,
        *,
        donate: bool = False,
        own: dict[tuple, Callable] | None = None,
    ):
        self._function, self._donate, self._own = function, donate, own
        self._known: dict[tuple, Callable | None] = {}

    def trace(self, *arguments: PyTree) -> ClosedJaxpr:
        """Return the jaxpr of the function, with the arrays that it closes over."""
        return jax.make_jaxpr(lambda *given: self._function(*given))(*arguments)

    def __call__(self, *arguments: PyTree) -> Any:
        """Return the function of the arguments. Under a JAX trace it is called as it is."""
        leaves = jax.tree.leaves(arguments)
        found = None if any(map(is_traced, leaves)) else self.prepare(*arguments)
        return self._function(*arguments) if found is None else found(leaves)

    def prepare(self, *arguments: PyTree) -> Callable | None:
        """Trace the function for arguments of these shapes, which tells its errors without compute.

        Returns what gives its result from the leaves of arguments; None if it closes over tracers.
        """
        leaves, structure = jax.tree.flatten(arguments)
        kind = structure, *map(jax.typeof, leaves)
        if kind not in self._known:
            self._known[kind] = self._compiled_or_none(arguments)
        return self._known[kind]

    def _compiled_or_none(self, arguments: tuple) -> Callable | None:
        """Return what `prepare` returns."""
        anew = jax.make_jaxpr(lambda *given: self._function(*given), return_shape=True)
        closed, returned = anew(*arguments)
        if any(map(is_traced, closed.consts)):
            return None
        jaxpr, structure = _without_constants(closed), jax.tree.structure(returned)
        constants = _placed_with(jax.tree.leaves(arguments), closed.consts)
        count = len(jax.tree.leaves(arguments[0])) if self._donate else 0

        def with_constants(donated, constants, leaves):
            return jaxpr_as_fun(ClosedJaxpr(jaxpr, constants))(*donated, *leaves)

        program: Any = jax.jit(with_constants, donate_argnums=0)
        opaque = any(True for equation in jaxpr.eqns for _ in opaque_parts(equation))
        store = self._own if opaque else _compiled
        key = None if store is None else program_key(jaxpr)
        if store is not None and key is not None:
            types = map(jax.typeof, constants)
            mesh = jax.sharding.get_abstract_mesh()
            program = _shared((key, mesh, count, *types), program, store)

        def call(leaves):
            found = program(leaves[:count], constants, leaves[count:])
            return jax.tree.unflatten(structure, found)

        return call


def _placed_with(arguments: list, constants: list) -> list[Array]:
    """Return the constants as arrays that JAX may place on all devices of the arguments.

    As a part of the program, a constant that is bound to one device could be used anywhere. As an
    argument beside data on several devices it is copied.
    """
    arrays = [to_array(constant) for constant in constants]
    given = [leaf for leaf in arguments if isinstance(leaf, jax.Array)]
    if all(len(array.devices()) == 1 for array in [*given, *arrays]):
        return arrays

    def is_bound(array):
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.extended)
        return array.committed and len(array.devices()) == 1 and not is_key

    return [to_array(np.asarray(a)) if is_bound(a) else a for a in arrays]


def _without_constants(closed: Any) -> Any:
    """Return the open jaxpr of a closed one. From JAX 0.11 on the two are of one class."""
    opened = closed.jaxpr
    return ClosedJaxpr(opened, []) if isinstance(closed, Jaxpr) else opened
