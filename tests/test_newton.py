import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from iterlin import gradient_flow, kept_ntk, losses
from iterlin.exact import linear_model, newton
from iterlin.exact.flow import Objective
from iterlin.exact.newton import minimize
from scipy.optimize import minimize as minimize_by_scipy

SPACES = ("function", "parameter")


def objective_of(space, loss, penalty):
    f, params, x, y = problems.network((3, 6, 4), examples=12)
    if space == "function":
        model = linear_model.from_kernel(f, params, x, kept_ntk(f, params, x).product)
    else:
        model = linear_model.from_products(f, params, x)
    targets = jnp.argmax(y, 1) if loss is not losses.squared_error else y
    return Objective(model, loss, targets, penalty), f, params, x, y


def counted(penalty):
    """The objective of cross-entropy in function space, and what notes each of its products."""
    f, params, x, y = problems.network((3, 6, 4), examples=12)
    product, taken = kept_ntk(f, params, x).product, []

    def image(a):
        jax.debug.callback(lambda: taken.append(1))
        return product(a)

    model = linear_model.from_kernel(f, params, x, image)
    loss = losses.mean(losses.cross_entropy)
    return Objective(model, loss, jnp.argmax(y, 1), penalty), taken


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("penalty", [10.0, 0.1, 1e-3])
def test_finds_the_minimum_that_scipy_finds_on_the_dense_problem(space, penalty):
    objective, f, params, x, _ = objective_of(space, losses.mean(losses.cross_entropy), penalty)
    jacobian = problems.dense(f, params, x)

    @jax.jit
    @jax.value_and_grad
    def value(displacement):
        outputs = objective.model.outputs + (jacobian @ displacement).reshape(12, 4)
        loss = objective.loss(outputs, objective.targets)
        return loss + penalty * jnp.sum(displacement**2)

    oracle = minimize_by_scipy(
        lambda d: tuple(np.asarray(v) for v in value(d)),
        np.zeros(jacobian.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 20_000, "ftol": 1e-16, "gtol": 1e-12},
    )
    found = minimize(objective, tolerance=1e-8)
    moved = problems.flat(objective.model.displacement(found.coordinates))
    np.testing.assert_allclose(moved, oracle.x, atol=2e-5 * max(1, np.abs(oracle.x).max()))
    assert float(value(moved)[0]) <= oracle.fun * (1 + 1e-12)
    # The certificate is the gradient of that dense objective, relative to the one at theta_s.
    norms = [np.linalg.norm(value(d)[1]) for d in (moved, np.zeros_like(moved))]
    assert float(found.certificate) <= 1e-8
    np.testing.assert_allclose(found.certificate, norms[0] / norms[1], atol=1e-10)


@pytest.mark.parametrize("space", SPACES)
def test_is_the_damped_gauss_newton_step_for_the_squared_loss(space):
    objective, f, params, x, y = objective_of(space, losses.squared_error, 0.05)
    found = minimize(objective, tolerance=1e-10)
    expected = gradient_flow.eigenmodes(f, params, x, y).damped(2 * 0.05)
    moved = jax.tree.map(jnp.add, params, objective.model.displacement(found.coordinates))
    np.testing.assert_allclose(problems.flat(moved), problems.flat(expected), atol=1e-8)


def test_both_spaces_take_the_same_path():
    found = [
        minimize(objective_of(space, losses.mean(losses.cross_entropy), 0.1)[0], tolerance=1e-6)
        for space in SPACES
    ]
    assert int(found[0].newton_steps) == int(found[1].newton_steps)
    np.testing.assert_allclose(found[0].image, found[1].image, atol=1e-9)


def test_says_so_where_it_had_to_stop_early():
    objective, *_ = objective_of("function", losses.mean(losses.cross_entropy), 1e-4)
    found = minimize(objective, tolerance=1e-10, max_steps=2)
    assert int(found.newton_steps) == 2
    assert float(found.certificate) > 1e-6


def test_goes_downhill_where_conjugate_gradients_do_not(monkeypatch):
    """As they may where a saturated loss leaves little curvature beside the rounding."""
    objective, taken = counted(0.1)
    solve = newton.conjugate_gradients

    def uphill(*arguments, **settings):
        step, count = solve(*arguments, **settings)
        return jax.tree.map(jnp.negative, step), count

    monkeypatch.setattr(newton, "conjugate_gradients", uphill)
    found = minimize(objective, tolerance=1e-3)
    jax.effects_barrier()
    assert float(found.certificate) <= 1e-3
    assert int(found.evaluations) == len(taken)


def test_systems_are_solved_to_the_root_of_the_certificate_and_to_a_half_at_first(monkeypatch):
    model = linear_model.from_products(lambda p, x: p, jnp.array([3.0, 1.0, 2.0, -0.5]), None)
    objective = Objective(model, lambda u, y: jnp.sum(jnp.cosh(u)), None, 0.1)
    solve, told = newton.conjugate_gradients, []

    def solved(*arguments, tolerance, **settings):
        jax.debug.callback(lambda t: told.append(float(t)), tolerance, ordered=True)
        return solve(*arguments, tolerance=tolerance, **settings)

    monkeypatch.setattr(newton, "conjugate_gradients", solved)
    steps = int(minimize(objective, tolerance=1e-6).newton_steps)
    jax.effects_barrier()
    first, *_, last = told
    before = minimize(objective, tolerance=1e-6, max_steps=steps - 1)
    assert first == 0.5
    np.testing.assert_allclose(last, np.sqrt(before.certificate), rtol=1e-12)
    assert steps < 10


def test_gains_nothing_where_nothing_is_a_number():
    objective, *_ = objective_of("function", losses.mean(losses.cross_entropy), 0.1)
    outputs = jnp.full_like(objective.model.outputs, jnp.nan)
    found = minimize(
        objective._replace(model=objective.model._replace(outputs=outputs)), tolerance=1e-3
    )
    assert float(found.certificate) == 1


def test_one_step_is_enough_where_one_curvature_is_all_there_is():
    model = linear_model.from_products(lambda p, x: p, jnp.array([1.0, -2.0, 3.0]), None)
    objective = Objective(model, lambda u, y: 0.5 * jnp.sum(u**2), None, 1.0)
    found = minimize(objective, tolerance=1e-8)
    assert int(found.newton_steps) == 1
    np.testing.assert_allclose(found.image, -model.outputs / 3, rtol=1e-12)


def test_has_nothing_to_do_where_the_gradient_vanishes():
    model = linear_model.from_products(lambda p, x: p, jnp.zeros(3), None)
    found = minimize(Objective(model, lambda u, y: jnp.sum(jnp.cosh(u)), None, 0.1), tolerance=1e-3)
    assert float(found.certificate) == 0
    assert int(found.newton_steps) == 0
    np.testing.assert_array_equal(found.image, 0)


def test_tells_a_minimum_from_where_there_is_more_to_gain():
    classes = jnp.arange(12) % 4
    right = jax.nn.one_hot(classes, 4)

    def there(outputs, dtype):
        params = {"u": outputs.astype(dtype)}
        model = linear_model.from_products(lambda p, x: p["u"], params, classes)
        objective = Objective(model, losses.mean(losses.cross_entropy), classes, 1e-4)
        return bool(newton.within_rounding(objective))

    # A gain of 1e-10, which double precision sees beside outputs of 15, and single does not.
    assert there(15 * right, jnp.float32)
    assert not there(15 * right, jnp.float64)
    assert not there(5 * right, jnp.float32)
    # As wrong as can be: flat, but far from the minimum.
    assert not there(30 * jnp.roll(right, 1, axis=1), jnp.float32)
    assert not there(jnp.full_like(right, jnp.nan), jnp.float32)


def test_what_can_be_gained_is_beside_the_rounding_of_the_loss_and_of_the_outputs():
    def there(output, offset, away):
        params = jnp.full(3, output)
        model = linear_model.from_products(lambda p, x: p, params, None)

        def loss(outputs, targets):
            return offset + 0.5 * jnp.sum((outputs - targets) ** 2)

        return bool(newton.within_rounding(Objective(model, loss, params + away, 1e-4)))

    assert there(-1e8, 0.0, 1e-4)
    assert there(0.0, -1e8, 1e-4)
    assert not there(0.0, 0.0, 1e-4)
    assert there(0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("loss", "start"),
    [
        (lambda u, y: jnp.sum(jnp.sqrt(1 + u**2)), 3.0),  # Newton's step ends at -27
        # At 40; an eighth of that step goes down, to where it is steeper than at the start.
        (lambda u, y: jnp.sum(jnp.exp(u) - u), -3.8),
        # At all but the same height across, by far less than the slope has promised.
        (lambda u, y: jnp.sum(jnp.sqrt(1 + u**2)), 0.99997),
    ],
    ids=["both ways", "steeper", "across"],
)
def test_a_step_that_goes_too_far_is_halved_until_it_goes_down(loss, start):
    params = jnp.full((4, 1), start)
    model = linear_model.from_products(lambda p, x: p, params, jnp.zeros((4, 1)))
    steps = []
    for unit in (1, 1e-9):  # in which the loss is measured
        objective = Objective(model, lambda u, y: y * loss(u, y), unit, 1e-6 * unit)
        found = minimize(objective, tolerance=1e-8)
        assert float(found.certificate) <= 1e-8
        steps.append(int(found.newton_steps))
        np.testing.assert_allclose(params + found.image, 0, atol=1e-4)
    assert 1 < steps[0] == steps[1] < 10


def test_refuses_what_has_no_minimum():
    objective, *_ = objective_of("function", losses.mean(losses.cross_entropy), 0.0)
    with pytest.raises(ValueError, match="penalty"):
        minimize(objective, tolerance=1e-3)
    with pytest.raises(ValueError, match="tolerance"):
        minimize(objective._replace(penalty=1.0), tolerance=0.0)


def test_evaluations_are_the_products_that_were_taken():
    objective, taken = counted(1e-3)
    found = minimize(objective, tolerance=1e-8)
    jax.effects_barrier()
    assert int(found.newton_steps) > 2
    assert int(found.evaluations) == len(taken)
