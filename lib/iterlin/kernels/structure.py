"""What two programs must share to be compiled once: all but the arrays that they close over.

Derivative rules (custom_jvp, custom_vjp) are new objects each time a function is traced, and cannot
be compared: where there are any, the function itself must be the same.
"""

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from iterlin.kernels.flat_program import Program

PLAIN = (bool, int, float, str, type(None))


def structure(program: Program) -> tuple[Hashable, bool]:
    """A key equal for programs of equal operations, types and literals; whether it tells all.

    It does not where functions are among the settings of an operation, as are derivative rules.
    """
    functions: list[Any] = []
    operations = tuple(
        (*_settings(operation.equation, functions), operation.inputs, operation.outputs)
        for operation in program.operations
    )
    literals = tuple((number, _value(value)) for number, value in program.literals.items())
    shape = (program.arguments, program.result, tuple(program.constants), program.types)
    return (operations, literals, shape), not functions


def _settings(equation, functions: list) -> tuple:
    rules = equation.primitive.name.startswith("custom_")
    return equation.primitive, tuple(
        (name, _setting(setting, functions, rules)) for name, setting in equation.params.items()
    )


def _setting(setting, functions: list, rules: bool) -> Hashable:
    if isinstance(setting, ClosedJaxpr):
        consts = tuple(_value(const) for const in setting.consts)
        return _jaxpr(setting.jaxpr, functions), consts
    if isinstance(setting, Jaxpr):
        return _jaxpr(setting, functions)
    if isinstance(setting, tuple | list):
        if hasattr(setting, "_fields"):
            return type(setting), tuple(_setting(part, functions, rules) for part in setting)
        return tuple(_setting(part, functions, rules) for part in setting)
    if isinstance(setting, dict):
        return _setting(tuple(setting.items()), functions, rules)
    if isinstance(setting, np.ndarray | jax.Array):
        return _value(setting)
    if rules and not isinstance(setting, PLAIN):
        functions.append(setting)
        return type(setting)
    if callable(setting) and not isinstance(setting, type):
        functions.append(setting)
    try:
        hash(setting)
    except TypeError:
        return object()  # equal to nothing else
    return setting


def _jaxpr(jaxpr, functions: list) -> Hashable:
    numbers: dict[Any, int] = {}

    def name(atom) -> Hashable:
        if isinstance(atom, Literal):
            return _value(atom.val)
        return numbers.setdefault(atom, len(numbers))

    inputs = tuple(name(var) for var in [*jaxpr.constvars, *jaxpr.invars])
    equations = tuple(
        (
            *_settings(equation, functions),
            tuple(name(atom) for atom in equation.invars),
            tuple(name(var) for var in equation.outvars),
        )
        for equation in jaxpr.eqns
    )
    outputs = tuple(name(atom) for atom in jaxpr.outvars)
    return inputs, equations, outputs, tuple(var.aval for var in numbers)


def _value(value) -> Hashable:
    """A number or array by its bits, which are equal for NaN and differ for 0 and -0."""
    array = np.asarray(value)
    return type(value), array.dtype, array.shape, array.tobytes()
