"""A function as a flat list of primitive operations, to be read and run again with changes.

Calls that only group operations (jit, checkpoint) are opened; those with a derivative rule or a
control flow of their own (custom_jvp, scan, while, cond) stay one operation each.

Functions are traced at each call, in milliseconds, so that what they close over is what it is then.
`jit_cached` compiles what is made of them only if no equal program was compiled before.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, PyTree

OPENED = frozenset({"jit", "call", "closed_call", "checkpoint", "remat2"})
# JAX defines the derivatives of relu, logsumexp and the like here, the library that of its pooling.
# What they close over is told by the operation that they belong to.
KNOWN_RULES = re.compile("jax/_src/(nn|numpy|scipy|lax/other)|iterlin/networks/convolution")
MOST = 64  # compiled functions that are kept, the last used


class Operation(NamedTuple):
    """One primitive operation; `inputs` and `outputs` are the numbers of its values."""

    equation: JaxprEqn
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.equation.primitive.name

    @property
    def settings(self) -> dict[str, Any]:
        return self.equation.params


class Program(NamedTuple):
    """Operations in order; values are numbered. The function returns one array, `result`.

    arguments: numbers of the leaves of the first argument, then of those of the others.
    constants: {number: array} of the arrays that the function closes over.
    literals: {number: scalar} of the numbers written in it.
    types: shape and dtype of every value.
    held: arrays inside the operations, and what has functions: derivative rules and callbacks.
    text: the function as JAX prints it, which says everything but `constants` and `held`.
    """

    operations: tuple[Operation, ...]
    arguments: tuple[int, ...]
    result: int
    constants: dict[int, Any]
    literals: dict[int, Any]
    types: tuple[Any, ...]
    held: tuple[Any, ...]
    text: str

    def users(self) -> dict[int, list[tuple[Operation | None, int]]]:
        """{value: [(operation, position among its inputs)]}; None is what uses the result."""
        found: dict[int, list] = {number: [] for number in range(len(self.types))}
        for operation in self.operations:
            for position, number in enumerate(operation.inputs):
                found[number].append((operation, position))
        found[self.result].append((None, 0))
        return found


def trace_program(function: Callable[..., Array], *arguments: PyTree) -> Program:
    """The operations that ``function(*arguments)``, traced or for shapes alone, depends on.

    Raises ValueError if the function returns anything but one array.
    """
    # JAX remembers what it has traced of a function, but not of one that is made here.
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
            if equation.primitive.name in OPENED:
                results = walk(*_body(equation, constant), given)
            else:
                results = [number(var.aval) for var in equation.outvars]
                operations.append(Operation(equation, given, tuple(results)))
            known.update(zip(equation.outvars, results, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    jaxpr = closed.jaxpr
    consts = [constant(c, v.aval) for c, v in zip(closed.consts, jaxpr.constvars, strict=True)]
    inputs = [number(var.aval) for var in jaxpr.invars]
    (result,) = walk(jaxpr, consts, inputs)
    operations = _needed(operations, result)
    held = tuple(part for operation in operations for part in _held(operation.equation))
    return Program(
        tuple(operations),
        tuple(inputs),
        result,
        constants,
        literals,
        tuple(types),
        held,
        str(jaxpr),
    )


def _held(equation: JaxprEqn) -> Iterator[Any]:
    """Arrays and functions in an operation's settings, but for rules in `KNOWN_RULES`."""
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
                yield from _held(inner)
        elif isinstance(leaf, np.ndarray | jax.Array) or (
            callable(leaf) and not isinstance(leaf, type | jax.sharding.Mesh)
        ):
            yield leaf


def _needed(operations: list[Operation], result: int) -> list[Operation]:
    """Those that the result depends on, or that have effects."""
    needed, found = {result}, []
    for operation in reversed(operations):
        if operation.equation.effects or not needed.isdisjoint(operation.outputs):
            needed.update(operation.inputs)
            found.append(operation)
    return found[::-1]


def _body(equation, constant) -> tuple[Any, list[int]]:
    """The jaxpr inside a call and the numbers of its constants."""
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if not hasattr(inner, "consts"):
        return inner, []
    pairs = zip(inner.consts, inner.jaxpr.constvars, strict=True)
    return inner.jaxpr, [constant(value, var.aval) for value, var in pairs]


def eval_program(
    program: Program, arguments: list[Array], shifts: dict[int, Array]
) -> tuple[Array, dict[int, Any]]:
    """The result and all values, each value numbered in `shifts` moved by that much."""
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


_compiled: OrderedDict[tuple, Callable] = OrderedDict()


def jit_cached(function: Callable, *programs: Program, **options) -> Callable:
    """``jax.jit(partial(function, *programs), **options)``, or the one of equal programs before.

    Programs are equal if they differ in their constants alone, which are arguments of what is
    compiled. So nothing is kept alive of the functions that were traced, neither these nor what
    they close over. Programs with derivative rules or callbacks of their own, which cannot be
    compared, are compiled at each call.
    """
    bare = [program._replace(constants={}) for program in programs]

    def filled(constants, *arguments, **settings):
        given = zip(bare, constants, strict=True)
        return function(*(p._replace(constants=c) for p, c in given), *arguments, **settings)

    found = jax.jit(filled, **options)
    if not any(program.held for program in programs):
        # Inside `shard_map` operations carry its mesh, which their text does not show.
        mesh = jax.sharding.get_abstract_mesh()
        key = function, mesh, *(program.text for program in programs)
        found = _compiled[key] = _compiled.pop(key, found)
        while len(_compiled) > MOST:
            _compiled.popitem(last=False)
    return partial(found, [program.constants for program in programs])
