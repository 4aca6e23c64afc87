"""Singular value decomposition of tall and of wide matrices, blocked to stay in cache."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# For matrices less elongated than this ratio LAPACK's own reduction is as fast. Beyond it, LAPACK's
# QR of the long side reads all of the matrix from memory once for each column.
ASPECT = 16


def thin_svd(matrix: Float[Array, "M N"]) -> tuple[Array, Array, Array]:
    """Compute the thin singular value decomposition, as `jnp.linalg.svd(full_matrices=False)`.

    A long matrix is first reduced by a blocked QR decomposition (TSQR; Demmel, Grigori, Hoemmen &
    Langou 2012). No Gram matrix is formed, so singular values are accurate to eps s_max.

    Args:
        matrix: A matrix (M, N).

    Returns:
        U (M, R), the singular values s (R,) and V^T (R, N), with R = min(M, N).
    """
    rows, columns = matrix.shape
    if rows < columns:
        left, values, right = thin_svd(matrix.T)
        return right.T, values, left.T
    if rows < ASPECT * columns:
        left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
        return left, values, right
    q, r = blocked_qr(matrix)
    left, values, right = jnp.linalg.svd(r)
    return q @ left, values, right


def blocked_qr(matrix: Float[Array, "M N"]) -> tuple[Array, Array]:
    """Compute the QR decomposition of a tall matrix block by block (TSQR).

    Blocks of rows that fit into cache are decomposed first, then their stacked R factors.

    Args:
        matrix: A matrix (M, N) with M >= N.

    Returns:
        Q (M, N) with orthonormal columns and the upper triangular R (N, N).
    """
    rows, columns = matrix.shape
    block = ASPECT * columns
    count = -(-rows // block)
    padded = jnp.pad(matrix, ((0, count * block - rows), (0, 0)))
    q, r = jnp.linalg.qr(padded.reshape(count, block, columns))
    q_outer, r_outer = jnp.linalg.qr(r.reshape(count * columns, columns))
    q = q @ q_outer.reshape(count, columns, columns)
    return q.reshape(count * block, columns)[:rows], r_outer
