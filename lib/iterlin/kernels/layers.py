"""Find parameters that are the weight or the bias of a dense or convolutional layer.

The gradient of a layer z_s = W^T a_s + b, with positions s of one example, follows from its inputs
a and the cotangents g of its outputs: it is the sum over s of (a_s, 1) g_s^T. A weight may be
reshaped or transposed before it is used, which permutes columns of J and does not change J J^T.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iterlin.linearise.programs import Operation, Program

# Operations that may move the entries of an array but do not change them.
RELAYOUTS = frozenset(
    {"reshape", "transpose", "squeeze", "copy", "convert_element_type", "optimization_barrier"}
)


class Layer(NamedTuple):
    """A dense or convolutional layer in the program of one example.

    Attributes:
        weight: The position of the weight among the arguments of the program.
        bias: The position of the bias, or None if there is none or it is not added directly.
        product: The matrix product or convolution with the weight.
        operand: The number of the other factor, which holds the inputs.
        output: The number of the value whose cotangents are used, after the bias if there is one.
        scale: A constant factor between the product and `output`.
    """

    weight: int
    bias: int | None
    product: Operation
    operand: int
    output: int
    scale: Any = 1.0

    def inputs(self, values: dict[int, Any]) -> Float[Array, "S D"]:
        """Return the inputs (S, D) of S positions, times `scale`; a bias adds a last entry of 1.

        values: values of the program by number, with that of `operand`.
        """
        value = values[self.operand]
        if self.product.name == "dot_general":
            contracted = self._contracted()
            free = [axis for axis in range(value.ndim) if axis not in contracted]
            size = math.prod(value.shape[axis] for axis in contracted)
            rows = value.transpose(*free, *contracted).reshape(-1, size)
        else:
            rows = _patches(value, self.product)
        rows = rows * jnp.asarray(self.scale, rows.dtype)
        if self.bias is None:
            return rows
        return jnp.concatenate([rows, jnp.ones((len(rows), 1), rows.dtype)], axis=1)

    def cotangents(self, values: Float[Array, "o *output"]) -> Float[Array, "o S E"]:
        """Arrange cotangents of `output`, for o outputs of the network, by position and feature."""
        features = self.feature_axes(values.ndim - 1)
        if self.product.name == "dot_general":
            order = [axis for axis in range(values.ndim - 1) if axis not in features]
        else:
            order = [a for a in self._dimension_numbers().out_spec if a not in features]
        values = values.transpose(0, *(axis + 1 for axis in [*order, *features]))
        size = math.prod(values.shape[values.ndim - len(features) :])
        return values.reshape(len(values), -1, size)

    def feature_axes(self, ndim: int) -> list[int]:
        """Return the axes of the product, an array of `ndim` axes, that come from the weight."""
        if self.product.name != "dot_general":
            return [self._dimension_numbers().out_spec[1]]
        operand_first = self.product.inputs[0] == self.operand
        operand_ndim = len(_shape(self.product.equation.invars[0 if operand_first else 1]))
        positions = operand_ndim - len(self._contracted())
        return list(range(positions, ndim) if operand_first else range(ndim - positions))

    def _contracted(self) -> Sequence[int]:
        """Return the axes of the operand that a dense product sums over."""
        return self._dimension_numbers()[0][0 if self.product.inputs[0] == self.operand else 1]

    def _dimension_numbers(self):
        return self.product.settings["dimension_numbers"]


def find_layers(program: Program, leaves: int) -> list[Layer]:
    """Find the layers of a network for a batch of one. No parameter belongs to two of them.

    A parameter belongs to no layer if it is used more than once, by another operation, or inside
    control flow. leaves: the number of trained leaves, the first arguments of the program.
    """
    users = program.users()
    biases = {}
    for index in range(leaves):
        broadcast = _broadcast_vector(program, users, program.arguments[index])
        if broadcast is not None:
            value, axis = broadcast
            biases[value] = index, axis
    layers = []
    for index in range(leaves):
        found = _find_product(program, users, program.arguments[index])
        if found is not None:
            operation, operand = found
            layer = Layer(index, None, operation, operand, operation.outputs[0])
            layers.append(_add_bias(program, users, layer, biases))
    return layers


def only_user(users, value: int) -> tuple[Operation | None, int]:
    """Return the only operation that takes a value, and the position among its inputs.

    (None, 0) if the value is used more than once, not at all, or is the result. users: the result
    of `Program.users`.
    """
    return users[value][0] if len(users[value]) == 1 else (None, 0)


def _find_product(program, users, value) -> tuple[Operation, int] | None:
    """Return the product whose weight is the parameter, and the number of the other factor."""
    operation, position = only_user(users, value)
    while operation is not None and is_relayout(program, operation):
        value = operation.outputs[0]
        operation, position = only_user(users, value)
    if operation is None or not _is_layer(program, operation, position):
        return None
    return operation, operation.inputs[1 - position]


def is_relayout(program: Program, operation: Operation) -> bool:
    """Return whether an operation permutes the entries of a floating point array."""
    if len(operation.outputs) != 1:
        return False
    before, after = program.types[operation.inputs[0]], program.types[operation.outputs[0]]
    floating = all(jnp.issubdtype(t.dtype, jnp.floating) for t in (before, after))
    spread = operation.name == "broadcast_in_dim" and before.size == after.size
    return floating and (operation.name in RELAYOUTS or spread)


def _is_layer(program, operation, position) -> bool:
    """Return whether the operation is the product of a layer, with its weight at the position."""
    types = [program.types[i] for i in operation.inputs]
    if not all(t.size and jnp.issubdtype(t.dtype, jnp.floating) for t in types):
        return False
    if operation.name == "dot_general":
        return operation.settings["dimension_numbers"][1] == ((), ())
    groups = ("feature_group_count", "batch_group_count")
    return (
        operation.name == "conv_general_dilated"
        and position == 1
        and all(operation.settings[name] == 1 for name in groups)
    )


def _broadcast_vector(program, users, value) -> tuple[int, int] | None:
    """Follow a vector of parameters through reshapes and broadcasts to the sum that takes it.

    Returns the number of the value that enters the sum, and the axis of it that the vector lies
    along; None if the vector is used in another way.
    """
    size = program.types[value].shape
    if len(size) != 1:
        return None
    axis = 0
    while True:
        operation, _ = only_user(users, value)
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


def _add_bias(program, users, layer: Layer, biases) -> Layer:
    """Return the layer with its bias, if there is one and nothing else uses the product."""
    value, scale = layer.output, 1.0
    shape = program.types[value].shape
    operation, position = only_user(users, value)
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
        operation, position = only_user(users, value)
    if operation is None or operation.name != "add" or operation.inputs[1 - position] not in biases:
        return layer
    added, result = operation.inputs[1 - position], operation.outputs[0]
    bias, axis = biases[added]
    if layer.feature_axes(len(shape)) != [axis]:
        return layer
    # If the sum broadcasts, it has more features than the bias or more positions than the inputs.
    if program.types[added].shape[axis] != shape[axis] or program.types[result].shape != shape:
        return layer
    return layer._replace(bias=bias, output=result, scale=scale)


def _shape(variable: Any) -> tuple[int, ...]:
    """Return the shape of a variable of a jaxpr, which is an array."""
    return variable.aval.shape


def _patches(value, operation: Operation) -> Float[Array, "S D"]:
    """Extract the patch of the input that each position of a convolution is computed from."""
    settings, numbers = operation.settings, operation.settings["dimension_numbers"]
    filters = _shape(operation.equation.invars[1])
    result = _shape(operation.equation.outvars[0])
    window = [filters[axis] for axis in numbers.rhs_spec[2:]]
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

    patches = jnp.stack([shifted(offset) for offset in np.ndindex(*window)], axis=1)
    size = patches.shape[1] * patches.shape[2]
    return jnp.moveaxis(patches, (1, 2), (-2, -1)).reshape(-1, size)
