"""Truncated Gauss-Newton for any convex loss, and damping that adapts, against dense algebra."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import gauss_newton, losses, truncated_gauss_newton
from iterlin.curvature.gauss_newton import Status
from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from problems import affine, affine_problem, bare, flat, network
from scipy.optimize import minimize


def quartic(outputs, targets):
    """A convex loss that the library does not know."""
    return jnp.sum((outputs - targets) ** 4)


def posed(loss, examples=8):
    f, params, x, y = network((3, 4, 3), examples=examples)
    return f, params, x, jnp.argmax(y, 1) if loss is losses.cross_entropy else y


@partial(jax.jit, static_argnames=("f", "loss"))
def derivatives(f, params, x, y, loss):
    """J, H and g."""
    vector, unravel = jax.flatten_util.ravel_pytree(params)
    outputs = f(params, x)
    rows = jax.jacfwd(lambda p: f(unravel(p), x).reshape(-1))(vector)
    return rows, jax.hessian(loss)(outputs, y), jax.grad(loss)(outputs, y)


def dense_equations(f, params, x, y, loss, damping):
    """J^T H J + damping I and J^T g."""
    rows, hessian, gradient = map(np.asarray, derivatives(f, params, x, y, loss))
    hessian = hessian.reshape(2 * [len(rows)])
    matrix = rows.T @ hessian @ rows + damping * np.eye(rows.shape[1])
    return matrix, rows.T @ gradient.ravel()


# Any convex loss.


@pytest.mark.parametrize("loss", [losses.cross_entropy, quartic])
@pytest.mark.parametrize("beta", [0.5, 1e-10])
def test_a_step_solves_the_dense_equations_to_its_certificate(loss, beta):
    f, params, x, y = posed(loss)
    solution = truncated_gauss_newton(
        f, params, x, y, loss=loss, damping=0.2, beta=beta, max_steps=1, tolerance=0.0
    )
    matrix, gradient = dense_equations(f, params, x, y, loss, 0.2)
    step = flat(solution.params) - flat(params)
    measured = np.linalg.norm(matrix @ step + gradient) / np.linalg.norm(gradient)
    certificate = float(solution.history["certificate"][0])
    assert certificate <= beta * (1 + 1e-6)
    assert certificate == pytest.approx(measured, rel=1e-5, abs=1e-14)
    assert float(solution.history["gradient_norm"][0]) == pytest.approx(np.linalg.norm(gradient))
    assert float(solution.history["loss"][1]) == pytest.approx(
        float(loss(f(solution.params, x), y)), rel=1e-12
    )
    if beta < 1e-8:
        np.testing.assert_allclose(step, np.linalg.solve(matrix, -gradient), atol=1e-8)


def test_a_damped_step_on_the_squared_error_is_damped_gauss_newton():
    f, params, x, y = network()
    run = {"damping": 0.3, "max_steps": 2, "tolerance": 0.0}
    expected = gauss_newton(f, params, x, y, **run)
    moved = jax.jit(  # with a damping that is traced, too
        lambda d: truncated_gauss_newton(f, params, x, y, beta=1e-12, **run | {"damping": d}).params
    )(run["damping"])
    np.testing.assert_allclose(flat(moved), flat(expected.params), atol=1e-10)
    # Also where the squared error is asked for as the mean of its N = 4 examples.
    run["damping"] /= 4
    found = truncated_gauss_newton(
        f, params, x, y, beta=1e-12, loss=losses.mean(losses.squared_error), **run
    )
    np.testing.assert_allclose(flat(found.params), flat(expected.params), atol=1e-10)


def softmax_regression(examples=30):
    """A convex problem with a minimum: labels that no plane tells apart."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(examples, 2)))
    y = jnp.asarray(rng.integers(0, 3, size=examples))
    return lambda params, x: x @ params, jnp.zeros((2, 3)), x, y


@pytest.mark.parametrize("damping", [LevenbergMarquardt(), 1e-3], ids=["adaptive", "fixed"])
def test_cross_entropy_is_minimised_as_scipy_does(damping):
    f, params, x, y = softmax_regression()
    solution = truncated_gauss_newton(
        f,
        params,
        x,
        y,
        loss=losses.cross_entropy,
        damping=damping,
        beta=1e-3,
        max_steps=50,
        tolerance=1e-13,
    )
    assert int(solution.status) == Status.CONVERGED

    @jax.jit
    @jax.value_and_grad
    def value(flat_params):
        return losses.cross_entropy(x @ flat_params.reshape(2, 3), y)

    oracle = minimize(
        lambda p: tuple(np.asarray(v) for v in value(p)),
        np.zeros(6),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-10},
    )
    np.testing.assert_allclose(flat(solution.params), oracle.x, atol=1e-5)


def poisson(outputs, targets):
    """-log p(targets) of the log-rates `outputs`, but for a constant: it may be negative."""
    return jnp.sum(jnp.exp(outputs) - targets * outputs)


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("damping", [LevenbergMarquardt(), 1e-3], ids=["adaptive", "fixed"])
def test_a_loss_that_may_be_negative_is_minimised(start, damping):
    y = jnp.array([[5.0], [9.0]])
    run = {"beta": 0.1, "max_steps": 50, "tolerance": 1e-12, "loss": poisson, "damping": damping}
    problem = (lambda p, x: x @ p, jnp.full((2, 1), start), jnp.eye(2), y)
    solution = truncated_gauss_newton(*problem, **run)
    assert int(solution.status) == Status.CONVERGED
    np.testing.assert_allclose(solution.params, np.log(y), atol=1e-4)
    least = float(poisson(jnp.log(y), y))
    early = truncated_gauss_newton(*problem, **run, target_loss=0.9 * least)
    assert int(early.status) == Status.CONVERGED
    assert least < early.history["loss"][early.num_steps] <= 0.9 * least
    assert int(early.num_steps) < int(solution.num_steps)


def test_inner_steps_stand_in_for_a_damping():
    f, params, x, y = posed(losses.cross_entropy)
    solution = truncated_gauss_newton(
        f,
        params,
        x,
        y,
        loss=losses.cross_entropy,
        beta=1e-3,
        max_steps=2,
        tolerance=0.0,
        max_inner_steps=3,
    )
    assert float(solution.history["loss"][2]) < float(solution.history["loss"][0])
    np.testing.assert_array_equal(solution.history["inner_steps"][:2], 3)


def test_targets_of_several_parts_have_the_precision_of_the_parameters_but_for_labels():
    f, params, x, y = posed(losses.cross_entropy)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    parts = {"labels": y, "weights": np.linspace(0.5, 2.0, 8)}

    def weighted(outputs, targets):
        chances = jax.nn.log_softmax(outputs)
        return -jnp.sum(targets["weights"] * chances[jnp.arange(8), targets["labels"]])

    run = {"damping": 0.2, "beta": 0.5, "max_steps": 2, "tolerance": 0.0}
    solution = truncated_gauss_newton(f, params, x, parts, loss=weighted, **run)
    leaves = [*jax.tree.leaves(solution.params), *solution.history.values()]
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}
    assert solution.history["loss"][2] < solution.history["loss"][0]


# Damping that adapts.


def rule_by_hand(damping, growth, gain, accepted):
    if accepted:
        return damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), 2
    return damping * growth, 2 * growth


def test_the_damping_doubles_ever_more_until_a_step_is_accepted():
    rule = LevenbergMarquardt()
    damping, found = rule.begin(jnp.float64), []
    for gain in (None, None, None, 1.0, None, 0.5, 0.25, 0.75):  # of an accepted step
        accepted = jnp.asarray(gain is not None)
        damping = rule.after(damping, jnp.asarray(gain or 0.0), accepted)
        found.append((float(damping.value), float(damping.growth)))
    values = np.cumprod([2, 4, 8, 1 / 3, 2, 1, 1.125, 0.875])
    np.testing.assert_allclose(found, np.stack([values, [4, 8, 16, 2, 4, 2, 2, 2]], 1))


def test_inner_steps_end_at_ten_times_the_smaller_side_unless_told():
    params, x, y = affine_problem("wide")  # 6 outputs, 11 parameters
    run = {"beta": 1e-300, "max_steps": 1, "tolerance": 0.0}
    solution = truncated_gauss_newton(affine, params, x, y, **run)
    assert int(solution.history["inner_steps"][0]) == 60


def test_every_step_follows_the_rule_of_its_gain():
    """Damping, acceptance and parameters, step by step, by dense algebra."""
    f, params, x, y = network((2, 3, 1), examples=8)
    y = 6 * y

    def loss(outputs, targets):  # the rule knows no unit: of any size
        return losses.squared_error(outputs, targets) / 1000

    whole = truncated_gauss_newton(
        f,
        params,
        x,
        y,
        damping=LevenbergMarquardt(1e-6),
        loss=loss,
        beta=1e-12,
        max_steps=12,
        tolerance=0.0,
    )
    history = {name: np.asarray(values)[:12] for name, values in whole.history.items()}
    damping, growth, theta = 1e-6, 2, params
    value = jax.jit(lambda p: loss(f(p, x), y))
    rejected = 0
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
        damping, growth = rule_by_hand(damping, growth, gain, accepted)
        theta = there if accepted else theta
        rejected += not accepted
    assert rejected > 0
    np.testing.assert_allclose(flat(whole.params), flat(theta), rtol=1e-4)


@pytest.mark.parametrize("solver", ["svd", "cholesky"])
def test_dense_solvers_take_the_same_adaptive_steps(solver):
    f, params, x, y = network((2, 3, 1), examples=8)
    run = {"damping": LevenbergMarquardt(0.1), "max_steps": 6, "tolerance": 0.0}
    found = gauss_newton(f, params, x, 6 * y, solver=solver, **run)
    expected = truncated_gauss_newton(f, params, x, 6 * y, beta=1e-12, **run)
    for name in ("loss", "damping", "accepted"):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-6)
    np.testing.assert_allclose(flat(found.params), flat(expected.params), rtol=1e-6)


def arctan(p, _):
    return jnp.arctan(p)[None]


def test_a_rejected_step_is_counted_and_moves_nothing():
    """Full steps on arctan from 2 overshoot ever further; damped ones go to the root."""
    nothing = jnp.zeros((1, 1))
    run = {"damping": LevenbergMarquardt(1e-6), "tolerance": 0.0, "independent": False}
    first = gauss_newton(arctan, jnp.asarray([2.0]), nothing, nothing, max_steps=1, **run)
    assert int(first.num_steps) == 1
    assert int(first.status) == Status.MAX_STEPS
    assert float(first.history["accepted"][0]) == 0
    np.testing.assert_array_equal(first.params, [2.0])
    np.testing.assert_array_equal(first.history["loss"][0], first.history["loss"][1])
    whole = gauss_newton(
        arctan, jnp.asarray([2.0]), nothing, nothing, max_steps=50, target_loss=1e-20, **run
    )
    assert int(whole.status) == Status.CONVERGED
    assert np.all(np.diff(whole.history["loss"][: int(whole.num_steps) + 1]) <= 0)


def test_steps_out_of_the_domain_are_rejected():
    """Newton's method on log steps from beyond e to below 0: divergence without a damping."""
    nothing = jnp.zeros((1, 1))
    solution = gauss_newton(
        lambda p, _: jnp.log(p)[None],
        jnp.asarray([20.0]),
        nothing,
        nothing,
        damping=LevenbergMarquardt(1e-8),
        max_steps=60,
        tolerance=0.0,
        target_loss=1e-20,
        independent=False,
    )
    assert int(solution.status) == Status.CONVERGED
    np.testing.assert_allclose(solution.params, [1.0], rtol=1e-9)
    assert float(solution.history["accepted"][0]) == 0


def test_a_minimum_is_kept_and_settles():
    """At the minimum to rounding nothing decreases: rejections end in a step of no change."""
    nothing = jnp.zeros((1, 1))
    solution = gauss_newton(
        arctan,
        jnp.asarray([0.0]),
        nothing,
        nothing + 1.0,
        damping=LevenbergMarquardt(),
        max_steps=200,
        tolerance=0.0,
        independent=False,
    )
    assert int(solution.status) == Status.CONVERGED
    np.testing.assert_allclose(solution.params, [math.tan(1.0)], rtol=1e-7)


# Bad input.


@pytest.fixture(scope="module")
def problem():
    return posed(losses.cross_entropy)


RUN = {"beta": 0.5, "max_steps": 1, "tolerance": 0.0}


def test_another_loss_needs_a_damping_or_a_bound_on_inner_steps(problem):
    with pytest.raises(ValueError, match=r"needs a positive damping.*or max_inner_steps"):
        truncated_gauss_newton(*problem, loss=losses.cross_entropy, **RUN)


@pytest.mark.parametrize("damping", [-1.0, math.nan, math.inf, "1", True])
def test_bad_damping_is_refused(problem, damping):
    with pytest.raises(ValueError, match=r"damping must be .*non-negative.*got"):
        bare(truncated_gauss_newton)(*problem, loss=losses.cross_entropy, damping=damping, **RUN)


@pytest.mark.parametrize(
    ("loss", "target", "message"),
    [
        (losses.cross_entropy, -1.0, "finite and non-negative"),
        (quartic, math.nan, "a finite real number"),
        (quartic, math.inf, "a finite real number"),
        (quartic, "1", "a finite real number"),
    ],
)
def test_a_bad_target_loss_is_refused(loss, target, message):
    with pytest.raises(ValueError, match=f"target_loss must be {message}, got"):
        bare(truncated_gauss_newton)(
            *posed(loss), loss=loss, damping=1.0, target_loss=target, **RUN
        )


@pytest.mark.parametrize("start", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_start_of_the_damping_is_refused(start):
    with pytest.raises(ValueError, match="start of the damping must be finite and positive, got"):
        LevenbergMarquardt(start)


def test_a_loss_of_many_numbers_and_targets_that_it_refuses(problem):
    f, params, x, y = problem
    with pytest.raises(ValueError, match=r"loss must be a function of .*, got 'mse'"):
        bare(truncated_gauss_newton)(f, params, x, y, loss="mse", damping=1.0, **RUN)
    with pytest.raises(ValueError, match="loss must return one number"):
        truncated_gauss_newton(f, params, x, y, loss=lambda o, y: o, damping=1.0, **RUN)
    with pytest.raises(ValueError, match="targets must be labels of 3 classes, 0 to 2: got 3"):
        truncated_gauss_newton(f, params, x, y + 3, loss=losses.cross_entropy, damping=1.0, **RUN)
    with pytest.raises(ValueError, match="integer labels"):
        truncated_gauss_newton(f, params, x, 1.0 * y, loss=losses.cross_entropy, damping=1.0, **RUN)


def test_outputs_that_are_no_array_are_refused(problem):
    f, params, x, y = problem
    with pytest.raises(ValueError, match="f must return one array"):
        truncated_gauss_newton(lambda p, x: {"a": f(p, x)}, params, x, y, **RUN)


@pytest.mark.parametrize("transform", ["jit", "map"])
def test_it_can_be_compiled_and_mapped_with_its_default_damping(transform):
    f, params, x, y = network((3, 4, 3), examples=8)

    def solved(p):
        return truncated_gauss_newton(f, p, x, y, beta=0.1, max_steps=3, tolerance=1e-9).params

    if transform == "jit":
        found = jax.jit(solved)(params)
    else:
        several = jax.tree.map(lambda leaf: leaf[None], params)
        found = jax.tree.map(lambda leaf: leaf[0], jax.lax.map(solved, several))
    np.testing.assert_allclose(flat(found), flat(solved(params)), rtol=1e-10)
