"""Assemble the empirical kernel from groups of examples whose factors fit into memory."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.kernels.factors import PAIRWISE, Factors, multiply_factors
from iterlin.linearise import examples
from iterlin.linearise.validation import is_traced

# A block holds an eighth of a group, so that little more than half of a symmetric kernel is
# computed. A block of fewer rows makes matrix products slow, and one of more rows leaves the cache.
BLOCKS = 8
LEAST_ROWS, MOST_ROWS = 128, 1024

# Permutations of the axes of a block of `multiply_factors` that give its axes in the kernel, and
# those of its mirror image below the diagonal of a symmetric kernel.
LAYOUTS = {
    "full": ((0, 2, 1, 3), (2, 0, 3, 1)),
    "matrix": ((0, 1, 2, 3), (2, 3, 0, 1)),
    "diagonal": ((0, 1, 2), (1, 0, 2)),
    "trace": ((0, 1), (1, 0)),
}


def assemble_kernel(
    factors_of: Callable[[PyTree, Array | np.ndarray], Factors],
    first: tuple[PyTree, Array | np.ndarray],
    second: tuple[PyTree, Array | np.ndarray] | None,
    group: int,
    form: str,
    dtype,
) -> Array:
    """Compute the kernel between two datasets, with the factors of two groups alive at a time.

    factors_of computes the factors of at most `group` examples, for outputs given by index. The
    datasets are N1 examples with the indices of o1 outputs, and N2 with those of o2; a second of
    None means the first. Returns (N1, N2, o1, o2) for the form "full", (N1, o1, N2, o2) for
    "matrix", (N1, N2, o) for "diagonal", or (N1, N2) for "trace".
    """
    symmetric = second is None
    sides = first, (first if symmetric else second)
    (n1, o1), (n2, o2) = ((examples.num_examples(x), len(outputs)) for x, outputs in sides)
    shapes = {"full": (n1, n2, o1, o2), "matrix": (n1, o1, n2, o2), "diagonal": (n1, n2, o1)}
    starts = [even_blocks(n, group) for n in (n1, n2)]
    rows = o1 if form in PAIRWISE else 1
    (begins1, size1), (begins2, size2) = (even_blocks(n, _block_size(n, rows)) for _, n in starts)
    blocks = [(i, j) for i in begins1 for j in begins2]
    groups1, groups2 = (len(begins) for begins, _ in starts)
    # Successive pairs share a group, whose factors are computed once for both.
    if symmetric:
        order = [(i, j) for i in range(groups1) for j in (i, *range(groups1 - 1, i, -1))]
    else:
        back = groups2 - 1
        order = [(i, back - j if i % 2 else j) for i in range(groups1) for j in range(groups2)]
    kernel = jnp.zeros(shapes.get(form, (n1, n2)), dtype)
    alive: dict[tuple[int, int], Factors] = {}
    for i, j in order:
        needed = (0, i), (0 if symmetric else 1, j)
        alive = {key: value for key, value in alive.items() if key in needed}
        for side, index in needed:
            if (side, index) not in alive:
                x, outputs = sides[side]
                begins, size = starts[side]
                x = examples.take_slice(x, begins[index], begins[index] + size)
                alive[side, index] = factors_of(x, outputs)
        same = symmetric and i == j
        pairs = [(a, b) for a, b in blocks if not same or a <= b]
        write = _write_traced if any(map(is_traced, jax.tree.leaves(alive))) else _write
        kernel = write(
            kernel,
            *(alive[key] for key in needed),
            np.asarray([starts[0][0][i], starts[1][0][j]], np.uint32),
            np.asarray(pairs, np.uint32),  # JAX would wrap signed indices
            sizes=(size1, size2),
            form=form,
            mirrored=symmetric,
        )
    return kernel


def even_blocks(count: int, largest: int) -> tuple[list[int], int]:
    """Cover a range by blocks of the same size; the last may overlap the one before.

    Returns their starts and their size, which is at most `largest`.
    """
    number = math.ceil(count / largest)
    size = math.ceil(count / number)
    return [min(index * size, count - size) for index in range(number)], size


def _write_group(kernel, first, second, origin, pairs, *, sizes, form, mirrored):
    """Write the kernel between two groups into the kernel at `origin`, block by block.

    pairs: where the blocks begin in both groups. sizes: of a block.
    """
    size1, size2 = sizes
    layout, mirror = LAYOUTS[form]
    rows, columns = layout.index(0), layout.index(len(layout) // 2)

    def block_into(kernel, pair):
        i, j = pair
        parts = (_take_block(first, i, size1), _take_block(second, j, size2))
        block = multiply_factors(*parts, form)
        start = [np.uint32(0)] * kernel.ndim
        start[rows], start[columns] = origin[0] + i, origin[1] + j
        shape = list(kernel.shape)
        shape[rows], shape[columns] = size1, size2
        block = jnp.asarray(block, kernel.dtype)
        if block.ndim == 0:  # f uses no parameter, so there are no factors
            block = jnp.zeros([shape[axis] for axis in np.argsort(layout)], kernel.dtype)
        if mirrored:
            swapped = list(start)
            swapped[rows], swapped[columns] = start[columns], start[rows]
            block = jax.lax.optimization_barrier(block)  # XLA would compute it once for each write
            kernel = jax.lax.dynamic_update_slice(kernel, block.transpose(mirror), swapped)
        return jax.lax.dynamic_update_slice(kernel, block.transpose(layout), start), None

    return jax.lax.scan(block_into, kernel, pairs)[0]


_jit = partial(jax.jit, static_argnames=("sizes", "form", "mirrored"))
_write = _jit(_write_group, donate_argnames="kernel")
_write_traced = _jit(_write_group)  # under vmap the result may be larger than the donated kernel


def _block_size(count: int, outputs: int) -> int:
    """Return the number of examples in a block, for a group of `count` examples."""
    least, most = (max(1, math.ceil(rows / outputs)) for rows in (LEAST_ROWS, MOST_ROWS))
    return min(max(math.ceil(count / BLOCKS), least), most, count)


def _take_block(group: Factors, start, size: int) -> Factors:
    # XLA copies a slice with a traced start even if it is the whole array.
    def cut(a):
        return a if len(a) == size else jax.lax.dynamic_slice_in_dim(a, start, size)

    return jax.tree.map(cut, group)
