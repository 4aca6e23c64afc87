"""Gauss-Newton against certified and published answers, and dense linear algebra."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin import LevenbergMarquardt, Status, every, gauss_newton, losses, truncated_gauss_newton
from problems import affine, affine_problem, bare, dense, flat, network, paired, single
from refusals import refused
from roads import train

# NIST Statistical Reference Datasets, nonlinear regression: data, second start, certified values.
MISRA1A = (
    [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8,
     378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0],
    [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02,
     44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78],
)  # fmt: skip
THURBER = (
    [-3.067, -2.981, -2.921, -2.912, -2.840, -2.797, -2.702, -2.699, -2.633, -2.481, -2.363, -2.322,
     -1.501, -1.460, -1.274, -1.212, -1.100, -1.046, -0.915, -0.714, -0.566, -0.545, -0.400, -0.309,
     -0.109, -0.103, 0.010, 0.119, 0.377, 0.790, 0.963, 1.006, 1.115, 1.572, 1.841, 2.047, 2.200],
    [80.574, 84.248, 87.264, 87.195, 89.076, 89.608, 89.868, 90.101, 92.405, 95.854, 100.696,
     101.060, 401.672, 390.724, 567.534, 635.316, 733.054, 759.087, 894.206, 990.785, 1090.109,
     1080.914, 1122.643, 1178.351, 1260.531, 1273.514, 1288.339, 1327.543, 1353.863, 1414.509,
     1425.208, 1421.384, 1442.962, 1464.350, 1468.705, 1447.894, 1457.628],
)  # fmt: skip
KOWALIK_OSBORNE = (
    [4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625],
    [0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246],
)


def misra1a(b, x):
    return b[0] * (1 - jnp.exp(-b[1] * x))


def thurber(b, x):
    top = b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3
    return top / (1 + b[4] * x + b[5] * x**2 + b[6] * x**3)


def kowalik_osborne(b, x):
    return b[0] * (x**2 + b[1] * x) / (x**2 + b[2] * x + b[3])


def regression(model, data, start):
    x, y = (jnp.asarray(column)[:, None] for column in data)
    return model, jnp.asarray(start), x, y, True


def rosenbrock(p, x):
    """Residuals that are one function of the parameters, not of examples: x is ignored."""
    return jnp.stack([10 * (p[1] - p[0] ** 2), 1 - p[0]])[:, None]


# name: (problem, sum of squared residuals, parameters)
PUBLISHED = {
    "NIST Misra1a": (
        regression(misra1a, MISRA1A, [250.0, 0.0005]),
        1.2455138894e-01,
        [2.3894212918e02, 5.5015643181e-04],
    ),
    "NIST Thurber": (
        regression(thurber, THURBER, [1300.0, 1500.0, 500.0, 75.0, 1.0, 0.4, 0.05]),
        5.6427082397e03,
        [1288.1397, 1491.07925, 583.238369, 75.4166443, 0.966295029, 0.397972858, 0.0497272973],
    ),
    "Kowalik-Osborne": (
        regression(kowalik_osborne, KOWALIK_OSBORNE, [0.19, 0.19, 0.12, 0.13]),
        3.075056e-4,
        [0.192807, 0.191282, 0.123057, 0.136062],
    ),
    "Rosenbrock": (
        (rosenbrock, jnp.asarray([-1.2, 1.0]), jnp.zeros((2, 1)), jnp.zeros((2, 1)), False),
        0,
        [1.0, 1.0],
    ),
}
ONE_STEP = {"max_steps": 1, "tolerance": 0.0}


def check(solution, sum_of_squares, parameters):
    assert int(solution.status) == Status.CONVERGED
    loss = float(solution.history["loss"][solution.num_steps])
    assert loss == pytest.approx(sum_of_squares / 2, rel=1e-6, abs=1e-20)
    np.testing.assert_allclose(solution.params, parameters, rtol=1e-5)


PRECISE = {"max_steps": 100, "tolerance": 1e-12}


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *((name, "svd") for name in PUBLISHED),
        ("NIST Misra1a", "truncated"),
        ("NIST Misra1a", "cholesky"),
        ("Rosenbrock", "truncated"),
    ],
)
def test_published_minima_are_found(name, solver):
    (f, start, x, y, independent), *known = PUBLISHED[name]
    solve = {
        "svd": partial(gauss_newton, independent=independent),
        "cholesky": partial(gauss_newton, independent=independent, solver="cholesky", damping=1e-6),
        "truncated": partial(truncated_gauss_newton, beta=1e-6),
    }[solver]
    check(solve(f, start, x, y, target_loss=1e-21, **PRECISE), *known)


def test_a_damping_that_adapts_finds_a_minimum_that_full_steps_miss():
    """From the harder of NIST's two starts; the losses never rise."""
    (f, _, x, y, _), *known = PUBLISHED["NIST Thurber"]
    start = jnp.asarray([1000.0, 1000.0, 400.0, 40.0, 0.7, 0.3, 0.03])
    solution = gauss_newton(f, start, x, y, damping=LevenbergMarquardt(1e-2), **PRECISE)
    check(solution, *known)
    steps = int(solution.num_steps)
    assert np.all(np.diff(solution.history["loss"][: steps + 1]) <= 0)
    full = gauss_newton(f, start, x, y, **PRECISE)
    last = float(full.history["loss"][full.num_steps])
    assert not last < 1.1 * float(solution.history["loss"][steps])


@pytest.mark.parametrize(
    ("solver", "widths"),
    [("svd", (3, 5, 2)), ("cholesky", (3, 5, 2)), ("cholesky", (1, 1))],
    ids=["svd", "cholesky, wide", "cholesky, tall"],
)
def test_one_step_is_penalised_least_squares(solver, widths):
    f, params, x, y = network(widths, examples=5)
    matrix, residual = dense(f, params, x), np.ravel(y - f(params, x))
    damping = 0.03
    augmented = np.vstack([matrix, math.sqrt(damping) * np.eye(matrix.shape[1])])
    target = np.concatenate([residual, np.zeros(matrix.shape[1])])
    step = np.linalg.lstsq(augmented, target, rcond=None)[0]
    solution = gauss_newton(f, params, x, y, damping=damping, solver=solver, **ONE_STEP)
    np.testing.assert_allclose(flat(solution.params), flat(params) + step, atol=1e-10)
    assert float(solution.history["step_norm"][0]) == pytest.approx(np.linalg.norm(step), rel=1e-8)
    gradient = np.linalg.norm(matrix.T @ residual)
    assert float(solution.history["gradient_norm"][0]) == pytest.approx(gradient, rel=1e-9)


@pytest.mark.parametrize("case", ["tall", "deficient wide"])
def test_affine_problem_is_solved_in_one_minimum_norm_step(case):
    params, x, y = affine_problem(case)
    matrix, residual = np.asarray(x).reshape(-1, params.size), np.ravel(y - affine(params, x))
    expected = params + np.linalg.pinv(matrix, rcond=1e-12) @ residual
    exact = gauss_newton(affine, params, x, y, **ONE_STEP)
    np.testing.assert_allclose(exact.params, expected, atol=1e-12)
    truncated = truncated_gauss_newton(affine, params, x, y, beta=1e-13, **ONE_STEP)
    np.testing.assert_allclose(truncated.params, expected, atol=1e-10)


@pytest.mark.parametrize(
    "solve",
    [partial(gauss_newton, damping=1.0), partial(truncated_gauss_newton, beta=0.3)],
    ids=["svd", "truncated"],
)
def test_histories_belong_to_their_iterates(solve):
    f, params, x, y = network((2, 2, 1), seed=4, examples=12)
    solution = solve(f, params, x, y, max_steps=50, tolerance=1e-3)
    steps, history = int(solution.num_steps), solution.history
    for name, values in history.items():
        recorded = steps + (name == "loss")
        assert values.shape == (51,)
        assert np.all(np.isfinite(values[:recorded]))
        assert np.all(np.isnan(values[recorded:]))
    loss = np.asarray(history["loss"])[: steps + 1]
    final = 0.5 * np.sum((np.asarray(f(solution.params, x)) - np.asarray(y)) ** 2)
    assert loss[-1] == pytest.approx(final, rel=1e-12, abs=1e-25)
    assert int(solution.status) == Status.CONVERGED
    settled = np.abs(np.diff(loss)) <= 1e-3 * loss[:-1]
    assert settled.tolist() == [False] * (steps - 1) + [True]


@pytest.mark.parametrize(("period", "transform"), [(1, lambda run: run), (400, jax.jit)])
def test_a_period_is_its_explicit_steps(period, transform):
    """Also where the period is traced and the network is not."""
    f, params, x, y = network()
    settings = {"step_size": 0.05, "max_steps": 2, "tolerance": 0.0}
    whole = transform(lambda k: gauss_newton(f, params, x, y, period=k, **settings))(period)
    steps = {"optimizer": optax.sgd(0.05), "schedule": every(period), "num_steps": 2 * period}
    state, _ = train(f, params, (x, y), loss=losses.squared_error, **steps)
    np.testing.assert_allclose(flat(whole.params), flat(state.params), atol=1e-9)
    # The certificate: how much of J^T z one period leaves, of the linearisation it trains.
    matrix, z = dense(f, params, x), np.ravel(f(params, x) - y)
    gradient = np.linalg.norm(matrix.T @ z)
    assert float(whole.history["gradient_norm"][0]) == pytest.approx(gradient, rel=1e-9)
    left = z
    for _ in range(period):
        left = left - 0.05 * matrix @ (matrix.T @ left)
    measured = np.linalg.norm(matrix.T @ left) / np.linalg.norm(matrix.T @ z)
    assert float(whole.history["certificate"][0]) == pytest.approx(measured, rel=1e-6)


NOTHING = jnp.zeros((1, 1))


@pytest.mark.parametrize(
    ("start", "status", "end"),
    [
        (3.0, Status.DIVERGED, 3.0),  # Newton's method steps to below 0: the start is kept
        (2.5, Status.CONVERGED, 1.0),
        (jnp.nan, Status.DIVERGED, jnp.nan),
    ],
)
def test_a_run_that_leaves_the_domain_keeps_its_last_finite_iterate(start, status, end):
    run = {"max_steps": 20, "tolerance": 0.0, "target_loss": 1e-20}
    logarithm = lambda p, x: jnp.log(p)[None, :] + 0 * x  # noqa: E731
    solution = gauss_newton(logarithm, jnp.asarray([start]), NOTHING, NOTHING, **run)
    assert int(solution.status) == status
    np.testing.assert_allclose(solution.params, [end], rtol=1e-9)
    if status == Status.DIVERGED:
        assert int(solution.num_steps) == (0 if np.isnan(start) else 1)


def test_a_run_ends_at_its_target():
    params, x, _ = affine_problem("wide")
    run = {"max_steps": 5, "tolerance": 0.0}
    solution = gauss_newton(affine, params, x, affine(params, x), target_loss=1e-20, **run)
    assert (int(solution.status), int(solution.num_steps)) == (Status.CONVERGED, 0)
    np.testing.assert_array_equal(solution.params, params)
    assert list(Status) == [0, 1, 2]  # the numbers that users have saved


def test_runs_can_be_vmapped_over_starts_and_dampings():
    f, _, x, y = network()
    params = [network(seed=seed)[1] for seed in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)

    def run(params, damping):
        return gauss_newton(f, params, x, y, damping=damping, max_steps=5, tolerance=1e-2)

    many = jax.jit(jax.vmap(run))(stacked, jnp.asarray([0.1, 10.0]))
    for index, damping in enumerate([0.1, 10.0]):
        one = run(params[index], damping)
        assert int(many.num_steps[index]) == int(one.num_steps)
        assert int(many.status[index]) == int(one.status)
        chosen = jax.tree.map(lambda leaf, index=index: leaf[index], many.params)
        np.testing.assert_allclose(flat(chosen), flat(one.params), atol=1e-10)


SOLVERS = {
    "svd": lambda *a, **k: gauss_newton(*a, damping=0.1, **k),
    "closed form": lambda *a, **k: gauss_newton(*a, step_size=0.01, period=50, **k),
    "truncated": lambda *a, **k: truncated_gauss_newton(*a, beta=0.1, **k),
}
every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS.keys())


@every_solver
def test_pytrees_outputs_of_any_rank_and_fixed_parameters(solve):
    """The same run with inputs side by side, outputs in one row each, fixed parameters in f."""
    f, params, x, y = paired((2, 2))
    params["count"] = jnp.asarray(3)  # integers are never trained
    run = {"max_steps": 2, "tolerance": 0.0}
    trainable = {"in": False, "out": True, "count": True}
    whole = solve(f, params, x, y, trainable=trainable, **run)

    def plain(last, x):
        x = {"a": x[:, :3], "b": x[:, 3:]}
        return f({**params, "out": last}, x).reshape(len(x["a"]), -1)

    side_by_side = jnp.concatenate([x["a"], x["b"]], 1)
    expected = solve(plain, params["out"], side_by_side, y.reshape(5, -1), **run)
    np.testing.assert_allclose(whole.params["out"], expected.params, rtol=1e-9)
    np.testing.assert_allclose(whole.history["loss"], expected.history["loss"], rtol=1e-9)
    assert all(whole.params["in"][name] is leaf for name, leaf in params["in"].items())
    assert whole.params["count"] is params["count"]


@every_solver
def test_the_precision_is_that_of_the_parameters(solve):
    f, params, x, y = network()
    for targets in (y, y.astype(int)):
        solution = solve(f, single(params), x, targets, max_steps=2, tolerance=0.0)
        assert int(solution.num_steps) == 2
        leaves = [*jax.tree.leaves(solution.params), *solution.history.values()]
        assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


@every_solver
def test_parameters_of_two_types_take_the_step_of_one(solve):
    f, params, x, y = network()
    mixed = [{"bias": layer["bias"], "weight": single(layer["weight"])} for layer in params]
    found, expected = (solve(f, start, x, y, **ONE_STEP) for start in (mixed, params))
    assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype, found.params, mixed))
    np.testing.assert_allclose(flat(found.params), flat(expected.params), rtol=1e-3, atol=1e-3)


TRUNCATED = partial(truncated_gauss_newton, beta=0.5)
EXACT = partial(gauss_newton)
PERIODIC = partial(gauss_newton, step_size=0.1, period=2)
WIDE = affine_problem("wide")
GIVEN = dict(zip(("f", "params", "x", "y"), (affine, *WIDE), strict=True)) | ONE_STEP
test_bad_input_is_refused = refused(
    lambda solve, change: bare(solve.func)(**GIVEN | solve.keywords | change),
    (EXACT, {"damping": -1.0}, "damping must be"),
    (EXACT, {"solver": "cholesky"}, "damping of the cholesky solver must be"),
    (EXACT, {"solver": "lu"}, "solver 'lu'"),
    (EXACT, {"max_steps": 2.5}, "max_steps must be"),
    (EXACT, {"memory_limit": 1}, "memory_limit of 1 bytes"),
    (EXACT, {"tolerance": np.zeros(2)}, "tolerance must be one number"),
    (EXACT, {"target_loss": np.zeros(2)}, "target_loss must be one number"),
    (TRUNCATED, {"beta": 1.0}, "beta must"),
    (TRUNCATED, {"beta": np.full(2, 0.1)}, "beta must be one number"),
    (PERIODIC, {"period": 0}, "period must be"),
    (PERIODIC, {"step_size": math.inf}, "step_size must be"),
    (PERIODIC, {"step_size": None}, "step_size and period go together"),
    (PERIODIC, {"damping": 1.0}, "a period takes gradient steps"),
    (EXACT, {"x": WIDE[1][:0], "y": WIDE[2][:0]}, "inputs must hold an example"),
    (TRUNCATED, {"y": WIDE[2].ravel()}, r"targets have shape \(6,\).*outputs.*\(3, 2\)"),
)


def test_settling_above_the_start_is_divergence():
    """Full steps on arctan from 2 run away until the loss is flat: no minimum is anywhere near."""

    def solved(tolerance):
        f, start = lambda p, _: jnp.arctan(p)[None], jnp.asarray([2.0])
        run = {"max_steps": 50, "tolerance": tolerance, "independent": False}
        return gauss_newton(f, start, NOTHING, NOTHING, **run)

    solution, first = solved(1e-9), solved(1.0)
    assert abs(float(solution.params[0])) > 1e10
    assert int(first.num_steps) == 1
    assert int(solution.status) == int(first.status) == Status.DIVERGED


def test_a_start_where_nothing_moves_has_converged():
    x, y = jnp.zeros((3, 2, 4)), jnp.ones((3, 2))
    solution = TRUNCATED(affine, jnp.ones(4), x, y, max_steps=5, tolerance=0.0)
    assert (int(solution.status), int(solution.num_steps)) == (Status.CONVERGED, 1)
    assert solution.history["certificate"][0] == 0  # of a gradient of zero nothing is left
