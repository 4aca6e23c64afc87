"""The thin decomposition of long matrices is right, also where they are ill-conditioned."""

import drawn
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin.linearise.decomposition import ASPECT, blocked_qr, thin_svd
from problems import with_singular_values

SHAPES = [(5, 5), (3, 200), (200, 3), (1, 40), (2, 2 * ASPECT), (2, 2 * ASPECT + 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_factors_are_those_of_lapack(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    left, values, right = (np.asarray(a) for a in thin_svd(jnp.asarray(matrix)))
    rank = min(shape)
    assert left.shape == (shape[0], rank)
    assert values.shape == (rank,)
    assert right.shape == (rank, shape[1])
    np.testing.assert_allclose(left * values @ right, matrix, atol=1e-13)
    np.testing.assert_allclose(left.T @ left, np.eye(rank), atol=1e-13)
    np.testing.assert_allclose(right @ right.T, np.eye(rank), atol=1e-13)
    np.testing.assert_allclose(values, np.linalg.svd(matrix, compute_uv=False), rtol=1e-12)


@pytest.mark.parametrize("shape", [(4, 300), (300, 4), (4, 6)])
def test_small_singular_values_survive(shape):
    """Nothing is squared: 1e-10 beside 1 is found to eps, which a Gram matrix would lose."""
    values = np.array([1, 1e-3, 1e-7, 1e-10])
    matrix = with_singular_values(values, shape[0], 1, shape[1])[:, 0]
    np.testing.assert_allclose(thin_svd(matrix)[1], values, atol=1e-15, rtol=1e-5)


@given(
    drawn.shapes(
        [(1, 0, 0), (3, 0, 8), (2, 1, 5), (4, 2, 0), (5, 3, 37)],
        st.integers(1, 5),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    st.integers(0, 99),
)
def test_blocked_qr_is_a_qr(shape, seed):
    columns, blocks, extra = shape
    rows = max(columns, columns * ASPECT * blocks + extra)
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    q, r = blocked_qr(jnp.asarray(matrix))
    assert q.shape == matrix.shape
    np.testing.assert_allclose(q @ r, matrix, atol=1e-13)
    np.testing.assert_allclose(q.T @ q, np.eye(columns), atol=1e-13)
    np.testing.assert_array_equal(np.tril(r, -1), 0)
