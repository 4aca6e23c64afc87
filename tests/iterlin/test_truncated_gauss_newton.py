"""Truncated Gauss-Newton for any convex loss, and damping that adapts, against dense algebra."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import LevenbergMarquardt, Status, gauss_newton, losses, truncated_gauss_newton
from problems import bare, dense, flat, network, quartic
from refusals import refused
from scipy.optimize import minimize


def posed(loss, examples=8):
    f, params, x, y = network((3, 4, 3), examples=examples)
    return f, params, x, jnp.argmax(y, 1) if loss is losses.cross_entropy else y


@partial(jax.jit, static_argnums=0)
def derivatives(loss, outputs, y):
    return jax.hessian(loss)(outputs, y), jax.grad(loss)(outputs, y)


def dense_equations(f, params, x, y, loss, damping):
    """J^T H J + damping I and J^T g."""
    rows, outputs = dense(f, params, x), f(params, x)
    hessian, gradient = derivatives(loss, outputs, y)
    hessian = np.asarray(hessian).reshape(2 * [len(rows)])
    matrix = rows.T @ hessian @ rows + damping * np.eye(rows.shape[1])
    return matrix, rows.T @ np.ravel(gradient)


ONE_STEP = {"max_steps": 1, "tolerance": 0.0}
solve = partial(truncated_gauss_newton, **ONE_STEP)


@pytest.mark.parametrize(
    ("loss", "beta"), [(losses.squared_error, 0.7), (losses.cross_entropy, 1e-10), (quartic, 0.5)]
)
def test_a_step_solves_the_dense_equations_to_its_certificate(loss, beta):
    f, params, x, y = posed(loss)
    solution = solve(f, params, x, y, loss=loss, damping=0.2, beta=beta)
    matrix, gradient = dense_equations(f, params, x, y, loss, 0.2)
    step = flat(solution.params) - flat(params)
    measured = np.linalg.norm(matrix @ step + gradient) / np.linalg.norm(gradient)
    certificate = float(solution.history["certificate"][0])
    assert certificate <= beta * (1 + 1e-6)
    assert certificate == pytest.approx(measured, rel=1e-5, abs=1e-14)
    assert float(solution.history["gradient_norm"][0]) == pytest.approx(np.linalg.norm(gradient))
    after = float(loss(f(solution.params, x), y))
    assert float(solution.history["loss"][1]) == pytest.approx(after, rel=1e-12)
    if beta < 1e-8:
        np.testing.assert_allclose(step, np.linalg.solve(matrix, -gradient), atol=1e-8)


def test_a_damped_step_on_the_mean_squared_error_is_damped_gauss_newton():
    f, params, x, y = network()
    expected = gauss_newton(f, params, x, y, damping=0.3, max_steps=2, tolerance=0.0)
    loss = losses.mean(losses.squared_error, over="examples")
    run = partial(solve, f, params, x, y, loss=loss, beta=1e-12, max_steps=2)
    moved = jax.jit(lambda damping: run(damping=damping).params)(0.3 / 4)
    np.testing.assert_allclose(flat(moved), flat(expected.params), atol=1e-10)


def test_cross_entropy_is_minimised_as_scipy_does():
    """Where labels that no plane tells apart leave a minimum."""
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(30, 2))), jnp.asarray(rng.integers(0, 3, size=30))
    run = {"beta": 1e-3, "max_steps": 50, "tolerance": 1e-13, "loss": losses.cross_entropy}
    start = jnp.zeros((2, 3))
    solution = solve(lambda p, x: x @ p, start, x, y, damping=LevenbergMarquardt(), **run)
    assert int(solution.status) == Status.CONVERGED
    value = jax.jit(jax.value_and_grad(lambda p: losses.cross_entropy(x @ p.reshape(2, 3), y)))
    settings = {"jac": True, "method": "BFGS", "options": {"gtol": 1e-10}}
    oracle = minimize(lambda p: tuple(map(np.asarray, value(p))), np.zeros(6), **settings)
    np.testing.assert_allclose(flat(solution.params), oracle.x, atol=1e-5)


def poisson(outputs, targets):
    """-log p(targets) of the log-rates `outputs`, but for a constant: it may be negative."""
    return jnp.sum(jnp.exp(outputs) - targets * outputs)


@pytest.mark.parametrize(("start", "damping"), [(0.0, LevenbergMarquardt()), (1.0, 1e-3)])
def test_a_loss_that_may_be_negative_is_minimised(start, damping):
    y = jnp.array([[5.0], [9.0]])
    run = {"beta": 0.1, "max_steps": 50, "tolerance": 1e-12, "loss": poisson, "damping": damping}
    problem = (lambda p, x: x @ p, jnp.full((2, 1), start), jnp.eye(2), y)
    solution = solve(*problem, **run)
    assert int(solution.status) == Status.CONVERGED
    np.testing.assert_allclose(solution.params, np.log(y), atol=1e-4)
    least = float(poisson(jnp.log(y), y))
    early = solve(*problem, **run, target_loss=0.9 * least)
    assert int(early.status) == Status.CONVERGED
    assert least < early.history["loss"][early.num_steps] <= 0.9 * least
    assert int(early.num_steps) < int(solution.num_steps)


def test_inner_steps_stand_in_for_a_damping():
    run = {"loss": losses.cross_entropy, "beta": 1e-3, "max_steps": 2, "max_inner_steps": 3}
    history = solve(*posed(losses.cross_entropy), **run).history
    assert float(history["loss"][2]) < float(history["loss"][0])
    np.testing.assert_array_equal(history["inner_steps"][:2], 3)
    assert np.all(history["certificate"][:2] > 1e-3)


def test_every_step_follows_the_rule_of_its_gain():
    """Damping, acceptance and parameters, step by step, by dense algebra."""
    f, params, x, y = network((2, 3, 1), examples=8)
    y = 6 * y

    def loss(outputs, targets):  # the rule knows no unit: of any size
        return losses.squared_error(outputs, targets) / 1000

    run = {"damping": LevenbergMarquardt(1e-6), "loss": loss, "beta": 1e-12, "max_steps": 12}
    whole = solve(f, params, x, y, **run)
    history = {name: np.asarray(values)[:12] for name, values in whole.history.items()}
    damping, growth, theta = 1e-6, 2, params
    value = jax.jit(lambda p: loss(f(p, x), y))
    verdicts = []
    for t in range(12):
        matrix, gradient = dense_equations(f, theta, x, y, loss, damping)
        step = np.linalg.solve(matrix, -gradient)
        model = matrix - damping * np.eye(len(step))
        predicted = -(gradient @ step + 0.5 * step @ model @ step)
        unravel = jax.flatten_util.ravel_pytree(theta)[1]
        there = unravel(jnp.asarray(flat(theta) + step))
        before, after = float(value(theta)), float(value(there))
        accepted = after <= before
        assert history["loss"][t] == pytest.approx(before, rel=1e-5)
        assert history["damping"][t] == pytest.approx(damping, rel=1e-4)
        assert history["accepted"][t] == accepted
        gain = (before - after) / float(predicted)
        if accepted:
            damping, growth, theta = damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), 2, there
        else:
            damping, growth = damping * growth, 2 * growth
        verdicts.append(accepted)
    assert verdicts[:2] == [False, False]
    np.testing.assert_allclose(flat(whole.params), flat(theta), rtol=1e-4)


def adapted(function, start, *, y=0.0, damping=1e-6, **run):
    """Of one equation f(p) = y, by Gauss-Newton with a damping that adapts."""
    settings = {"damping": LevenbergMarquardt(damping), "tolerance": 0.0, "independent": False}
    f, x = lambda p, _: function(p)[None], jnp.zeros((1, 1))
    return gauss_newton(f, jnp.asarray([start]), x, x + y, **settings | run)


def test_steps_out_of_the_domain_are_rejected():
    """Newton's method on log steps from beyond e to below 0: divergence without a damping."""
    solution = adapted(jnp.log, 20.0, damping=1e-8, max_steps=60, target_loss=1e-20)
    assert float(solution.history["accepted"][0]) == 0
    np.testing.assert_allclose(solution.params, [1.0], rtol=1e-9)


def test_a_minimum_is_kept_and_settles():
    """At the minimum to rounding nothing decreases: rejections end in a step of no change."""
    solution = adapted(jnp.arctan, 0.0, y=1.0, damping=1.0, max_steps=200)
    assert int(solution.status) == Status.CONVERGED
    np.testing.assert_allclose(solution.params, [math.tan(1.0)], rtol=1e-7)


ENTROPY = {"loss": losses.cross_entropy}
PROBLEM = {"beta": 0.5} | ONE_STEP
PROBLEM |= dict(zip(("f", "params", "x", "y"), posed(losses.cross_entropy), strict=True))
test_bad_input_is_refused = refused(
    lambda settings: bare(truncated_gauss_newton)(**PROBLEM | settings),
    (ENTROPY, "needs a positive damping.*or max_inner_steps"),
    (ENTROPY | {"damping": 1.0, "target_loss": -1.0}, "target_loss must be"),
    ({"loss": "mse", "damping": 1.0}, "loss must be a function of .*, got 'mse'"),
)
