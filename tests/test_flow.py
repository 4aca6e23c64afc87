"""Gradient flow of the linearised model against diffrax and the closed form."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from iterlin import flow_filter, gradient_flow, kept_ntk, losses
from iterlin.exact import linear_model
from iterlin.exact.flow import REACH, Objective, _stages, advance, begin, max_stages

MEAN_CROSS_ENTROPY = losses.mean(losses.cross_entropy)


def objective_of(loss=MEAN_CROSS_ENTROPY, *, penalty=0.0, examples=12):
    f, params, x, y = problems.network((3, 6, 4), examples=examples)
    targets = jnp.argmax(y, 1) if loss is MEAN_CROSS_ENTROPY else y
    model = linear_model.from_kernel(f, params, x, kept_ntk(f, params, x).product)
    return Objective(model, loss, targets, penalty), f, params, x, y


def flow_for(objective, time, tolerance=1e-3, max_steps=100_000, **rule):
    @jax.jit
    def run(start):
        return advance(
            objective, start, jnp.asarray(time), tolerance=tolerance, max_steps=max_steps, **rule
        )

    return run(begin(objective))


def by_diffrax(objective, time):
    """Kvaerno's implicit method of order 5 at 1e-10: another method, another library."""

    def rate(_, image, __):
        return -objective.slope(_coordinates(objective, image), image)[1]

    return diffrax.diffeqsolve(
        diffrax.ODETerm(rate),
        diffrax.Kvaerno5(),
        0,
        time,
        None,
        jnp.zeros_like(objective.model.outputs),
        stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-9),
        max_steps=100_000,
    ).ys[-1]


def _coordinates(objective, image):
    # Without a penalty the slope does not look at them; with one, only their image matters here.
    return jnp.zeros_like(image)


@pytest.mark.parametrize("time", [1.0, 100.0, 1e4])
def test_agrees_with_an_implicit_method_to_the_tolerance_of_its_steps(time):
    objective, *_ = objective_of()
    expected = by_diffrax(objective, time)
    size = max(1.0, float(jnp.sqrt(jnp.mean(expected**2))))
    errors = []
    for tolerance in (1e-3, 1e-5, 1e-7):
        found = flow_for(objective, time, tolerance)
        assert float(found.time) == time
        errors.append(float(jnp.max(jnp.abs(found.image - expected))) / size)
    # A step's error is of third order in its length, so that of them all goes as tolerance^(2/3).
    assert errors[0] < 2e-2
    assert errors[1] < 1e-3
    assert errors[2] < 5e-5


def test_is_the_closed_form_for_the_squared_loss_with_a_penalty():
    penalty, time = 0.02, 50.0
    objective, f, params, x, y = objective_of(losses.squared_error, penalty=penalty)
    found = flow_for(objective, time, 1e-8)
    modes = gradient_flow.eigenmodes(f, params, x, y)
    rates = modes.eigenvalues + 2 * penalty
    expected = modes.displaced(flow_filter(rates, time))
    moved = objective.model.displacement(found.coordinates)
    total = jax.tree.map(jnp.add, params, moved)
    np.testing.assert_allclose(problems.flat(total), problems.flat(expected), atol=1e-5)
    np.testing.assert_allclose(
        problems.flat(found.image), problems.dense(f, params, x) @ problems.flat(moved), atol=1e-9
    )


def test_how_it_is_cut_into_pieces_hardly_matters():
    objective, *_ = objective_of()

    def some(flow, until, steps):
        return advance(objective, flow, until, tolerance=1e-3, max_steps=steps)

    pieces = jax.jit(some, static_argnums=2)
    whole = pieces(begin(objective), 300.0, 999)
    flow = begin(objective)
    for _ in range(10_000):
        if flow.time >= 300.0:
            break
        flow = pieces(flow, 300.0, 3)
    np.testing.assert_array_equal(flow.image, whole.image)
    stopped = pieces(begin(objective), 41.0, 999)
    assert float(stopped.time) == 41.0
    on = pieces(stopped, 300.0, 999)
    np.testing.assert_allclose(on.image, whole.image, atol=2e-2)


def test_stays_where_it_is_solved():
    objective, *_ = objective_of()

    def fits(flow):
        outputs = objective.model.outputs + flow.image
        return jnp.all(jnp.argmax(outputs, 1) == objective.targets)

    found = flow_for(objective, 1e6, solved=fits)
    assert bool(found.solved)
    assert float(found.time) < 1e4
    assert bool(fits(found))


def test_costs_about_the_cube_root_of_the_time_where_steps_cost_the_time():
    objective, *_ = objective_of(losses.mean(losses.squared_error))
    curvature = float(begin(objective).curvature)
    spent = [int(flow_for(objective, time).evaluations) for time in (1e2, 1e4)]
    steps = 1e4 * curvature / 2  # of the largest size that is stable
    assert spent[1] < 10 * spent[0]
    assert spent[1] < steps / 10


def test_evaluations_are_the_products_that_were_taken():
    objective, *_ = objective_of()
    model, taken = objective.model, []

    def counted(v):
        jax.debug.callback(lambda: taken.append(1))
        return model.push(v)

    counting = objective._replace(model=model._replace(push=counted))
    flow = flow_for(counting, 100.0)
    jax.effects_barrier()
    assert int(flow.evaluations) == len(taken)
    taken.clear()
    assert int(begin(counting, flow).evaluations) == len(taken) < 10


@pytest.mark.parametrize("offset", [100.0, -100.0])
def test_the_tolerance_is_relative_to_the_outputs(offset):
    """Outputs of size 100 take as many products as those of size 1 at 100 times the tolerance."""
    f, params, x, y = problems.network((3, 6, 4), examples=12)

    def flow_from(shift, tolerance):
        model = linear_model.from_products(lambda p, x: f(p, x) + shift, params, x)
        objective = Objective(model, losses.mean(losses.squared_error), y + shift)
        return flow_for(objective, 1e3, tolerance)

    found, expected = flow_from(offset, 1e-5), flow_from(0.0, 1e-3)
    assert float(found.time) == 1e3
    assert int(found.evaluations) == pytest.approx(int(expected.evaluations), rel=0.02)


@pytest.mark.parametrize("stages", [2, 3, 4, 7, 20, 100])
def test_a_step_is_stable_as_far_as_it_is_said_to_reach(stages):
    """And hardly farther: Verwer, Hundsdorfer & Sommeijer (1990)."""
    reach = REACH * (stages**2 - 1)
    for times, stable in ((1.0, True), (1.25, False)):
        rates = jnp.linspace(1e-3, times * reach, 2000)
        model = linear_model.from_products(
            lambda p, x: (p * x)[:, None], jnp.zeros(2000), jnp.sqrt(rates)
        )
        ones = jnp.ones((2000, 1))
        objective = Objective(model, losses.squared_error, ones)
        _, image = _stages(objective, begin(objective), jnp.asarray(1.0), jnp.asarray(stages))
        assert bool(jnp.all(jnp.abs(ones - image) < 1)) == stable


@pytest.mark.parametrize(
    ("ratio", "until", "factor"),
    [
        (0.5, 9.0, 0.8 * 2 ** (1 / 3)),
        (8.0, 9.0, 0.4),
        (1e-6, 9.0, 5.0),
        (1e6, 9.0, 0.1),
        (0.5, 0.25, 2.0),  # cut short by the end: the next is as long as this one was to be
    ],
)
def test_a_step_is_judged_and_followed_as_its_estimated_error_says(ratio, until, factor):
    """By the estimate of RKC2, of a step of two stages that ends far from where it began."""
    model = linear_model.from_products(lambda p, x: p, jnp.zeros(3), None)
    objective = Objective(model, losses.squared_error, jnp.array([100.0, 200.0, -300.0]))
    h = min(0.5, until)
    start = begin(objective)._replace(step=jnp.asarray(0.5))
    there = _stages(objective, start, jnp.asarray(h), jnp.asarray(2))
    slopes = start.slope_image + objective.slope(*there)[1]
    error, size = (
        np.sqrt(np.mean(np.square(a)))
        for a in (0.8 * (start.image - there[1]) - 0.4 * h * slopes, there[1])
    )
    tolerance = float(error / (ratio * size))
    found = advance(objective, start, jnp.asarray(until), tolerance=tolerance, max_steps=1)
    assert float(found.time) == (h if ratio < 1 else 0)
    np.testing.assert_allclose(found.step, h * factor, rtol=1e-6)


def test_stages_are_limited_by_rounding():
    assert max_stages(1e-3, jnp.float32) == 28
    assert max_stages(1e-3, jnp.float64) == 1000
    assert max_stages(1e-12, jnp.float32) == 4


def test_curvature_is_the_largest_eigenvalue_of_the_problem():
    objective, f, params, x, _ = objective_of(penalty=0.3)
    found = flow_for(objective, 10.0)
    jacobian = problems.dense(f, params, x)
    hessian = jax.hessian(lambda u: objective.loss(u.reshape(12, 4), objective.targets))
    outputs = objective.model.outputs + found.image
    matrix = jacobian.T @ hessian(outputs.reshape(-1)) @ jacobian
    largest = np.linalg.eigvalsh(matrix)[-1] + 0.6
    assert 0.9 * largest < float(found.curvature) < 1.001 * largest
