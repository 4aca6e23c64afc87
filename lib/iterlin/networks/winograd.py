"""Convolution by Winograd's short products, for the outputs that a 2 x 2 pool takes together.

A row of r + 1 numbers has two products with a filter of r: 2 r multiplications, or r + 1 of sums of
these (S. Winograd, Arithmetic Complexity of Computations, 1980). Along both axes (Lavin and Gray,
CVPR 2016) the four outputs of a block take (r + 1)^2 matrix products where 4 r^2 were: with
5 x 5 kernels 36 instead of 100. What is left is sums of slices of the image, in which there is
nothing to gain for few channels.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Where the polynomials of the derivation are multiplied, with infinity: rounding grows with the
# spread of their powers, and these have the smallest that was found for 5 x 5.
POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
LARGEST = len(POINTS)


@functools.cache
def transforms(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices A (2, r + 1), B (r + 1, r + 1) and G (r + 1, r) for filters g of r = `size`.

    The two products of g with the numbers d[0..r] are ``A @ ((G @ g) * (B @ d))``.
    Raises ValueError for a size that there are not enough points for.

    >>> outputs, inputs, filters = transforms(2)
    >>> d, g = np.array([1.0, 2.0, 3.0]), np.array([10.0, 1.0])
    >>> print(outputs @ ((filters @ g) * (inputs @ d)))
    [12. 23.]
    """
    if not 1 <= size <= LARGEST:
        raise ValueError(f"kernels of 1 to {LARGEST} rows and columns have transforms, got {size}")
    powers = _powers(size + 1, size)
    # Multiplying polynomials at the points and interpolating is linear in each; its transpose is
    # the correlation.
    inputs = np.linalg.inv(powers).T
    scale = np.exp2(np.rint(np.log2(np.abs(inputs).max(1, keepdims=True))))
    return _powers(2, size).T, inputs / scale, _powers(size, size) * scale


def _powers(count: int, size: int) -> np.ndarray:
    """Polynomials of `count` coefficients at the first points and at infinity, where the last
    coefficient is left: (size + 1, count)."""
    finite = np.vander(POINTS[:size], count, increasing=True)
    return np.vstack([finite, np.eye(count)[-1:]])


def corner_outputs(
    x: Float[Array, "N H W C"], kernel: Float[Array, "k l C O"]
) -> Float[Array, "N h w 4 O"]:
    """VALID cross-correlation with stride 1, the four outputs of each 2 x 2 block together.

    An odd last row or column of outputs is left out. Raises ValueError as `transforms`.
    """
    sizes = rows, columns = kernel.shape[:2]
    height, width = ((side - size + 1) // 2 for side, size in zip(x.shape[1:3], sizes, strict=True))
    (of_rows, in_rows, filter_rows), (of_columns, in_columns, filter_columns) = map(
        transforms, sizes
    )
    across = _sums(in_rows, _every_other(x.reshape(*x.shape[:2], -1), 1, rows, height))
    # Kept from being made anew for each column; and rows are long loops where columns are short.
    across = jax.lax.optimization_barrier(jnp.stack(across)).reshape(
        -1, len(x), height, *x.shape[2:]
    )
    tiles = jnp.stack(_sums(in_columns, _every_other(across, 3, columns, width)), axis=1)
    filters = [
        entry
        for row in _sums(filter_rows, _unstacked(kernel))
        for entry in _sums(filter_columns, _unstacked(row))
    ]
    products = jax.lax.dot_general(
        tiles.reshape(len(filters), -1, x.shape[-1]),
        jnp.stack(filters),
        (((2,), (1,)), ((0,), (0,))),
    )
    products = products.reshape(rows + 1, columns + 1, len(x), height, width, -1)
    corners = [
        corner
        for row in _sums(of_rows, _unstacked(products))
        for corner in _sums(of_columns, _unstacked(row))
    ]
    return jnp.stack(corners, axis=3)


def _every_other(x, axis: int, size: int, count: int) -> list[Array]:
    """The first to the last of each window of size + 1, where `count` windows are 2 apart."""
    pairs = count + size // 2
    missing = [(0, max(0, 2 * pairs - side) if i == axis else 0) for i, side in enumerate(x.shape)]
    x = jax.lax.slice_in_dim(jnp.pad(x, missing), 0, 2 * pairs, axis=axis)
    even_and_odd = _unstacked(x.reshape(*x.shape[:axis], pairs, 2, *x.shape[axis + 1 :]), axis + 1)
    return [
        jax.lax.slice_in_dim(even_and_odd[i % 2], i // 2, i // 2 + count, axis=axis)
        for i in range(size + 1)
    ]


def _unstacked(x, axis: int = 0) -> list[Array]:
    """The slices along an axis, by a split: its transpose is one copy, where that of as many
    slices is a sum of as many arrays of the whole's size."""
    parts = jax.lax.split(x, (1,) * x.shape[axis], axis)
    return [jax.lax.squeeze(part, (axis,)) for part in parts]


def _sums(matrix: np.ndarray, terms: Sequence[Array]) -> list[Array]:
    """The matrix's product with a list of arrays, a list; zeros are left out."""
    return [
        functools.reduce(
            jnp.add,
            [
                term if factor == 1 else float(factor) * term
                for factor, term in zip(row, terms, strict=True)
                if factor
            ],
        )
        for row in matrix
    ]
