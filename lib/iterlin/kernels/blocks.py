"""The empirical kernel from groups of examples whose factors fit into a memory bound."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.kernels.factors import PAIRWISE, Factors, multiply_factors
from iterlin.linearise import examples
from iterlin.linearise.validation import is_traced

# Examples multiplied at a time: an eighth of a group, so that of a symmetric kernel little more
# than half is computed, but within these bounds for the rows of a block: matrix products of fewer
# are slow, and blocks of more leave the cache.
BLOCKS = 8
LEAST_ROWS, MOST_ROWS = 128, 1024

# Axes of the blocks of `multiply_factors`, in the order in which each form keeps them, and of their
# mirror images below the diagonal of a symmetric kernel.
LAYOUTS = {
    "full": ((0, 2, 1, 3), (2, 0, 3, 1)),
    "matrix": ((0, 1, 2, 3), (2, 3, 0, 1)),
    "diagonal": ((0, 1, 2), (1, 0, 2)),
    "trace": ((0, 1), (1, 0)),
}


def assemble_kernel(
    factors_of: Callable[[PyTree, Array], Factors],
    first: tuple[PyTree, Array | np.ndarray],
    second: tuple[PyTree, Array | np.ndarray] | None,
    group: int,
    form: str,
    dtype,
) -> Array:
    """The kernel between two sides (N examples, numbers of o outputs); None repeats the first.

    Factors of two groups of at most `group` examples are alive at a time. Returns (N1, N2, o1, o2),
    (N1, o1, N2, o2), (N1, N2, o) or (N1, N2) for the forms full, matrix, diagonal and trace.
    """
    symmetric = second is None
    sides = first, (first if symmetric else second)
    (n1, o1), (n2, o2) = ((examples.num_examples(x), len(outputs)) for x, outputs in sides)
    shapes = {"full": (n1, n2, o1, o2), "matrix": (n1, o1, n2, o2), "diagonal": (n1, n2, o1)}
    shape = shapes.get(form, (n1, n2))
    starts = [even_blocks(n, group) for n in (n1, n2)]
    order = _half(len(starts[0][0])) if symmetric else _all(len(starts[0][0]), len(starts[1][0]))
    # The only block's program makes the kernel as well.
    kernel = None if len(starts[0][0]) == len(starts[1][0]) == 1 else jnp.zeros(shape, dtype)
    alive: dict[tuple[int, int], Factors] = {}
    for i, j in order:
        wanted = (0, i), (0 if symmetric else 1, j)
        alive = {key: value for key, value in alive.items() if key in wanted}
        for side, index in wanted:
            if (side, index) not in alive:
                x, outputs = sides[side]
                begins, size = starts[side]
                x = examples.take_slice(x, begins[index], begins[index] + size)
                alive[side, index] = factors_of(x, outputs)
        write = _write_traced if any(map(is_traced, jax.tree.leaves(alive))) else _write
        kernel = write(
            kernel,
            *(alive[key] for key in wanted),
            np.asarray([starts[0][0][i], starts[1][0][j]], np.uint32),
            sizes=(starts[0][1], starts[1][1]),
            outputs=o1 if form in PAIRWISE else 1,
            form=form,
            mirrored=symmetric,
            same=symmetric and i == j,
            shape=shape,
            dtype=dtype,
        )
    return kernel


def even_blocks(count: int, largest: int) -> tuple[list[int], int]:
    """Where pieces of one size, at most `largest`, begin in `count`; the last may overlap."""
    number = math.ceil(count / largest)
    size = math.ceil(count / number)
    return [min(index * size, count - size) for index in range(number)], size


def _half(groups: int) -> Iterator[tuple[int, int]]:
    """Each pair of groups once, either way round; neighbours in the order share a group."""
    left, held = list(range(groups)), 0
    while left:
        left.remove(held)
        yield held, held
        for other in left:
            yield held, other
        held = left[-1] if left else held


def _all(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """All pairs; neighbours in the order share a group."""
    for i in range(rows):
        for j in range(columns):
            yield i, j if i % 2 == 0 else columns - 1 - j


def _written(kernel, first, second, origin, *, sizes, outputs, form, mirrored, same, shape, dtype):
    """Products of two groups put into the kernel from `origin` on, block by block.

    The kernel has that shape and type; None is one of zeros.
    """
    kernel = jnp.zeros(shape, dtype) if kernel is None else kernel
    (begins1, size1), (begins2, size2) = (even_blocks(n, _block(n, outputs)) for n in sizes)
    pairs = [(i, j) for i in begins1 for j in begins2 if not same or i <= j]
    pairs = jnp.asarray(np.asarray(pairs, dtype=np.uint32))  # signed places may count from the end
    layout, mirror = LAYOUTS[form]
    rows, columns = layout.index(0), layout.index(len(layout) // 2)

    def block_into(kernel, pair):
        i, j = pair
        parts = (_cut(first, i, size1), _cut(second, j, size2))
        block = multiply_factors(*parts, form)
        place = [np.uint32(0)] * kernel.ndim
        place[rows], place[columns] = origin[0] + i, origin[1] + j
        shape = list(kernel.shape)
        shape[rows], shape[columns] = size1, size2
        block = jnp.asarray(block, kernel.dtype)
        if block.ndim == 0:  # no parameter is used
            block = jnp.zeros([shape[axis] for axis in np.argsort(layout)], kernel.dtype)
        if mirrored:
            swapped = list(place)
            swapped[rows], swapped[columns] = place[columns], place[rows]
            block = jax.lax.optimization_barrier(block)  # or it is computed for either place
            kernel = jax.lax.dynamic_update_slice(kernel, block.transpose(mirror), swapped)
        return jax.lax.dynamic_update_slice(kernel, block.transpose(layout), place), None

    return jax.lax.scan(block_into, kernel, pairs)[0]


_STATIC = ("sizes", "outputs", "form", "mirrored", "same", "shape", "dtype")
_compiled = partial(jax.jit, static_argnames=_STATIC)
_write = _compiled(_written, donate_argnames="kernel")
_write_traced = _compiled(_written)  # under vmap a result may be larger than what is given away


def _block(count: int, outputs: int) -> int:
    least, most = (max(1, math.ceil(rows / outputs)) for rows in (LEAST_ROWS, MOST_ROWS))
    return min(max(math.ceil(count / BLOCKS), least), most, count)


def _cut(group: Factors, start, size: int) -> Factors:
    # XLA copies a slice from a traced place even where it is everything there is.
    def cut(a):
        return a if len(a) == size else jax.lax.dynamic_slice_in_dim(a, start, size)

    return jax.tree.map(cut, group)
