"""The singular value decomposition of long matrices, by blocks that stay in cache."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Below this ratio of the sides LAPACK's own reduction is as fast; above it, its QR of the long
# side goes through memory once a column.
ASPECT = 16


def thin_svd(matrix: Float[Array, "M N"]) -> tuple[Array, Array, Array]:
    """U (M, R), s (R,), V^T (R, N) with R = min(M, N), as `jnp.linalg.svd(full_matrices=False)`.

    Long matrices are first reduced by a blocked QR (TSQR: Demmel, Grigori, Hoemmen & Langou 2012),
    which keeps Householder's accuracy: nothing is squared, so singular values are right to
    eps s_max.
    """
    rows, columns = matrix.shape
    if rows < columns:
        left, values, right = thin_svd(matrix.T)
        return right.T, values, left.T
    if rows < ASPECT * columns:
        return jnp.linalg.svd(matrix, full_matrices=False)
    q, r = blocked_qr(matrix)
    left, values, right = jnp.linalg.svd(r)
    return q @ left, values, right


def blocked_qr(matrix: Float[Array, "M N"]) -> tuple[Array, Array]:
    """Q (M, N), R (N, N) of a tall matrix: QR of blocks that stay in cache, then of their R's."""
    rows, columns = matrix.shape
    block = ASPECT * columns
    count = -(-rows // block)
    padded = jnp.pad(matrix, ((0, count * block - rows), (0, 0)))
    q, r = jnp.linalg.qr(padded.reshape(count, block, columns))
    q_outer, r_outer = jnp.linalg.qr(r.reshape(count * columns, columns))
    q = q @ q_outer.reshape(count, columns, columns)
    return q.reshape(count * block, columns)[:rows], r_outer
