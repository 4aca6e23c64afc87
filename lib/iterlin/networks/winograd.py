"""Winograd's fast convolution, for the four outputs that a 2 x 2 pool takes together.

Two neighbouring outputs of a filter of r numbers take 2 r multiplications of r + 1 inputs. With
sums of the inputs and sums of the filter in place of these, r + 1 multiplications are enough
(Winograd 1980, Arithmetic Complexity of Computations). Along both axes the four outputs of a block
take (r + 1)^2 matrix products and not 4 r^2: 36 and not 100 for 5 x 5 filters (Lavin & Gray 2016,
Fast algorithms for convolutional neural networks). The sums take time, too, so that the method is
faster only if there are many channels.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The method multiplies polynomials by their values at these points and at infinity. Rounding errors
# grow with the spread of the points' powers. These points had the smallest errors of those tried
# for 5 x 5 filters.
POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
MAX_FILTER_SIZE = len(POINTS)
# Sums of so few terms as those of one row are computed anew by each reader, with other rounding:
# then a pool's derivative may find no entry that equals the largest.
MIN_FILTER_SIZE = 2


@functools.cache
def transforms(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the matrices A (2, r + 1), B (r + 1, r + 1) and G (r + 1, r) for filters of r numbers.

    The two outputs of a filter g (r,) on inputs d (r + 1,) are ``A @ ((G @ g) * (B @ d))``. Raises
    ValueError if r is not between 2 and 5.

    >>> outputs, inputs, filters = transforms(2)
    >>> d, g = np.array([1.0, 2.0, 3.0]), np.array([10.0, 1.0])
    >>> print(outputs @ ((filters @ g) * (inputs @ d)))
    [12. 23.]
    """
    if not MIN_FILTER_SIZE <= size <= MAX_FILTER_SIZE:
        sizes = f"{MIN_FILTER_SIZE} to {MAX_FILTER_SIZE}"
        raise ValueError(f"filters must have {sizes} rows and columns, got {size}")
    powers = _powers(size + 1, size)
    # The product of two polynomials, by evaluation at the points and interpolation, is linear in
    # each of them. The transpose of that linear map is the correlation with a filter.
    inputs = np.linalg.inv(powers).T
    scale = np.exp2(np.rint(np.log2(np.abs(inputs).max(1, keepdims=True))))
    return _powers(2, size).T, inputs / scale, _powers(size, size) * scale


def _powers(count: int, size: int) -> np.ndarray:
    """Return the matrix (size + 1, count) that evaluates polynomials of `count` coefficients.

    The rows are the first `size` points, and infinity, where the last coefficient remains.
    """
    finite = np.vander(POINTS[:size], count, increasing=True)
    return np.vstack([finite, np.eye(count)[-1:]])


def corner_outputs(
    x: Float[Array, "N H W C"], filters: Float[Array, "k l C O"]
) -> Float[Array, "N h w 4 O"]:
    """Return the VALID cross-correlation with stride 1, grouped into 2 x 2 blocks of outputs.

    An odd last row or column of outputs is left out. Raises ValueError if a filter has not 2 to 5
    rows and columns.
    """
    rows, columns = filters.shape[:2]
    height, width = (x.shape[1] - rows + 1) // 2, (x.shape[2] - columns + 1) // 2
    row_outputs, row_inputs, row_filters = transforms(rows)
    column_outputs, column_inputs, column_filters = transforms(columns)

    # Inputs: transform along the rows of the image, then along its columns.
    image_rows = x.reshape(*x.shape[:2], -1)
    strips = jnp.stack(_combinations(row_inputs, _windows(image_rows, 1, rows, height)))
    # Without the barrier XLA computes the strips anew for each column. Merging the leading axes
    # makes long loops.
    strips = jax.lax.optimization_barrier(strips).reshape(-1, len(x), height, *x.shape[2:])
    tiles = jnp.stack(_combinations(column_inputs, _windows(strips, 3, columns, width)), axis=1)

    transformed = [
        entry
        for row in _combinations(row_filters, _unstacked(filters))
        for entry in _combinations(column_filters, _unstacked(row))
    ]
    products = jax.lax.dot_general(
        tiles.reshape(len(transformed), -1, x.shape[-1]),
        jnp.stack(transformed),
        (((2,), (1,)), ((0,), (0,))),
    )
    products = products.reshape(rows + 1, columns + 1, len(x), height, width, -1)
    corners = [
        corner
        for row in _combinations(row_outputs, _unstacked(products))
        for corner in _combinations(column_outputs, _unstacked(row))
    ]
    return jnp.stack(corners, axis=3)


def _windows(x, axis: int, size: int, count: int) -> list[Array]:
    """Return the size + 1 entries of `count` windows with stride 2, one array for each entry."""
    pairs = count + size // 2
    missing = [(0, max(0, 2 * pairs - side) if i == axis else 0) for i, side in enumerate(x.shape)]
    x = jax.lax.slice_in_dim(jnp.pad(x, missing), 0, 2 * pairs, axis=axis)
    even_and_odd = _unstacked(x.reshape(*x.shape[:axis], pairs, 2, *x.shape[axis + 1 :]), axis + 1)
    return [
        jax.lax.slice_in_dim(even_and_odd[i % 2], i // 2, i // 2 + count, axis=axis)
        for i in range(size + 1)
    ]


def _unstacked(x, axis: int = 0) -> list[Array]:
    """Return the slices along an axis.

    They are made by one split, whose transpose is one copy. The transpose of separate slices would
    be a sum of as many arrays of the size of x.
    """
    parts = jax.lax.split(x, (1,) * x.shape[axis], axis)
    return [jax.lax.squeeze(part, (axis,)) for part in parts]


def _combinations(matrix: np.ndarray, terms: Sequence[Array]) -> list[Array]:
    """Return one linear combination of the arrays for each row of the matrix, without its zeros."""
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
