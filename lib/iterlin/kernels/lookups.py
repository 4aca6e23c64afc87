"""Find parameters that are tables whose rows are looked up, or of which only a slice is used.

For an embedding ``table[indices]`` a row of the Jacobian is as large as the table and almost all
zero. Two positions s and t of two examples, with cotangents g_s and h_t of the rows looked up, add
g_s . h_t to the kernel if their indices are equal.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from iterlin.kernels.layers import is_relayout, only_user
from iterlin.linearise.programs import Operation, Program

CASTS = frozenset({"convert_element_type", "copy"})


class Lookup(NamedTuple):
    """A lookup of rows in a table, for the program of one example.

    Attributes:
        table: The position of the table among the arguments of the program.
        operand: The number of the value that holds the indices.
        output: The number of the value that holds the rows looked up.
        operation: The gather operation.
        positions: The number of rows looked up.
        rows: The number of rows of the table.
        features: The number of entries of a row.
    """

    table: int
    operand: int
    output: int
    operation: Operation
    positions: int
    rows: int
    features: int

    def factors(
        self, indices: Integer[Array, "*positions k"], cotangents: Float[Array, "o *output"]
    ) -> tuple[Integer[Array, " S"], Float[Array, "o S E"]]:
        """Return the row that each of S positions takes, and the cotangents of `output` there.

        Rows are clipped to the table; cotangents are 0 where an index lies outside of it. indices:
        the value of `operand`, with k components of each index.
        """
        numbers = self.operation.settings["dimension_numbers"]
        offsets = numbers.offset_dims
        axes = range(cotangents.ndim - 1)
        order = [*(axis for axis in axes if axis not in offsets), *offsets]
        g = cotangents.transpose(0, *(axis + 1 for axis in order))
        g = g.reshape(len(g), self.positions, self.features)
        indices = indices[..., numbers.start_index_map.index(0)].reshape(-1)
        # The index of the last row would wrap in a narrow dtype.
        clipped = jnp.clip(indices, 0, min(self.rows - 1, jnp.iinfo(indices.dtype).max))
        if self.operation.settings["mode"] == jax.lax.GatherScatterMode.CLIP:
            return clipped, g
        return clipped, jnp.where((clipped == indices)[None, :, None], g, 0)


def find_lookups(program: Program, leaves: int) -> list[Lookup]:
    """Find the trained leaves whose only use is a lookup of rows.

    leaves: the number of trained leaves, the first arguments of the program.
    """
    users = program.users()
    found = []
    for index in range(leaves):
        value = program.arguments[index]
        operation, position = only_user(users, value)
        while operation is not None and operation.name in CASTS and is_relayout(program, operation):
            value = operation.outputs[0]
            operation, position = only_user(users, value)
        if operation is None or position != 0 or not _is_lookup(program, operation):
            continue
        shape = program.types[value].shape
        positions = math.prod(program.types[operation.inputs[1]].shape[:-1])
        found.append(
            Lookup(
                index,
                operation.inputs[1],
                operation.outputs[0],
                operation,
                positions,
                shape[0],
                math.prod(shape[1:]),
            )
        )
    return found


def _is_lookup(program: Program, operation: Operation) -> bool:
    """Return whether the operation gathers whole rows of its first input.

    Indices into other axes, which select the whole axis, must be clipped.
    """
    if operation.name != "gather":
        return False
    numbers, mode = (operation.settings[name] for name in ("dimension_numbers", "mode"))
    table = program.types[operation.inputs[0]]
    return (
        jnp.issubdtype(table.dtype, jnp.floating)
        and numbers.collapsed_slice_dims in ((0,), ())
        and not numbers.operand_batching_dims
        and operation.settings["slice_sizes"] == (1, *table.shape[1:])
        and 0 in numbers.start_index_map
        and (len(numbers.start_index_map) == 1 or mode == jax.lax.GatherScatterMode.CLIP)
    )


def find_sliced(program: Program, arguments: Iterable[int]) -> dict[int, int]:
    """Find arguments of which only one slice is used: the number of its value, by argument.

    The derivatives of all other entries are 0, so J J^T does not depend on them.
    """
    users = program.users()
    sliced = {}
    for index in arguments:
        operation, _ = only_user(users, program.arguments[index])
        while operation is not None:
            if operation.name == "slice":
                sliced[index] = operation.outputs[0]
            elif not is_relayout(program, operation):
                break
            operation, _ = only_user(users, operation.outputs[0])
    return sliced
