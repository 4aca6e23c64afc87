"""Decompositions, Krylov methods and estimates against dense linear algebra."""

from functools import partial

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin import ggn_product, hutchinson, losses
from iterlin.linearise.decomposition import ASPECT, blocked_qr, thin_svd
from iterlin.linearise.krylov import conjugate_gradients, power_iteration
from iterlin.linearise.parameters import partition
from problems import bare, dense, flat, normal, paired, with_singular_values
from refusals import refused


@pytest.mark.parametrize(
    "shape", [(5, 5), (3, 200), (200, 3), (1, 40), (2, 2 * ASPECT), (2, 2 * ASPECT + 1)]
)
def test_factors_are_those_of_lapack(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    left, values, right = (np.asarray(a) for a in thin_svd(jnp.asarray(matrix)))
    rank = min(shape)
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
    drawn.shapes([(1, 0, 0), (3, 0, 8), (2, 1, 5), (4, 2, 0), (5, 3, 37)], 5, (0, 3), (0, 40)),
    st.integers(0, 99),
)
def test_blocked_qr_is_a_qr(shape, seed):
    columns, blocks, extra = shape
    rows = max(columns, columns * ASPECT * blocks + extra)
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    q, r = blocked_qr(jnp.asarray(matrix))
    np.testing.assert_allclose(q @ r, matrix, atol=1e-13)
    np.testing.assert_allclose(q.T @ q, np.eye(columns), atol=1e-13)
    np.testing.assert_array_equal(np.tril(r, -1), 0)


def symmetric(eigenvalues, seed=0):
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(len(eigenvalues), len(eigenvalues))))[0]
    return jnp.asarray(q * np.asarray(eigenvalues) @ q.T)


def solve(matrix, b, *, tolerance=1e-13, max_steps=100):
    """A s = b for a symmetric A."""
    product, inner = lambda v: matrix @ v, lambda a, b: a @ b
    settings = {"tolerance": tolerance, "max_steps": max_steps, "inner": inner}
    return conjugate_gradients(b, image=product, **settings)


def test_stops_at_the_tolerance_and_no_sooner():
    matrix, b = symmetric(np.geomspace(1, 1e3, 30)), jnp.ones(30)
    found, steps = solve(matrix, b, tolerance=1e-3)
    assert np.linalg.norm(b - matrix @ found) / np.linalg.norm(b) <= 1e-3
    before, _ = solve(matrix, b, tolerance=1e-3, max_steps=int(steps) - 1)
    assert np.linalg.norm(b - matrix @ before) / np.linalg.norm(b) > 1e-3


def test_steps_are_as_many_as_differing_eigenvalues_or_as_allowed():
    found, steps = solve(symmetric([1.0, 2.0]), jnp.zeros(2))
    assert int(steps) == 0
    assert not found.any()
    matrix = symmetric([2.0, 2.0, 7.0, 7.0, 7.0])
    assert int(solve(matrix, jnp.arange(1.0, 6.0), tolerance=1e-10)[1]) == 2
    assert int(solve(symmetric(np.geomspace(1, 1e6, 20)), jnp.ones(20), max_steps=3)[1]) == 3


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_power_iteration_finds_the_largest_eigenvalue_from_below(shape):
    size = int(np.prod(shape))
    matrix = symmetric(np.linspace(0.0, 4.0, size))

    def product(v):
        return (matrix @ v.reshape(-1)).reshape(shape)

    value, direction = power_iteration(product, jnp.ones(shape), 300)
    np.testing.assert_allclose(value, 4.0, rtol=1e-10)
    assert float(value) <= 4.0 + 1e-12
    np.testing.assert_allclose(product(direction), 4.0 * direction, atol=1e-6)
    assert float(power_iteration(product, jnp.ones(shape), 2)[0]) < 4.0
    assert float(power_iteration(jnp.zeros_like, jnp.ones(shape), 5)[0]) == 0


KEY = jax.random.key(0)


def within(found, errors, expected, sigmas=4.0):
    assert np.all(np.abs(found - expected) <= sigmas * errors + 1e-12)


def test_the_trace_and_diagonal_of_a_curvature_matrix_of_trained_parameters():
    f, params, x, y = paired((2,))
    trainable = lambda path: path.startswith("in")  # noqa: E731
    moving, _ = partition(params, trainable)
    product = ggn_product(f, params, x, y, losses.squared_error, trainable=trainable)
    found = jax.jit(lambda key: hutchinson(product, moving, key=key, num_samples=400))(KEY)
    rows = dense(lambda moving, x: f({**params, "in": moving["in"]}, x), moving, x)
    matrix = rows.T @ rows
    within(found.trace, found.trace_error, np.trace(matrix))
    within(flat(found.diagonal), flat(found.diagonal_error), np.diag(matrix))
    off = matrix - np.diag(np.diag(matrix))
    error = np.sqrt(2 / 400) * np.linalg.norm(off)  # of random signs
    assert float(found.trace_error) == pytest.approx(error, rel=0.2)
    assert found.diagonal["out"] is None


def test_a_diagonal_matrix_is_found_exactly():
    scale = jnp.arange(1.0, 6.0)
    found = hutchinson(lambda v: scale * v, scale, key=KEY, num_samples=2)
    assert (float(found.trace), float(found.trace_error)) == (15.0, 0.0)
    np.testing.assert_array_equal(found.diagonal, scale)


def test_half_precision_is_summed_in_single():
    rows = normal(8, 3).astype(jnp.bfloat16)
    matrix = rows @ rows.T
    found = hutchinson(lambda v: matrix @ v, rows[:, 0], key=KEY, num_samples=2000)
    within(found.trace, found.trace_error, np.trace(np.asarray(matrix, np.float64)))


ESTIMATED, V = partial(bare(hutchinson), key=KEY), jnp.ones(3)
test_bad_input_is_refused = refused(
    lambda call: call(),
    (lambda: bare(power_iteration)(jnp.zeros_like, V, 0), "iterations must be a positive integer,"),
    (lambda: ESTIMATED(jnp.sin, V, num_samples=1), "num_samples must be at least 2"),
    (lambda: ESTIMATED(jnp.sin, {}, num_samples=2), "like holds no array"),
    (lambda: ESTIMATED(jnp.sin, jnp.arange(3), num_samples=2), "like must hold .*, got int"),
    (lambda: ESTIMATED(lambda v: v[:, None], V, num_samples=2), r"shape \(3,\), got \(3, 1\)"),
)
