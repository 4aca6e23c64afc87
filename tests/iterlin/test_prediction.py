"""Predictions from kernels alone are those of the linearised network, trained."""

import math

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from iterlin import eigenmodes, empirical_ntk, linearize, predict
from problems import bare, network, normal
from refusals import refused


@pytest.mark.parametrize(
    ("training", "settings"),
    [
        *(("flow", {"time": time}) for time in (0.3, math.inf)),
        ("descent", {"step_size": 0.02, "num_steps": 31}),
        ("damped", {"damping": 0.3}),
    ],
)
def test_prediction_is_that_of_the_linearised_network_after_training(training, settings):
    f, params, x, y = network((3, 5, 2), examples=4)
    x_new = normal(3, 3)
    trained = getattr(eigenmodes(f, params, x, y), training)(**settings)
    expected = linearize(f, params)(trained, x_new)
    kernel_dd, kernel_td = empirical_ntk(f, params, x), empirical_ntk(f, params, x_new, x)
    settings = {"outputs": f(params, x), "test_outputs": f(params, x_new)} | settings
    np.testing.assert_allclose(predict(kernel_dd, y, kernel_td, **settings), expected, atol=1e-9)


def gram(examples, tests, rank, seed):
    """K_dd and K_td of a random linear model of that rank."""
    rows = np.random.default_rng(seed).normal(size=(examples + tests, rank))
    kernel = rows @ rows.T
    return jnp.asarray(kernel[:examples, :examples]), jnp.asarray(kernel[examples:, :examples])


SHAPES = drawn.shapes([(4, 3, 6), (5, 2, 3)], 6, 4, 8)


@given(SHAPES, st.floats(0.01, 20.0), st.sampled_from([0.0, 0.4]), st.integers(0, 99))
@drawn.at_most(6)
def test_prediction_solves_the_equation_of_the_flow_at_any_rank(shape, time, damping, seed):
    kernel_dd, kernel_td = gram(*shape, seed)
    y = jnp.asarray(np.random.default_rng(seed + 1).normal(size=shape[0]))
    # theta - theta_s = J^T a, da/dt = -(K a - y) - damping a, by a matrix exponential.
    n = shape[0]
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = -np.asarray(kernel_dd) - damping * np.eye(n)
    system[:n, n] = y
    a = scipy.linalg.expm(time * system)[:n, n]
    found = predict(kernel_dd, y, kernel_td, time=time, damping=damping)
    np.testing.assert_allclose(found, np.asarray(kernel_td) @ a, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_a_singular_kernel_is_inverted_on_its_range(scale):
    kernel_dd, kernel_td = (scale * kernel for kernel in gram(40, 2, 3, 0))
    y = jnp.arange(40.0)
    expected = np.asarray(kernel_td) @ np.linalg.pinv(kernel_dd, rcond=1e-12) @ y
    np.testing.assert_allclose(predict(kernel_dd, y, kernel_td), expected, atol=1e-10)


@pytest.mark.parametrize(
    "settings",
    [{"damping": 1e-5}, {"time": 1e5}, {"step_size": 0.5, "num_steps": 200_000}, {}],
    ids=str,
)
def test_small_eigenvalues_count_in_float32(settings):
    """Down to 100 times the rounding errors of the largest, which is 1."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(100, 100)))[0]
    kernel = (basis * np.geomspace(1, 1e-5, 100)) @ basis.T
    y = jnp.asarray(rng.normal(size=100))
    exact = predict(jnp.asarray(kernel), y, jnp.asarray(kernel), **settings)
    kernel = jnp.asarray(kernel, jnp.float32)
    np.testing.assert_allclose(predict(kernel, y, kernel, **settings), exact, atol=0.02)


def test_one_kernel_for_all_outputs_is_the_full_one_with_nothing_between_them():
    kernel_dd, kernel_td = gram(4, 3, 6, 1)
    y = jnp.asarray(np.random.default_rng(2).normal(size=(4, 2, 3)))
    eye = jnp.eye(6).reshape(2, 3, 2, 3)
    full_dd, full_td = (jnp.einsum("ij,opqr->ijopqr", k, eye) for k in (kernel_dd, kernel_td))
    settings = {"time": 0.7, "outputs": 0.5 * y, "test_outputs": 2.0}
    scalar = predict(kernel_dd, y, kernel_td, **settings)
    assert scalar.shape == (3, 2, 3)
    np.testing.assert_allclose(predict(full_dd, y, full_td, **settings), scalar, atol=1e-12)
    settings["outputs"] = 0.5 * y[:, 1, 2]
    alone = predict(kernel_dd, y[:, 1, 2], kernel_td, **settings)
    np.testing.assert_allclose(scalar[:, 1, 2], alone, atol=1e-12)


def test_many_times_by_vmap_and_derivatives():
    kernel_dd, kernel_td = gram(4, 3, 6, 1)
    y = jnp.arange(4.0)
    at = jax.jit(lambda time: predict(kernel_dd, y, kernel_td, time=time))
    times = jnp.asarray([0.0, 0.5, 2.0])
    np.testing.assert_allclose(jax.vmap(at)(times), list(map(at, times)), atol=1e-13)
    # The equation of the flow at the start: du/dt = K_td y.
    np.testing.assert_allclose(jax.jacfwd(at)(0.0), kernel_td @ y, atol=1e-12)


GIVEN = {"kernel_dd": jnp.eye(4), "y": jnp.ones((4, 2)), "kernel_td": jnp.ones((3, 4))}
test_bad_input_is_refused = refused(
    lambda change: bare(predict)(**GIVEN | change),
    ({"kernel_dd": jnp.ones((4, 3))}, r"kernel_dd must have shape \(4, 4\) or \(4, 4, 2, 2\)"),
    ({"kernel_dd": jnp.eye(4).at[0, 1].set(1.0)}, "kernel_dd must be symmetric"),
    ({"kernel_dd": -jnp.eye(4)}, "an entry of its diagonal is negative"),
    ({"y": jnp.asarray(1.0)}, "y must lead with the examples"),
    ({"test_outputs": jnp.ones((4, 2))}, r"test_outputs must be .* \(3, 2\), got \(4, 2\)"),
    ({"time": -1.0}, "time must be non-negative, got"),
    ({"step_size": 0.1}, "step_size and num_steps go together, got"),
    ({"step_size": 0.1, "num_steps": 3, "time": 2.0}, "give either a time or step_size"),
)


def test_ridge_regression_has_the_derivative_in_its_damping():
    kernel_dd, kernel_td = gram(4, 2, 3, seed=0)
    y = normal(4)

    def ridge(damping):
        return kernel_td @ jnp.linalg.solve(kernel_dd + damping * jnp.eye(4), y)

    found = jax.jacobian(lambda damping: predict(kernel_dd, y, kernel_td, damping=damping))(0.3)
    np.testing.assert_allclose(found, jax.jacobian(ridge)(0.3), rtol=1e-9)
