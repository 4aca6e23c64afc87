"""Trace a function to a flat list of primitive operations, to inspect and evaluate with changes.

Calls that only group operations (jit, checkpoint) are inlined. Calls with a derivative rule or
control flow (custom_jvp, scan, while, cond) stay one operation each.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, PyTree

INLINED = frozenset({"jit", "call", "closed_call", "checkpoint", "remat2"})
# Files of JAX (relu, logsumexp, ...) and of this library (pooling) whose derivative rules close
# over nothing that the text of the operation does not show.
KNOWN_RULES = re.compile("jax/_src/(nn|numpy|scipy|lax/other)|iterlin/networks/convolution")
KNOWN_FILES = re.compile("jax/_src/|iterlin/networks/convolution")


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

    def keep(values, value, aval) -> int:
        values[index := number(aval)] = value
        return index

    def walk(jaxpr, inputs) -> list[int]:
        consts = getattr(jaxpr, "consts", ())
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # of a closed one
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            known[variable] = keep(constants, value, variable.aval)

        def look_up(atom) -> int:
            is_literal = isinstance(atom, Literal)
            return keep(literals, atom.val, atom.aval) if is_literal else known[atom]

        for equation in jaxpr.eqns:
            given = tuple(look_up(atom) for atom in equation.invars)
            if equation.primitive.name in INLINED:
                settings = equation.params
                results = walk(settings.get("jaxpr", settings.get("call_jaxpr")), given)
            else:
                results = [number(var.aval) for var in equation.outvars]
                operations.append(Operation(equation, given, tuple(results)))
            known.update(zip(equation.outvars, results, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    inputs = [number(var.aval) for var in closed.jaxpr.invars]
    (result,) = walk(closed, inputs)
    operations = _remove_unused(operations, result)
    opaque = tuple(part for operation in operations for part in opaque_parts(operation.equation))
    return Program(
        tuple(operations),
        tuple(inputs),
        result,
        constants,
        literals,
        tuple(types),
        opaque,
        str(closed.jaxpr),
    )


def opaque_parts(equation: JaxprEqn) -> Iterator[Any]:
    """Yield arrays and functions in the settings of an operation, except for `KNOWN_RULES`."""
    settings = equation.params
    if equation.primitive.name.startswith("custom_"):
        inside = settings.get("call_jaxpr")
        known = KNOWN_RULES.search(str(inside and inside.jaxpr.debug_info))
        # Users may give a function of JAX a rule of their own.
        if not known or not all(map(KNOWN_FILES.search, _files(tuple(settings.values()), set()))):
            yield equation
        settings = {"call_jaxpr": inside}
    for leaf in jax.tree.leaves(settings):
        if isinstance(leaf, ClosedJaxpr):
            yield from leaf.consts
            leaf = leaf.jaxpr
        if isinstance(leaf, Jaxpr):
            for inner in leaf.eqns:
                yield from opaque_parts(inner)
        elif isinstance(leaf, np.ndarray | jax.Array) or _is_opaque_function(leaf):
            yield leaf


def _files(part: Any, seen: set[int]) -> Iterator[str]:
    """Yield the files of a function and of all that it closes over or wraps."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, FunctionType):
        yield part.__code__.co_filename
        for name in inspect.getclosurevars(part).nonlocals.values():
            yield from _files(name, seen)
    elif isinstance(part, partial):
        yield from _files((part.func, *part.args), seen)
    elif isinstance(part, tuple):
        for inner in part:
            yield from _files(inner, seen)
    elif isinstance(getattr(part, "f", None), FunctionType):  # as JAX wraps rules
        yield from _files(part.f, seen)


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
