"""Estimated traces and diagonals lie within their standard errors of the dense ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import ggn_product, ntk_product
from iterlin.linearise.hutchinson import hutchinson
from iterlin.linearise.parameters import partition
from iterlin.training import losses
from problems import bare, compilations, dense, flat, paired

KEY = jax.random.key(0)


def within(found, errors, expected, sigmas=4.0):
    assert np.all(np.abs(found - expected) <= sigmas * errors + 1e-12)


def test_the_trace_and_diagonal_of_a_kernel():
    f, params, x, _ = paired((2, 3))
    kernel = dense(f, params, x) @ dense(f, params, x).T
    product, outputs = ntk_product(f, params, x), f(params, x)
    found = hutchinson(product, outputs, key=KEY, num_samples=400)
    within(found.trace, found.trace_error, np.trace(kernel))
    within(flat(found.diagonal), flat(found.diagonal_error), np.diag(kernel))
    off = kernel - np.diag(np.diag(kernel))
    error = np.sqrt(2 / 400) * np.linalg.norm(off)  # of random signs
    assert float(found.trace_error) == pytest.approx(error, rel=0.2)
    assert found.diagonal.shape == outputs.shape


def test_the_trace_and_diagonal_of_a_curvature_matrix_of_trained_parameters():
    f, params, x, y = paired((2,))
    trainable = lambda path: path.startswith("in")  # noqa: E731
    moving, _ = partition(params, trainable)
    product = ggn_product(f, params, x, y, losses.squared_error, trainable=trainable)
    found = jax.jit(lambda key: hutchinson(product, moving, key=key, num_samples=200))(KEY)
    rows = dense(lambda moving, x: f({**params, "in": moving["in"]}, x), moving, x)
    within(found.trace, found.trace_error, np.sum(rows**2))
    within(flat(found.diagonal), flat(found.diagonal_error), np.sum(rows**2, 0))
    assert found.diagonal["out"] is None


def test_a_diagonal_matrix_is_found_exactly():
    scale = jnp.arange(1.0, 6.0)
    found = hutchinson(lambda v: scale * v, scale, key=KEY, num_samples=2)
    assert (float(found.trace), float(found.trace_error)) == (15.0, 0.0)
    np.testing.assert_array_equal(found.diagonal, scale)


def test_one_sample_has_no_error():
    with pytest.raises(ValueError, match="num_samples must be at least 2"):
        bare(hutchinson)(lambda v: v, jnp.ones(2), key=KEY, num_samples=1)


def test_half_precision_is_summed_in_single():
    rows = jax.random.normal(KEY, (8, 3)).astype(jnp.bfloat16)
    matrix = rows @ rows.T
    found = hutchinson(lambda v: matrix @ v, rows[:, 0], key=KEY, num_samples=2000)
    within(found.trace, found.trace_error, np.trace(np.asarray(matrix, np.float64)))


def test_products_of_another_shape_are_refused_and_a_second_call_compiles_nothing():
    with pytest.raises(ValueError, match=r"product\(v\) must have shape \(3,\), got \(3, 1\)"):
        bare(hutchinson)(lambda v: v[:, None], jnp.ones(3), key=KEY, num_samples=2)
    for scale, compiles in ((2.0, True), (3.0, False)):
        weights = jnp.full(3, scale)
        with compilations() as programs:
            found = hutchinson(lambda v, w=weights: w * v, weights, key=KEY, num_samples=5)
        assert float(found.trace) == 3 * scale
        assert compiles or not programs
