"""Gradient flow of the linearised model against an implicit method and the closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from iterlin import flow_filter, losses
from iterlin.exact import linear_model
from iterlin.exact.flow import REACH, Objective, _stages, advance, begin
from iterlin.kernels import gradient_flow
from numpy.polynomial import Chebyshev
from scipy.integrate import solve_ivp

ENTROPY = losses.mean(losses.cross_entropy)


def flow_for(objective, *times, tolerance=1e-3):
    """The flow from its start to each of the times, or to the only one."""

    @jax.jit
    def run(start, until):
        return advance(objective, start, until, tolerance=tolerance, max_steps=100_000)

    found = [run(begin(objective), jnp.asarray(time)) for time in times]
    assert [float(flow.time) for flow in found] == list(times)
    return found if len(found) > 1 else found[0]


def by_radau(objective, times):
    """Radau's implicit method of order 5: another method, another library."""
    start = jnp.zeros_like(objective.model.outputs)

    @jax.jit
    def rate(_, flat):
        return -objective.slope(start, flat.reshape(start.shape))[1].ravel()

    settings = {"jac": jax.jit(jax.jacfwd(rate, 1)), "rtol": 1e-9, "atol": 1e-9}
    found = solve_ivp(rate, (0, times[-1]), start.ravel(), "Radau", times, **settings)
    return found.y.T.reshape(-1, *start.shape)


def test_flow_agrees_with_an_implicit_method_to_its_tolerance():
    objective, *_ = problems.linearised(ENTROPY)
    times = [1.0, 100.0, 1e4]
    expected = by_radau(objective, times)
    sizes = np.maximum(1, np.sqrt(np.mean(expected**2, (1, 2))))
    # A step's error is of third order in its length, so that of them all goes as tolerance^(2/3).
    for tolerance, bound in ((1e-3, 2e-2), (1e-7, 5e-5)):
        found = np.stack([flow.image for flow in flow_for(objective, *times, tolerance=tolerance)])
        assert np.all(np.abs(found - expected).max((1, 2)) < bound * sizes)


def test_flow_is_the_closed_form_for_the_squared_loss_with_a_penalty():
    penalty, time = 0.02, 50.0
    problem = problems.linearised(losses.squared_error, penalty=penalty)
    objective, f, params, x, y = problem
    found = flow_for(objective, time, tolerance=1e-8)
    modes = gradient_flow.eigenmodes(f, params, x, y)
    rates = modes.eigenvalues + 2 * penalty
    expected = modes.displaced(flow_filter(rates, time))
    moved = objective.model.displacement(found.coordinates)
    total = jax.tree.map(jnp.add, params, moved)
    np.testing.assert_allclose(problems.flat(total), problems.flat(expected), atol=1e-5)
    image = problems.dense(f, params, x) @ problems.flat(moved)
    np.testing.assert_allclose(problems.flat(found.image), image, atol=1e-9)


def test_evaluations_are_the_products_that_were_taken():
    objective, *_ = problems.linearised(ENTROPY)
    model, taken = objective.model, []

    def counted(v):
        jax.debug.callback(lambda: taken.append(1))
        return model.push(v)

    counting = objective._replace(model=model._replace(push=counted))
    flow = flow_for(counting, 100.0)
    jax.effects_barrier()
    assert int(flow.evaluations) == len(taken)


def test_the_tolerance_is_relative_to_the_outputs():
    """Outputs of size 100 take as many products as those of size 1 at 100 times the tolerance."""
    f, params, x, y = problems.network((3, 6, 4), examples=12)

    def flow_from(shift, tolerance):
        model = linear_model.from_products(lambda p, x: f(p, x) + shift, params, x)
        objective = Objective(model, losses.mean(losses.squared_error, over="examples"), y + shift)
        return flow_for(objective, 1e3, tolerance=tolerance)

    found, expected = flow_from(-100.0, 1e-5), flow_from(0.0, 1e-3)
    assert int(found.evaluations) == pytest.approx(int(expected.evaluations), rel=0.02)


@pytest.mark.parametrize("stages", [2, 7])
def test_a_step_is_its_polynomial_and_stable_to_its_reach(stages):
    """RKC2's polynomial in closed form; no stage leaves [-1, 1], where the loss has a wall."""

    def walled(outputs, y):
        error = outputs - y
        return jnp.sum(jnp.where(jnp.abs(error) <= 1, error**2 / 2, 1e9 * error))

    reach = REACH * (stages**2 - 1)
    rates = jnp.linspace(1e-3, reach, 2000)
    f, zero, ones = lambda p, x: (p * x)[:, None], jnp.zeros(2000), jnp.ones((2000, 1))
    model = linear_model.from_products(f, zero, jnp.sqrt(rates))
    objective = Objective(model, walled, ones)
    _, image = _stages(objective, begin(objective), jnp.asarray(1.0), jnp.asarray(stages))
    decay = np.asarray(ones - image)[:, 0]
    chebyshev, w0 = Chebyshev.basis(stages), 1 + 2 / 13 / stages**2
    slope, bend = chebyshev.deriv()(w0), chebyshev.deriv(2)(w0)
    w1, b = slope / bend, bend / slope**2
    expected = 1 + b * (chebyshev(w0 - w1 * rates) - chebyshev(w0))
    np.testing.assert_allclose(decay, expected, atol=1e-10)
    assert np.all(np.abs(decay) < 1)
    assert reach < (1 + w0) / w1 < 1.003 * reach


def test_a_loss_without_curvature_is_followed_in_a_straight_line():
    model = linear_model.from_products(lambda p, x: 3 * p, jnp.zeros(3), None)
    slopes = jnp.array([1.0, -2.0, 3.0])
    found = flow_for(Objective(model, jnp.vdot, slopes), 100.0)
    np.testing.assert_allclose(found.image, -900 * slopes)


def test_curvature_is_the_largest_eigenvalue_of_the_problem():
    objective, f, params, x, _ = problems.linearised(ENTROPY, penalty=0.3)
    jacobian = problems.dense(f, params, x)
    hessian = jax.jit(jax.hessian(lambda u: objective.loss(u.reshape(12, 4), objective.targets)))
    start = begin(objective)
    for flow in (start, flow_for(objective, 10.0)):
        outputs = objective.model.outputs + flow.image
        matrix = jacobian.T @ hessian(outputs.reshape(-1)) @ jacobian
        largest = np.linalg.eigvalsh(matrix)[-1] + 0.6
        assert 0.9 * largest < float(flow.curvature) < 1.001 * largest
    np.testing.assert_allclose(start.step * start.curvature, 0.1)
    # The next linearisation goes on from this direction and step.
    after = begin(objective, start._replace(step=jnp.asarray(0.123)))
    assert float(after.step) == 0.123
    assert float(after.curvature) >= float(start.curvature)
    # Saturated outputs, whose Hessian is 0, leave no direction.
    after = begin(objective, start._replace(direction=jnp.zeros_like(start.direction)))
    assert float(after.curvature) > 0.5 * float(start.curvature)


def test_gradient_norm_is_that_in_the_parameters():
    objective, f, params, x, _ = problems.linearised(ENTROPY, penalty=0.3)
    jacobian = problems.dense(f, params, x)
    coordinates, image = objective.model.push(0.1 * objective.model.outputs)

    def total(moved):
        outputs = objective.model.outputs + (jacobian @ moved).reshape(12, 4)
        return objective.loss(outputs, objective.targets) + 0.3 * moved @ moved

    expected = jax.jit(jax.grad(total))(problems.flat(objective.model.displacement(coordinates)))
    slope = objective.slope(coordinates, image)
    found = objective.gradient_norm(*slope)
    np.testing.assert_allclose(found, np.linalg.norm(expected), rtol=1e-9)
    # With a kernel, rounding may leave its square below zero.
    rounded = objective.model._replace(inner=lambda *_: jnp.asarray(-1e-20))
    assert float(objective._replace(model=rounded).gradient_norm(*slope)) == 0
