"""Closed forms of linearised training against explicit steps and dense algebra."""

import decimal
import math

import drawn
import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from iterlin import damping_filter, descent_filter, eigenmodes, flow_filter, steps_for_tolerance
from problems import affine, affine_problem, bare, dense, flat, network, normal, single
from refusals import fails, refused


def parts(f, params, x, y):
    """theta, J and z = f - y as dense arrays."""
    return flat(params), dense(f, params, x), np.ravel(f(params, x) - y)


def steps_by_hand(matrix, theta, z, step_size, num_steps):
    """The explicit iteration theta <- theta - eta J^T (z + J (theta - theta_s))."""
    moved = np.zeros_like(theta)
    for _ in range(num_steps):
        moved = moved - step_size * matrix.T @ (z + matrix @ moved)
    return theta + moved


def flow_by_exponential(matrix, theta, z, time):
    """d/dt (theta, 1) = [[-J^T J, -J^T (z - J theta_s)], [0, 0]] (theta, 1)."""
    size = len(theta)
    generator = np.zeros((size + 1, size + 1))
    generator[:size, :size] = -matrix.T @ matrix
    generator[:size, size] = -matrix.T @ (z - matrix @ theta)
    return (scipy.linalg.expm(generator * time) @ np.append(theta, 1))[:size]


@pytest.mark.parametrize("scaled", [0.3, 1.0, 1.7, 2.2], ids=lambda s: f"eta*lambda={s}")
def test_explicit_steps_and_what_they_leave_equal_the_closed_form(scaled):
    """Beyond 1 the sign flips at every step, beyond 2 the iteration diverges."""
    params, x, y = affine_problem("deficient wide")
    theta, matrix, z = parts(affine, params, x, y)
    step_size = scaled / np.linalg.norm(matrix, 2) ** 2
    modes = eigenmodes(affine, params, x, y)
    for num_steps in (1, 2, 7, 41 if scaled > 2 else 3000):
        expected = steps_by_hand(matrix, theta, z, step_size, num_steps)
        found = modes.descent(step_size, num_steps)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
        left = np.linalg.norm(matrix.T @ (z + matrix @ (expected - theta)))
        ratio = left / np.linalg.norm(matrix.T @ z)
        found = modes.residual_ratio(step_size, num_steps)
        np.testing.assert_allclose(found, ratio, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("case", ["square", "deficient tall"])
def test_flow_equals_the_matrix_exponential(case):
    params, x, y = affine_problem(case)
    theta, matrix, z = parts(affine, params, x, y)
    modes = eigenmodes(affine, params, x, y)
    for time in (0.0, 0.1, 3.0, 50.0):
        expected = flow_by_exponential(matrix, theta, z, time)
        np.testing.assert_allclose(modes.flow(time), expected, atol=1e-11)


def test_a_network_is_trained_as_its_linearisation():
    f, params, x, y = network()
    theta, matrix, z = parts(f, params, x, y)
    found = il.linearized_gradient_descent(f, params, x, y, step_size=0.03, num_steps=400)
    assert jax.tree.structure(found) == jax.tree.structure(params)
    expected = steps_by_hand(matrix, theta, z, 0.03, 400)
    np.testing.assert_allclose(flat(found), expected, atol=1e-11)
    found = il.linearized_gradient_flow(f, params, x, y, time=2.5)
    np.testing.assert_allclose(flat(found), flow_by_exponential(matrix, theta, z, 2.5), atol=1e-11)


@pytest.mark.parametrize("case", ["deficient wide", "deficient tall"])
def test_gram_route_equals_the_svd_route(case):
    """A memory limit below J's size works on J J^T in blocks."""
    params, x, y = affine_problem(case)
    by_svd = eigenmodes(affine, params, x, y)
    by_gram = eigenmodes(affine, params, x, y, memory_limit=5 * params.nbytes)
    for answer in (
        lambda m: m.flow(2.0),
        lambda m: m.flow(math.inf),
        lambda m: m.descent(1.3, 9),
        lambda m: m.damped(0.2),
        lambda m: m.residual_ratio(1.3, 9),
    ):
        np.testing.assert_allclose(answer(by_gram), answer(by_svd), atol=1e-10)
    narrow = lambda p, x: affine(p, x).astype(jnp.float32)  # noqa: E731
    found = eigenmodes(narrow, params, x, y, memory_limit=5 * params.nbytes).flow(2.0)
    assert found.dtype == params.dtype
    np.testing.assert_allclose(found, by_svd.flow(2.0), atol=1e-5)


SHAPES = drawn.shapes([(2, 2, 3, 0), (4, 3, 5, 5), (3, 2, 8, 4)], 4, 3, 8, (0, 8))


@given(SHAPES, st.integers(0, 99))
def test_any_shape_and_rank(shape, seed):
    examples, outputs, parameters, rank = shape
    rank = min(rank, examples * outputs, parameters)
    params, x, y = affine_problem((examples, outputs, parameters, rank), seed)
    matrix, z = np.reshape(x, (-1, parameters)), np.ravel(affine(params, x) - y)
    modes = eigenmodes(affine, params, x, y)
    assert int(jnp.sum(modes.singular_values > 0)) == rank
    expected = steps_by_hand(matrix, np.asarray(params), z, 1.5, 12)
    np.testing.assert_allclose(modes.descent(1.5, 12), expected, atol=1e-11)
    damped = matrix.T @ matrix + 0.7 * np.eye(parameters)
    expected = params - np.linalg.solve(damped, matrix.T @ z)
    np.testing.assert_allclose(modes.damped(0.7), expected, atol=1e-11)
    expected = params - np.linalg.pinv(matrix, rcond=1e-12) @ z
    for found in (modes.flow(math.inf), modes.descent(1.0, 10**6), modes.damped(0.0)):
        np.testing.assert_allclose(found, expected, atol=1e-11)


def diagonal(values, parameters):
    """An affine problem whose Jacobian (N, P) has them on its diagonal; from 0 to ones."""
    rows = (np.eye(len(values), parameters) * np.asarray(values)[:, None])[:, None]
    parts = np.zeros(parameters), rows, np.ones((len(values), 1))
    return affine, *map(jnp.asarray, parts)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_singular_values_within_rounding_count_as_zero(scale):
    """Below sqrt(400) eps of the largest, and of the kernel's eigenvalues below 10 eps."""
    eps = np.finfo(float).eps
    modes = eigenmodes(*diagonal(scale * np.array([1, 15 * eps, 25 * eps]), 400))
    assert sorted(modes.singular_values > 0) == [False, True, True]
    values = scale * np.sqrt(np.array([*[1] * 18, 5 * eps, 15 * eps]))
    modes = eigenmodes(*diagonal(values, 100), memory_limit=15_000)
    assert int(jnp.sum(modes.singular_values > 0)) == 19
    # Zero directions do not move.
    assert int(jnp.sum(jnp.abs(modes.flow(math.inf)) * scale > 1e-12)) == 19


def test_eigenvalues_within_rounding_move_if_a_filter_does_not_divide_by_them():
    eps = float(np.finfo(np.float32).eps)
    values = np.sqrt(np.asarray([1, 1e-4, 4 * eps], np.float32))
    modes = eigenmodes(affine, *single(diagonal(values, 100)[1:]), memory_limit=1000)
    for found, filtered in (
        (modes.damped(0.01), 1 / (values**2 + 0.01)),
        (modes.flow(10.0), -np.expm1(-10 * values**2) / values**2),
        (modes.descent(0.5, 20), (1 - (1 - 0.5 * values**2) ** 20) / values**2),
        (modes.flow(1e9), np.array([1, 1e4, 0])),
    ):
        np.testing.assert_allclose(found[:3], values * filtered, rtol=2e-3, atol=1e-12)


def exact_descent(eigenvalue, step_size, num_steps):
    """(1 - (1 - eta l)^K) / l in 60 digits."""
    with decimal.localcontext() as context:
        context.prec = 60
        eigenvalue = decimal.Decimal(float(eigenvalue))
        left = (1 - eigenvalue * decimal.Decimal(step_size)) ** num_steps
        return float((1 - left) / eigenvalue)


@pytest.mark.parametrize("num_steps", [1, 2, 1000, 10**6 + 1, 10**12])
def test_descent_filter_is_right_to_rounding(num_steps):
    values = jnp.asarray([1e-14, 1e-9, 1e-3, 0.3, 0.5, 1.0, 1.2, 1.9, 1.999999])
    expected = [exact_descent(value, 1.0, num_steps) for value in values]
    # At eta l just below 2 the rounding of eta l - 1 is itself raised to the power K.
    tolerance = 1e-9 if num_steps > 1000 else 1e-12
    for found in (descent_filter, jax.jit(descent_filter)):
        np.testing.assert_allclose(found(values, 1.0, num_steps), expected, rtol=tolerance)


def test_filters_at_their_limits():
    values = jnp.asarray([0.0, 1e-300, 0.5, 2.0])
    for found, expected in (
        (descent_filter(values, 0.1, 7), [0.7, 0.7, (1 - 0.95**7) / 0.5, (1 - 0.8**7) / 2]),
        (descent_filter(values, 2.0, 0), [0, 0, 0, 0]),
        (descent_filter(values[:1], 1.0, math.inf), [0]),
        (descent_filter(values[::2], 1.0, 10**300), [1e300, 2]),
        # Where eta l underflows.
        (descent_filter(values, 1e-100, math.inf), [0, 1e300, 2, 0.5]),
        (descent_filter(values[:2], 1e-100, 7), [7e-100, 7e-100]),
        # At eta l = 2 the iterate jumps between two points for ever, however large K is.
        (descent_filter(values[3:], 1.0, 10**30), [0]),
        (descent_filter(values[3:], 1.0, 10**30 + 1), [1]),
        (flow_filter(values, 0.0), [0, 0, 0, 0]),
        (flow_filter(values, 3.0), [3, 3, (1 - math.exp(-1.5)) / 0.5, (1 - math.exp(-6)) / 2]),
        (flow_filter(values, math.inf), [0, 1e300, 2, 0.5]),
        (flow_filter(values[:1], 10**30), [1e30]),
        (damping_filter(values, 0.0), [0, 1e300, 2, 0.5]),
        (damping_filter(values, 2.0), [0.5, 0.5, 0.4, 0.25]),
        (damping_filter(values[:1], 10**30), [1e-30]),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_derivatives_of_the_filters_are_finite_on_both_sides_of_every_case():
    values = np.array([0.0, 0.5, 1.0, 1.2, 2.0, 2.5])
    eigenvalues = jnp.asarray(values)
    in_time = jax.jit(jax.jacrev(lambda t: flow_filter(eigenvalues, t)))(2.0)
    np.testing.assert_allclose(in_time, np.exp(-2 * values))
    in_size = jax.jit(jax.jacrev(lambda s: descent_filter(eigenvalues, s, 4)))(1.0)
    np.testing.assert_allclose(in_size, 4 * (1 - values) ** 3, atol=1e-12)
    of_one_step = jax.jit(jax.jacrev(lambda s: descent_filter(eigenvalues, s, 1)))(1.0)
    np.testing.assert_allclose(of_one_step, np.ones(6))
    filters = lambda v: flow_filter(v, 2.0), lambda v: descent_filter(v, 0.1, 20)
    for f, curved in zip(filters, (2.0**2 / 2, 0.1**2 * 20 * 19 / 2), strict=True):
        np.testing.assert_allclose(jax.jacfwd(f)(jnp.zeros(1)), [[-curved]])
        np.testing.assert_allclose(jax.jacrev(f)(jnp.zeros(1)), [[-curved]])
    in_damping = jax.jit(jax.jacrev(lambda d: damping_filter(eigenvalues, d)))(0.0)
    np.testing.assert_allclose(in_damping, [0, *-(values[1:] ** -2)])


@given(st.integers(0, 99), st.floats(0.05, 1.95), st.floats(1e-6, 0.99))
def test_steps_for_tolerance_is_the_smallest(seed, scaled, beta):
    modes = eigenmodes(affine, *affine_problem((3, 2, 8, 5), seed, low=0.05))
    steps = steps_for_tolerance(modes, step_size=scaled, beta=beta)
    assert float(modes.residual_ratio(scaled, steps)) <= beta
    assert steps == 1 or float(modes.residual_ratio(scaled, steps - 1)) > beta


def test_steps_for_tolerance_of_an_extremely_slow_mode():
    """1 - eta l rounds to 1, yet the number of steps is known: ln(1/beta) / (eta l)."""
    modes = eigenmodes(*diagonal([1.0, 1e-10], 2))
    modes = modes._replace(coefficients=jnp.asarray([0.0, 1.0]))
    steps = steps_for_tolerance(modes, step_size=1.0, beta=0.5)
    assert steps == pytest.approx(math.log(2) / 1e-20, rel=1e-5)


def test_the_largest_stable_step_is_refused_and_any_below_it_is_not():
    """One mode of eigenvalue 4; a step of 1/4 ends it, to the bit."""
    modes = eigenmodes(affine, jnp.zeros(1), jnp.full((1, 1, 1), 2.0), jnp.ones((1, 1)))
    assert [float(modes.residual_ratio(0.25, steps)) for steps in (0, 1, 7)] == [1, 0, 0]
    assert steps_for_tolerance(modes, step_size=0.49, beta=0.9) > 1
    with pytest.raises(ValueError, match=r"step_size must be below 2 / lambda_max = 0\.5"):
        steps_for_tolerance(modes, step_size=0.5, beta=0.9)
    modes = modes._replace(singular_values=modes.singular_values.astype("float32"))
    with pytest.raises(ValueError, match="step_size must be below"):  # it rounds to the largest
        steps_for_tolerance(modes, step_size=0.5 - 1e-9, beta=0.9)
    fails("beta must", steps_for_tolerance, modes, step_size=0.1, beta=1.0)


test_bad_settings_are_refused_by_name = refused(
    lambda call: call(eigenmodes(affine, *affine_problem("wide"))),
    (lambda modes: modes.flow(-1.0), "time must be"),
    (lambda modes: modes.descent(math.inf, 3), "step_size must be"),
    (lambda modes: modes.residual_ratio(0.0, 0), "step_size must be"),
    (lambda modes: modes.descent(0.1, 2.5), "num_steps must be"),
    (lambda modes: modes.descent(0.1, 10**400), "num_steps must be"),
    (lambda modes: modes.residual_ratio(0.1, -1), "num_steps must be"),
    (lambda modes: modes.damped(math.nan), "damping must be"),
    (
        lambda modes: steps_for_tolerance(modes, step_size=np.full(2, 0.1), beta=0.5),
        "step_size must be one number",
    ),
    (
        lambda modes: steps_for_tolerance(modes, step_size=0.01, beta=np.full(2, 0.5)),
        "beta must be one number",
    ),
    (
        jax.jit(lambda modes: steps_for_tolerance(modes, step_size=0.01, beta=0.5)),
        "steps_for_tolerance .* outside of jax.jit",
    ),
)

WIDE = dict(zip(("params", "x", "y"), affine_problem("wide"), strict=True), f=affine)
ROOT = dict(f=lambda p, x: jnp.sqrt(x @ p), params=jnp.zeros(20), x=jnp.eye(4, 20), y=jnp.ones(4))
KERNEL = {"memory_limit": 500}  # by which no Jacobian fits
test_a_bad_problem_is_refused = refused(
    lambda change: bare(eigenmodes)(**WIDE | change),
    ({"params": WIDE["params"] * math.nan}, "params.* must be finite"),
    ({"x": WIDE["x"].at[0].set(math.inf)}, "outputs of f must be finite"),
    ({"x": WIDE["x"].at[0].set(math.inf)} | KERNEL, "outputs of f.* must be finite"),
    ({"y": WIDE["y"].at[0].set(math.nan)}, "targets.* must be finite"),
    (ROOT, "the Jacobian must be finite"),
    (ROOT | KERNEL, r"the kernel J J\^T must be finite"),
    ({"x": WIDE["x"][:0], "y": WIDE["y"][:0]}, "inputs must hold an example"),
    ({"y": WIDE["y"][:, 0]}, r"targets have shape \(3,\).*outputs.*\(3, 2\)"),
    ({"y": list(WIDE["y"])}, "targets must be one array .* got list"),
)


def test_coupled_examples_whose_jacobian_does_not_fit_are_refused():
    def coupled(params, x):
        return x @ params / jnp.sum(x**2)

    x = normal(4, 3)
    problem, settings = (coupled, jnp.ones((3, 1)), x, jnp.ones((4, 1))), {"independent": False}
    with pytest.raises(ValueError, match=r"more than memory_limit=90.*independent"):
        eigenmodes(*problem, memory_limit=90, **settings)
    theta, matrix, z = parts(*problem)
    modes = eigenmodes(*problem, memory_limit=matrix.nbytes, **settings)
    expected = theta - np.linalg.pinv(matrix) @ z
    np.testing.assert_allclose(flat(modes.damped(0.0)), expected, atol=1e-11)
