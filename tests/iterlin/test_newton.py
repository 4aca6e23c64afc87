"""The minimum of a damped linearised problem, by Newton's method."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from iterlin import cached_ntk, losses
from iterlin.exact import linear_model, newton
from iterlin.exact.flow import Objective
from iterlin.exact.newton import minimize
from scipy.optimize import minimize as minimize_by_scipy

ENTROPY = losses.mean(losses.cross_entropy)


def identity(params, loss, penalty=0.1):
    """The objective of a model whose outputs are its parameters."""
    model = linear_model.from_products(lambda p, x: p, params, jnp.zeros(params.shape[:1]))
    return Objective(model, loss, None, penalty)


@pytest.mark.parametrize("penalty", [10.0, 1e-3])
def test_minimum_is_what_scipy_finds_on_the_dense_problem(penalty):
    objective, f, params, x, _ = problems.linearised(ENTROPY, penalty=penalty)
    jacobian = problems.dense(f, params, x)

    @jax.jit
    @jax.value_and_grad
    def value(displacement):
        outputs = objective.model.outputs + (jacobian @ displacement).reshape(12, 4)
        loss = objective.loss(outputs, objective.targets)
        return loss + penalty * jnp.sum(displacement**2)

    options = {"maxiter": 20_000, "maxfun": 20_000, "ftol": 1e-16, "gtol": 1e-12}
    settings = {"jac": True, "method": "L-BFGS-B", "options": options}
    start, numbers = np.zeros(jacobian.shape[1]), lambda d: tuple(map(np.asarray, value(d)))
    oracle = minimize_by_scipy(numbers, start, **settings)
    for space in ("function", "parameter"):
        objective = problems.linearised(ENTROPY, penalty=penalty, space=space)[0]
        found = minimize(objective, tolerance=1e-8)
        moved = problems.flat(objective.model.displacement(found.coordinates))
        np.testing.assert_allclose(moved, oracle.x, atol=2e-5 * max(1, np.abs(oracle.x).max()))
        assert float(value(moved)[0]) <= oracle.fun * (1 + 1e-12)
        # The certificate is the gradient of that dense objective, relative to that at theta_s.
        norms = [np.linalg.norm(value(d)[1]) for d in (moved, np.zeros_like(moved))]
        assert float(found.certificate) <= 1e-8
        np.testing.assert_allclose(found.certificate, norms[0] / norms[1], atol=1e-10)


def test_a_search_that_stops_early_says_so():
    objective, *_ = problems.linearised(ENTROPY, penalty=1e-4)
    found = minimize(objective, tolerance=1e-10, max_steps=2)
    assert int(found.newton_steps) == 2
    assert float(found.certificate) > 1e-6


@pytest.mark.parametrize("uphill", [False, True])
def test_it_goes_downhill_and_counts_its_products(uphill, monkeypatch):
    """Where a saturated loss leaves mostly rounding, conjugate gradients may lead uphill."""
    objective, f, params, x, _ = problems.linearised(ENTROPY, penalty=0.1)
    product, solve, taken = cached_ntk(f, params, x).product, newton.conjugate_gradients, []

    def image(a):
        jax.debug.callback(lambda: taken.append(1))
        return product(a)

    objective = objective._replace(model=linear_model.from_kernel(f, params, x, image))

    def wrong(*arguments, **settings):
        step, count = solve(*arguments, **settings)
        return jax.tree.map(jnp.negative, step), count

    if uphill:
        monkeypatch.setattr(newton, "conjugate_gradients", wrong)
    found = minimize(objective, tolerance=1e-3)
    jax.effects_barrier()
    assert float(found.certificate) <= 1e-3
    assert int(found.evaluations) == len(taken)


@pytest.mark.parametrize(("start", "certificate"), [(0.0, 0.0), (np.nan, 1.0)])
def test_nothing_moves_where_the_gradient_vanishes_or_is_nan(start, certificate):
    objective = identity(jnp.full(3, start), lambda u, _: jnp.sum(jnp.cosh(u)))
    found = minimize(objective, tolerance=1e-3)
    assert float(found.certificate) == certificate
    np.testing.assert_array_equal(found.image, 0)


@pytest.mark.parametrize(
    ("loss", "start"),
    [
        (lambda u: jnp.sum(jnp.sqrt(1 + u**2)), 3.0),  # Newton's step ends at -27
        # At 40; an eighth of that step goes down, to where it is steeper than at the start.
        (lambda u: jnp.sum(jnp.exp(u) - u), -3.8),
        # At all but the same height across, by far less than the slope has promised.
        (lambda u: jnp.sum(jnp.sqrt(1 + u**2)), 0.99997),
    ],
    ids=["both ways", "steeper", "across"],
)
def test_a_step_that_goes_too_far_is_halved_until_it_goes_down(loss, start):
    steps = []

    @jax.jit
    def minimized(unit):
        objective = identity(jnp.full((4, 1), start), lambda u, _: unit * loss(u), 1e-6 * unit)
        return minimize(objective, tolerance=1e-8)

    for unit in (1.0, 1e-9):  # in which the loss is measured
        found = minimized(unit)
        assert float(found.certificate) <= 1e-8
        steps.append(int(found.newton_steps))
        np.testing.assert_allclose(start + found.image, 0, atol=1e-4)
    assert 1 < steps[0] == steps[1] < 10


def test_a_minimum_is_told_from_where_rounding_leaves_more_to_gain():
    classes = jnp.arange(12) % 4
    right = jax.nn.one_hot(classes, 4)

    @jax.jit
    def is_minimum(outputs):
        return newton.within_rounding(identity(outputs, lambda u, _: ENTROPY(u, classes), 1e-4))

    for outputs, dtype, there in (
        # A gain of 1e-10, which double precision sees beside outputs of 15, and single does not.
        (15 * right, "float32", True),
        (15 * right, "float64", False),
        (5 * right, "float32", False),
        (30 * jnp.roll(right, 1, axis=1), "float32", False),  # flat, but far from the minimum
        (jnp.full_like(right, jnp.nan), "float32", False),
    ):
        assert bool(is_minimum(outputs.astype(dtype))) == there


@pytest.mark.parametrize(
    ("output", "offset", "there"), [(-1e8, 0.0, True), (0.0, -1e8, True), (0.0, 0.0, False)]
)
def test_rounding_is_that_of_the_loss_and_of_the_outputs(output, offset, there):
    params = jnp.full(3, output)

    def loss(outputs, _):
        return offset + 0.5 * jnp.sum((outputs - params - 1e-4) ** 2)

    assert bool(newton.within_rounding(identity(params, loss, 1e-4))) == there
