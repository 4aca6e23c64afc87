"""Where parameters are tables whose rows are looked up, and where only a part of them is used.

Of an embedding ``table[indices]`` the Jacobian's rows are as large as the table and almost all
zero. Positions s and t of two examples with cotangents g_s and h_t of what they looked up add
g_s . h_t to the kernel if their indices are equal.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from iterlin.kernels.layers import is_relayout, sole_user
from iterlin.linearise.programs import Operation, Program

CASTS = frozenset({"convert_element_type", "copy"})


class Lookup(NamedTuple):
    """One lookup in a table of `rows` x `features` entries, at so many positions of an example.

    table: which argument of the program it is. operand: number of the value that holds the indices.
    output: number of the value whose cotangents count.
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
        """The row that each position takes, and the cotangents; zero where an index is outside."""
        numbers = self.operation.settings["dimension_numbers"]
        offsets = numbers.offset_dims
        axes = range(cotangents.ndim - 1)
        order = [*(axis for axis in axes if axis not in offsets), *offsets]
        g = cotangents.transpose(0, *(axis + 1 for axis in order))
        g = g.reshape(len(g), self.positions, self.features)
        indices = indices[..., numbers.start_index_map.index(0)].reshape(-1)
        # A narrow type may not hold the number of the last row, which would wrap.
        taken = jnp.clip(indices, 0, min(self.rows - 1, jnp.iinfo(indices.dtype).max))
        if self.operation.settings["mode"] == jax.lax.GatherScatterMode.CLIP:
            return taken, g
        return taken, jnp.where((taken == indices)[None, :, None], g, 0)


def find_lookups(program: Program, leaves: int) -> list[Lookup]:
    """Lookups in the first `leaves` arguments: in those that are used for one of them, no more."""
    users = program.users()
    found = []
    for index in range(leaves):
        value = program.arguments[index]
        operation, position = sole_user(users, value)
        while operation is not None and operation.name in CASTS and is_relayout(program, operation):
            value = operation.outputs[0]
            operation, position = sole_user(users, value)
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
    """Whether whole rows are gathered. With indices for other axes, too, these must be clipped."""
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


def find_parts(program: Program, arguments: Iterable[int]) -> dict[int, int]:
    """{argument: number of the one slice of it that is used}, for arguments that are only sliced.

    All other entries have derivatives of zero, and can be left out of J J^T.
    """
    users = program.users()
    parts = {}
    for index in arguments:
        operation, _ = sole_user(users, program.arguments[index])
        while operation is not None:
            if operation.name == "slice":
                parts[index] = operation.outputs[0]
            elif not is_relayout(program, operation):
                break
            operation, _ = sole_user(users, operation.outputs[0])
    return parts
