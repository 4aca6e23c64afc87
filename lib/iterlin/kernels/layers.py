"""Where parameters enter a network as the weight or the bias of a dense or convolutional layer.

The derivative of such a layer z_s = W^T a_s + b, with positions s of one example, is known from its
inputs a and the cotangents g of its outputs alone: sum over s of (a_s, 1) g_s^T. Weights may be
reshaped or transposed on their way, which permutes the columns of a Jacobian and leaves J J^T.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iterlin.linearise.programs import Operation, Program

RELAYOUTS = frozenset(
    {"reshape", "transpose", "squeeze", "copy", "convert_element_type", "optimization_barrier"}
)


class Layer(NamedTuple):
    """One layer of a `Program` that computes the outputs of one example.

    weight, bias: which arguments of the program these are; bias is None for one that is absent or
    not added straight to the outputs. product: the operation with the weight. operand: number of
    the other factor, which holds the inputs. output: number of the value whose cotangents count,
    after the bias if there is one; a factor `scale` lies between the product and it.
    """

    weight: int
    bias: int | None
    product: Operation
    operand: int
    output: int
    scale: Any = 1.0

    def inputs(self, values: dict[int, Any]) -> Float[Array, "S D"]:
        """a of every position, times `scale`, with a one at the end where there is a bias."""
        value = values[self.operand]
        if self.product.name == "dot_general":
            rows = _dense_inputs(value, self._contracted())
        else:
            rows = _patches(value, self.product)
        rows = rows * jnp.asarray(self.scale, rows.dtype)
        if self.bias is None:
            return rows
        return jnp.concatenate([rows, jnp.ones((len(rows), 1), rows.dtype)], axis=1)

    def cotangents(self, values: Float[Array, "o *output"]) -> Float[Array, "o S E"]:
        """Cotangents of `output` for several outputs of the network, by position and feature."""
        features = self.feature_axes(values.ndim - 1)
        if self.product.name == "dot_general":
            order = [axis for axis in range(values.ndim - 1) if axis not in features]
        else:
            order = [a for a in self._numbers().out_spec if a not in features]
        values = values.transpose(0, *(axis + 1 for axis in [*order, *features]))
        size = math.prod(values.shape[values.ndim - len(features) :])
        return values.reshape(len(values), -1, size)

    def feature_axes(self, ndim: int) -> list[int]:
        """Axes of the product, an array of ndim axes, that come from the weight."""
        if self.product.name != "dot_general":
            return [self._numbers().out_spec[1]]
        operand_first = self.product.inputs[0] == self.operand
        operand_ndim = self.product.equation.invars[0 if operand_first else 1].aval.ndim
        positions = operand_ndim - len(self._contracted())
        return list(range(positions, ndim) if operand_first else range(ndim - positions))

    def _contracted(self) -> Sequence[int]:
        """Axes of the operand that are summed over, as a dense product's settings list them."""
        return self._numbers()[0][0 if self.product.inputs[0] == self.operand else 1]

    def _numbers(self):
        return self.product.settings["dimension_numbers"]


def find_layers(program: Program, leaves: int) -> list[Layer]:
    """Layers among the first `leaves` arguments, the parameters; in no two layers the same one.

    A parameter is left out, and so is to be treated in general, if it is used more than once, by
    any other operation, or inside a control flow.
    """
    users = program.users()
    biases = {}
    for index in range(leaves):
        value = _bias_view(program, users, program.arguments[index])
        if value is not None:
            biases[value[0]] = index, value[1]
    layers = []
    for index in range(leaves):
        found = _product_with(program, users, program.arguments[index])
        if found is not None:
            operation, operand = found
            layer = Layer(index, None, operation, operand, operation.outputs[0])
            layers.append(_with_bias(program, users, layer, biases))
    return layers


def sole_user(users, value) -> tuple[Operation | None, int]:
    return users[value][0] if len(users[value]) == 1 else (None, 0)


def _product_with(program, users, value) -> tuple[Operation, int] | None:
    """The product that a parameter enters as the weight, and the number of the other factor."""
    operation, position = sole_user(users, value)
    while operation is not None and is_relayout(program, operation):
        value = operation.outputs[0]
        operation, position = sole_user(users, value)
    if operation is None or not _is_layer(program, operation, position):
        return None
    return operation, operation.inputs[1 - position]


def is_relayout(program, operation) -> bool:
    """Whether the operation keeps every entry of a floating point array, in whatever place."""
    if len(operation.outputs) != 1:
        return False
    before, after = program.types[operation.inputs[0]], program.types[operation.outputs[0]]
    floating = all(jnp.issubdtype(t.dtype, jnp.floating) for t in (before, after))
    spread = operation.name == "broadcast_in_dim" and before.size == after.size
    return floating and (operation.name in RELAYOUTS or spread)


def _is_layer(program, operation, position) -> bool:
    if not all(jnp.issubdtype(program.types[i].dtype, jnp.floating) for i in operation.inputs):
        return False
    if operation.name == "dot_general":
        return operation.settings["dimension_numbers"][1] == ((), ())
    groups = ("feature_group_count", "batch_group_count")
    return (
        operation.name == "conv_general_dilated"
        and position == 1
        and all(operation.settings[name] == 1 for name in groups)
    )


def _bias_view(program, users, value) -> tuple[int, int] | None:
    """The value as which a vector of parameters enters its only use, and the axis it lies along."""
    size = program.types[value].shape
    if len(size) != 1:
        return None
    axis = 0
    while True:
        operation, _ = sole_user(users, value)
        if operation is None or operation.name == "add":
            return None if operation is None else (value, axis)
        after = program.types[operation.outputs[0]].shape
        if operation.name == "broadcast_in_dim":
            axis = int(operation.settings["broadcast_dimensions"][axis])
        elif (
            operation.name == "reshape"
            and sorted(after)[:-1] == [1] * (len(after) - 1)
            and size[0] > 1
        ):
            axis = after.index(size[0])
        else:
            return None
        if after[axis] != size[0]:
            return None
        value = operation.outputs[0]


def _with_bias(program, users, layer: Layer, biases) -> Layer:
    """The layer with the bias added to it, if there is one and nothing else uses the product."""
    value, scale = layer.output, 1.0
    shape = program.types[value].shape
    operation, position = sole_user(users, value)
    while operation is not None and operation.name in ("mul", "div"):
        other = operation.inputs[1 - position]
        known = program.constants | program.literals
        if other not in known or program.types[other].shape != ():
            return layer
        if operation.name == "div" and position != 0:
            return layer
        factor = known[other]
        scale = scale * factor if operation.name == "mul" else scale / factor
        value = operation.outputs[0]
        operation, position = sole_user(users, value)
    if operation is None or operation.name != "add" or operation.inputs[1 - position] not in biases:
        return layer
    added, result = operation.inputs[1 - position], operation.outputs[0]
    bias, axis = biases[added]
    if layer.feature_axes(len(shape)) != [axis]:
        return layer
    # A sum that broadcasts has more features than bias or weight, or more positions than inputs.
    if program.types[added].shape[axis] != shape[axis] or program.types[result].shape != shape:
        return layer
    return layer._replace(bias=bias, output=result, scale=scale)


def _dense_inputs(value, contracted) -> Float[Array, "S D"]:
    free = [axis for axis in range(value.ndim) if axis not in contracted]
    size = math.prod(value.shape[axis] for axis in contracted)
    return value.transpose(*free, *contracted).reshape(-1, size)


def _patches(value, operation: Operation) -> Float[Array, "S D"]:
    """What each position of a convolution sees of its input, for any stride, padding, dilation."""
    settings, numbers = operation.settings, operation.settings["dimension_numbers"]
    kernel = operation.equation.invars[1].aval.shape
    result = operation.equation.outvars[0].aval.shape
    window = [kernel[axis] for axis in numbers.rhs_spec[2:]]
    image = [result[axis] for axis in numbers.out_spec[2:]]
    pads = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(settings["padding"], settings["lhs_dilation"], strict=True)
    ]
    value = value.transpose(numbers.lhs_spec)
    zero = jnp.zeros((), value.dtype)
    value = jax.lax.pad(value, zero, [(0, 0, 0), (0, 0, 0), *pads])
    strides = settings["window_strides"]

    def shifted(offset):
        starts = [o * d for o, d in zip(offset, settings["rhs_dilation"], strict=True)]
        stops = [
            start + (size - 1) * stride + 1
            for start, size, stride in zip(starts, image, strides, strict=True)
        ]
        return jax.lax.slice(value, (0, 0, *starts), (*value.shape[:2], *stops), (1, 1, *strides))

    seen = jnp.stack([shifted(offset) for offset in np.ndindex(*window)], axis=1)
    return jnp.moveaxis(seen, (1, 2), (-2, -1)).reshape(-1, seen.shape[1] * seen.shape[2])
