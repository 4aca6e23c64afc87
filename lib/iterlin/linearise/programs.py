"""Trace a function to a flat list of primitive operations, to inspect and evaluate with changes.

Calls that only group operations (jit, checkpoint) are inlined. Calls with a derivative rule or
control flow (custom_jvp, scan, while, cond) stay one operation each.

A function is traced at each call, which takes milliseconds, because the values that it closes over
may have changed. What equals an earlier program is not compiled again: `jit_cached` is for
functions of programs (kernels), `SharedJit` for functions of arrays (steps, engines, solvers).
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jaxtyping import Array, PyTree

from iterlin.linearise.digests import device_ids, program_key
from iterlin.linearise.validation import is_traced

INLINED = frozenset({"jit", "call", "closed_call", "checkpoint", "remat2"})
# Files of JAX (relu, logsumexp, ...) and of this library (pooling) whose derivative rules close
# over nothing that the text of the operation does not show.
KNOWN_RULES = re.compile("jax/_src/(nn|numpy|scipy|lax/other)|iterlin/networks/convolution")
CACHE_SIZE = 64  # the number of compiled functions kept; the least recently used goes first


class Operation(NamedTuple):
    """One primitive operation of a program.

    Attributes:
        equation: The equation of the jaxpr.
        inputs: The numbers of the values that it takes.
        outputs: The numbers of the values that it computes.
    """

    equation: JaxprEqn
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the primitive, such as "dot_general"."""
        return self.equation.primitive.name

    @property
    def settings(self) -> dict[str, Any]:
        """The parameters of the primitive, such as its dimension numbers."""
        return self.equation.params


class Program(NamedTuple):
    """A function that returns one array, as a list of operations on numbered values.

    Attributes:
        operations: The operations in order of execution.
        arguments: The numbers of the arguments' leaves, in the order of the arguments.
        result: The number of the value that the function returns.
        constants: The arrays that the function closes over, by number.
        literals: The scalars written in the function, by number.
        types: Shape and dtype of every value.
        opaque: Parts of operations that cannot be compared by text: arrays, derivative rules and
            callbacks.
        text: The jaxpr as JAX prints it, which shows everything but `constants` and `opaque`.
    """

    operations: tuple[Operation, ...]
    arguments: tuple[int, ...]
    result: int
    constants: dict[int, Any]
    literals: dict[int, Any]
    types: tuple[Any, ...]
    opaque: tuple[Any, ...]
    text: str

    def users(self) -> dict[int, list[tuple[Operation | None, int]]]:
        """Return the operations that take each value, by number, with the place among their inputs.

        The result has one more pair, (None, 0).
        """
        found: dict[int, list] = {number: [] for number in range(len(self.types))}
        for operation in self.operations:
            for position, number in enumerate(operation.inputs):
                found[number].append((operation, position))
        found[self.result].append((None, 0))
        return found


def trace_program(function: Callable[..., Array], *arguments: PyTree) -> Program:
    """Trace a function that returns one array to a program.

    Operations that the result does not depend on are left out. Arguments are pytrees of arrays,
    tracers or `jax.ShapeDtypeStruct`.
    """
    # JAX caches the jaxpr of a function. A new lambda forces it to trace the function again.
    anew = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)
    closed, returned = anew(*arguments)
    if not isinstance(returned, jax.ShapeDtypeStruct):
        raise ValueError(f"f must return one array, got {returned}")
    types: list[Any] = []
    constants: dict[int, Any] = {}
    literals: dict[int, Any] = {}
    operations: list[Operation] = []

    def number(aval) -> int:
        types.append(aval)
        return len(types) - 1

    def constant(value, aval) -> int:
        constants[index := number(aval)] = value
        return index

    def literal(value, aval) -> int:
        literals[index := number(aval)] = value
        return index

    def walk(jaxpr, consts, inputs) -> list[int]:
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

        def look_up(atom) -> int:
            return literal(atom.val, atom.aval) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            given = tuple(look_up(atom) for atom in equation.invars)
            if equation.primitive.name in INLINED:
                results = walk(*_called_jaxpr(equation, constant), given)
            else:
                results = [number(var.aval) for var in equation.outvars]
                operations.append(Operation(equation, given, tuple(results)))
            known.update(zip(equation.outvars, results, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    jaxpr = closed.jaxpr
    consts = [constant(c, v.aval) for c, v in zip(closed.consts, jaxpr.constvars, strict=True)]
    inputs = [number(var.aval) for var in jaxpr.invars]
    (result,) = walk(jaxpr, consts, inputs)
    operations = _remove_unused(operations, result)
    opaque = tuple(part for operation in operations for part in _opaque_parts(operation.equation))
    return Program(
        tuple(operations),
        tuple(inputs),
        result,
        constants,
        literals,
        tuple(types),
        opaque,
        str(jaxpr),
    )


def _opaque_parts(equation: JaxprEqn) -> Iterator[Any]:
    """Yield arrays and functions in the settings of an operation, except for `KNOWN_RULES`."""
    settings = equation.params
    if equation.primitive.name.startswith("custom_"):
        inside = settings.get("call_jaxpr")
        if not KNOWN_RULES.search(str(inside and inside.jaxpr.debug_info)):
            yield equation
        settings = {"call_jaxpr": inside}
    for leaf in jax.tree.leaves(settings):
        if isinstance(leaf, ClosedJaxpr):
            yield from leaf.consts
            leaf = leaf.jaxpr
        if isinstance(leaf, Jaxpr):
            for inner in leaf.eqns:
                yield from _opaque_parts(inner)
        elif isinstance(leaf, np.ndarray | jax.Array) or _is_opaque_function(leaf):
            yield leaf


def _is_opaque_function(part: Any) -> bool:
    """Return whether a setting is a function that its name does not tell.

    Functions of JAX that close over nothing, such as those of its PRNGs, are told by their names.
    """
    if isinstance(part, FunctionType) and part.__module__.startswith("jax."):
        return part.__closure__ is not None
    return callable(part) and not isinstance(part, type | jax.sharding.Mesh)


def _remove_unused(operations: list[Operation], result: int) -> list[Operation]:
    """Return the operations that the result depends on or that have side effects."""
    needed, found = {result}, []
    for operation in reversed(operations):
        if operation.equation.effects or not needed.isdisjoint(operation.outputs):
            needed.update(operation.inputs)
            found.append(operation)
    return found[::-1]


def _called_jaxpr(equation, constant) -> tuple[Any, list[int]]:
    """Return the jaxpr inside a call and the numbers of its constants."""
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if not hasattr(inner, "consts"):
        return inner, []
    pairs = zip(inner.consts, inner.jaxpr.constvars, strict=True)
    return inner.jaxpr, [constant(value, var.aval) for value, var in pairs]


def eval_program(
    program: Program, arguments: list[Array], shifts: dict[int, Array]
) -> tuple[Array, dict[int, Any]]:
    """Evaluate a program on the leaves of its arguments; return the result, and values by number.

    shifts: arrays to add to intermediate values, by number. The derivative with respect to a shift
    is the cotangent of the value.
    """
    given = dict(zip(program.arguments, arguments, strict=True))
    values = {**program.literals, **program.constants, **given}
    for operation in program.operations:
        primitive = operation.equation.primitive
        settings = primitive.get_bind_params(operation.settings)
        found = primitive.bind(*(values[i] for i in operation.inputs), **settings)
        found = found if primitive.multiple_results else [found]
        for index, value in zip(operation.outputs, found, strict=True):
            values[index] = value + shifts[index] if index in shifts else value
    return values[program.result], values


_compiled: dict[tuple, Callable] = {}


def _shared(key: tuple, function: Callable, store: dict[tuple, Callable]) -> Callable:
    """Return the compiled function that is kept under the key, or keep this one."""
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
        key = (function, mesh, ids, *(program.text for program in programs))
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
        return jnp.asarray(number, dtype)


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
        opaque = any(True for equation in jaxpr.eqns for _ in _opaque_parts(equation))
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
    arrays = [jnp.asarray(constant) for constant in constants]
    given = [leaf for leaf in arguments if isinstance(leaf, jax.Array)]
    if all(len(array.devices()) == 1 for array in [*given, *arrays]):
        return arrays

    def is_bound(array):
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.extended)
        return array.committed and len(array.devices()) == 1 and not is_key

    return [jnp.asarray(np.asarray(a)) if is_bound(a) else a for a in arrays]


def _without_constants(closed: Any) -> Any:
    """Return the open jaxpr of a closed one. From JAX 0.11 on the two are of one class."""
    opened = closed.jaxpr
    return ClosedJaxpr(opened, []) if isinstance(closed, Jaxpr) else opened
