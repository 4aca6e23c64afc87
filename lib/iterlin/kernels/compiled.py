"""Networks traced anew at each call, and compiled only where their program is a new one.

A trace takes milliseconds and sees what a network closes over as it is now. Compiled programs take
these arrays as arguments, so that they hold none of them, and serve all programs of one structure.
They do hold derivative rules (custom_jvp, custom_vjp) and callbacks: a function or object that one
of its own closes over stays alive while its programs are among the `MOST` last used.
"""

import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, PyTree

from iterlin import parameters
from iterlin.kernels.factors import Factors, factors
from iterlin.kernels.flat_program import Program, flatten, run
from iterlin.kernels.structure import structure
from iterlin.linearization import Network
from iterlin.validation import is_traced

MOST = 64  # programs kept, the last used


class Given(NamedTuple):
    """What a program takes besides the examples: leaves that are trained, that are not, and arrays
    that the network closes over."""

    moving: list[Array]
    fixed: list[Array]
    constants: dict[int, Any]


class Compiled:
    """Functions of (what is given, examples, ...), of one program without its constants."""

    def __init__(self, program: Program):
        def filled(given):
            return program._replace(constants=given.constants)

        def outputs(given: Given, x: PyTree) -> Array:
            leaves = [*given.moving, *given.fixed, *jax.tree.leaves(x)]
            return run(filled(given), leaves, {})[0]

        def factors_of(given: Given, x: PyTree, outputs: Array, **settings) -> Factors:
            return factors(filled(given), given.moving, given.fixed, x, outputs, **settings)

        program = program._replace(constants={})  # whose arrays would stay alive
        self.outputs = jax.jit(outputs)
        self.factors = jax.jit(factors_of, static_argnames=("form", "count", "total"))


class Traced(NamedTuple):
    """A network at some parameters, traced for batches like one; result: its outputs' type."""

    compiled: Compiled
    given: Given
    result: Any


def trace(f: Network, moving: PyTree, fixed: PyTree, x: PyTree) -> Traced:
    """f for a batch like x, with the parameters that `parameters.split` has parted."""

    def function(moving, fixed, x):
        return f(parameters.join(moving, fixed), x)

    program = flatten(function, moving, fixed, x)
    given = Given(jax.tree.leaves(moving), jax.tree.leaves(fixed), program.constants)
    return Traced(_compiled(f, program, given), given, program.types[program.result])


class _Identity(weakref.ref):
    """A reference that is equal to another where both are to one living object."""

    __slots__ = ("number",)

    def __init__(self, referent, forget=None):
        super().__init__(referent, forget)
        self.number = id(referent)

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return self is other or (self() is not None and self() is other())


_programs: OrderedDict[tuple, Compiled] = OrderedDict()


def _forget(identity: _Identity, programs=_programs) -> None:
    for key in list(programs):
        if key[0] is identity:
            programs.pop(key, None)


def _compiled(f: Network, program: Program, given: Given) -> Compiled:
    """From the cache, if no other network with a program of that structure can be meant."""
    if any(is_traced(leaf) for leaf in jax.tree.leaves(given)):
        return Compiled(program)
    structural, complete = structure(program)
    identity, function = None, None
    if not complete:
        # A method is a new object each time it is looked up.
        function = getattr(f, "__func__", None)
        try:
            identity = _Identity(f if function is None else f.__self__, _forget)
        except TypeError:
            return Compiled(program)
    key = (identity, function, structural)
    found = _programs[key] = _programs.pop(key, None) or Compiled(program)
    while len(_programs) > MOST:
        _programs.popitem(last=False)
    return found
