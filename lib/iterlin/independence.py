"""Whether the operations of a network show that its examples never meet: a proof without numbers.

The program for a batch of two examples is read as either of them sees it. A value has an axis along
which one example has the first half and the other the second, and a name for such a half; or both
see the whole, and that has a name. Names are those of the program for a batch of one, in which the
same operation makes the same of the same. Where the results of both programs have one name, f of
two examples is f of each by itself. What is not known here is named like nothing else, and so shows
nothing.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, PyTree

from iterlin.validation import is_traced

CALLS = {  # operations that stand for a program, and the setting that holds it
    "jit": "jaxpr",
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
# An array that a program holds is known by its bits, if they are few, or by being one object.
FEW_BYTES = 2**12


class Value(NamedTuple):
    """An array of a program as an example sees it.

    axis: the one along which an example has one half; None if it sees the whole. name: of that
    half, or of the whole. alike: {axis: name of a half} of a whole whose halves along it are equal.
    """

    shape: tuple[int, ...]
    name: int
    axis: int | None = None
    alike: Mapping[int, int] = {}

    def half(self, axis: int) -> int | None:
        """The name of what an example has along an axis; None if it has no half along it."""
        if self.axis is None:
            return self.alike.get(axis)
        return self.name if self.axis == axis else None

    def whole(self) -> int | None:
        """The name of what all examples see; None if each has its own."""
        return self.name if self.axis is None else None


def shown_independent(f: Callable[[PyTree, PyTree], Array], params: PyTree, x: PyTree) -> bool:
    """Whether f(params, x) of two examples like those of x is f of each, by its operations alone.

    True is a proof up to rounding, whatever the numbers are. False says nothing: there may be an
    operation that is not read here. x leads with N; nothing is computed, and all may be traced.
    """
    alone, together = (jax.make_jaxpr(f)(params, _batch(x, size)) for size in (1, 2))
    reader, examples = _Reader(), len(jax.tree.leaves(x))
    expected = reader.result(alone, examples, axis=None)
    found = reader.result(together, examples, axis=0)
    return found.axis == 0 and found.shape[0] == 2 and found.name == expected.name


def _batch(x: PyTree, size: int) -> PyTree:
    def like(leaf):
        return jax.ShapeDtypeStruct((size, *np.shape(leaf)[1:]), jnp.result_type(leaf))

    return jax.tree.map(like, x)


class _Reader:
    """Names what programs make, by one number for one thing."""

    def __init__(self):
        self._numbers: dict[Hashable, int] = {}

    def result(self, program, examples: int, axis: int | None) -> Value:
        """What a program returns whose last arguments are examples, which lie along the axis."""
        variables = program.jaxpr.invars
        first = len(variables) - examples
        inputs = [
            Value(var.aval.shape, self._name("input", i), axis if i >= first else None)
            for i, var in enumerate(variables)
        ]
        (found,) = self._read(program.jaxpr, program.consts, inputs)
        return found

    def _name(self, *what: Hashable) -> int:
        try:
            return self._numbers.setdefault(what, len(self._numbers))
        except TypeError:  # of settings that cannot be compared
            return self._unknown()

    def _unknown(self) -> int:
        return self._name(object())

    def _read(self, jaxpr, consts: Sequence, inputs: Sequence[Value]) -> list[Value]:
        held = [self._constant(const) for const in consts]
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*held, *inputs], strict=True))

        def look_up(atom) -> Value:
            return self._constant(atom.val) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            made = self._made(equation, [look_up(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, made, strict=True))
        return [look_up(atom) for atom in jaxpr.outvars]

    def _constant(self, value) -> Value:
        shape, dtype = np.shape(value), jnp.result_type(value)
        many = math.prod(shape) * dtype.itemsize > FEW_BYTES
        if many or is_traced(value) or jnp.issubdtype(dtype, jax.dtypes.extended):
            return Value(shape, self._name("object", id(value)))
        return Value(shape, self._name("constant", dtype, shape, np.asarray(value).tobytes()))

    def _made(self, equation, operands: list[Value]) -> list[Value]:
        kind, settings = equation.primitive.name, equation.params
        if (inner := settings.get(CALLS.get(kind))) is not None:
            consts = getattr(inner, "consts", ())
            return self._read(getattr(inner, "jaxpr", inner), consts, operands)
        if kind == "optimization_barrier":  # hands on what it is given
            return operands
        made = []
        for index, shape in enumerate(variable.aval.shape for variable in equation.outvars):
            halves = self._halves(equation, operands, index, shape)
            if equation.effects:
                made.append(Value(shape, self._unknown()))
            elif all(value.axis is None for value in operands):
                names = [value.name for value in operands]
                name = self._operation(kind, settings, names, index)
                made.append(Value(shape, name, None, halves))
            else:
                axis, name = next(iter(halves.items()), (None, self._unknown()))
                made.append(Value(shape, name, axis))
        return made

    def _halves(self, equation, operands: list[Value], index: int, shape) -> dict[int, int]:
        """{axis: name} of the halves that the rule of an operation knows of one of its results."""
        kind, found = equation.primitive.name, {}
        for axis, size in enumerate(shape if kind in RULES else ()):
            half = RULES[kind](equation.params, operands, axis) if size and not size % 2 else None
            if half is not None and None not in half[1]:
                found[axis] = self._operation(kind, *half, index)
        return found

    def _operation(self, kind: str, settings, names: Sequence[int], index: int) -> int:
        if settings is None:
            return names[0]
        return self._name(kind, tuple(sorted(settings.items())), tuple(names), index)


# What makes one half of a result along an axis: settings of the operation for one example, or None
# where there is nothing to do, and names of what it takes, None for what an example has no half of.
Half = tuple[Mapping[str, Any] | None, Sequence[int | None]]
RULES: dict[str, Callable[[Mapping[str, Any], Sequence[Value], int], Half | None]] = {}


def _rule(kinds: str):
    def add(rule):
        RULES.update(dict.fromkeys(kinds.split(), rule))
        return rule

    return add


def _halved(settings, name: str, axis: int) -> dict[str, Any]:
    """The settings, with half of a shape along an axis."""
    shape = settings[name]
    return {**settings, name: (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])}


def _others(axes, count: int) -> list[int]:
    """All axes but these."""
    return [axis for axis in range(count) if axis not in axes]


@_rule(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp "
    "convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt "
    "integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or pow "
    "reduce_precision rem round rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan "
    "tanh xor"
)
def _elementwise(settings, operands, axis):
    return settings, [_stretched(value, axis) for value in operands]


def _stretched(value: Value, axis: int) -> int | None:
    """What an example has of an operand that is broadcast where it has no axis, or one of 1."""
    same = not value.shape or value.shape[axis] == 1
    return value.whole() if same else value.half(axis)


@_rule("broadcast_in_dim")
def _broadcast(settings, operands, axis):
    (value,), kept = operands, settings["broadcast_dimensions"]
    half = _halved(settings, "shape", axis)
    if axis in kept and value.shape[before := kept.index(axis)] > 1:
        return half, [value.half(before)]
    # An example that is alone has nothing that it would be repeated for.
    return None if half["shape"] == value.shape else half, [value.whole()]


@_rule("reshape")
def _reshape(settings, operands, axis):
    """In order of memory: halves along the first axis longer than 1 after as many numbers."""
    value = operands[0]
    before = math.prod(settings["new_sizes"][:axis])
    for old, size in enumerate(value.shape if settings["dimensions"] is None else ()):
        if size > 1 and math.prod(value.shape[:old]) == before:
            return _halved(settings, "new_sizes", axis), [value.half(old)]
    return None


@_rule("transpose")
def _transpose(settings, operands, axis):
    return settings, [operands[0].half(settings["permutation"][axis])]


@_rule("squeeze")
def _squeeze(settings, operands, axis):
    (value,) = operands
    return settings, [value.half(_others(settings["dimensions"], len(value.shape))[axis])]


@_rule("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin")
def _reduce(settings, operands, axis):
    (value,) = operands
    return settings, [value.half(_others(settings["axes"], len(value.shape))[axis])]


@_rule("cumsum cumprod cummax cummin cumlogsumexp split")
def _along(settings, operands, axis):
    return None if axis == settings["axis"] else (settings, [operands[0].half(axis)])


@_rule("sort concatenate")
def _joined(settings, operands, axis):
    if axis == settings["dimension"]:
        return None
    return settings, [value.half(axis) for value in operands]


@_rule("stack")
def _stacked(settings, operands, axis):
    if axis == settings["axis"]:
        return None
    return settings, [value.half(axis - (axis > settings["axis"])) for value in operands]


@_rule("rev")
def _reversed(settings, operands, axis):
    return None if axis in settings["dimensions"] else (settings, [operands[0].half(axis)])


@_rule("pad")
def _pad(settings, operands, axis):
    value, padding = operands
    if settings["padding_config"][axis] != (0, 0, 0):
        return None
    return settings, [value.half(axis), padding.whole()]


@_rule("slice")
def _slice(settings, operands, axis):
    (value,), strides = operands, settings["strides"]
    taken = settings["start_indices"][axis], settings["limit_indices"][axis]
    if taken != (0, value.shape[axis]) or (strides and strides[axis] != 1):
        return None
    return _halved(settings, "limit_indices", axis), [value.half(axis)]


@_rule("dynamic_slice")
def _dynamic_slice(settings, operands, axis):
    """All along the axis is all, wherever it is asked to start."""
    value, *starts = operands
    if settings["slice_sizes"][axis] != value.shape[axis]:
        return None
    given = [value.half(axis), *(start.whole() for start in starts)]
    return _halved(settings, "slice_sizes", axis), given


@_rule("reduce_window_sum reduce_window_max reduce_window_min")
def _reduce_window(settings, operands, axis):
    moves = settings["window_dimensions"], settings["window_strides"], settings["base_dilation"]
    if any(move[axis] != 1 for move in moves) or tuple(settings["padding"][axis]) != (0, 0):
        return None
    return settings, [operands[0].half(axis)]


@_rule("dot_general")
def _dot_general(settings, operands, axis):
    contracted, batch = settings["dimension_numbers"]
    if axis < len(batch[0]):
        return settings, [v.half(axes[axis]) for v, axes in zip(operands, batch, strict=True)]
    free = [
        _others([*summed, *shared], len(value.shape))
        for value, summed, shared in zip(operands, contracted, batch, strict=True)
    ]
    first, second = operands
    axis -= len(batch[0])
    if axis < len(free[0]):
        return settings, [first.half(free[0][axis]), second.whole()]
    return settings, [first.whole(), second.half(free[1][axis - len(free[0])])]


@_rule("conv_general_dilated")
def _convolution(settings, operands, axis):
    dimensions = settings["dimension_numbers"]
    if axis != dimensions.out_spec[0] or settings["batch_group_count"] != 1:
        return None
    value, kernel = operands
    return settings, [value.half(dimensions.lhs_spec[0]), kernel.whole()]


@_rule("gather")
def _gather(settings, operands, axis):
    """Of one table, by each example's indices, whose last axis counts those of one position."""
    (table, indices), dimensions = operands, settings["dimension_numbers"]
    if axis in dimensions.offset_dims:
        return None
    position = sum(other not in dimensions.offset_dims for other in range(axis))
    return settings, [table.whole(), indices.half(position)]
