"""What `train` adds to plain steps: penalties, inner solves and their stopping, augmentation."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roads
from iterlin import Algorithm, Step, linearize, losses
from iterlin.networks.normalization import Normalization
from iterlin.training.schedules import Solved, every, never, when_solved
from iterlin_study.networks.convnets import normalize
from problems import dense, flat, network, normal

SQUARED = losses.mean(losses.squared_error)
ENTROPY = losses.mean(losses.cross_entropy)


def classified(examples=12):
    f, params, x, _ = network((3, 6, 2), examples=examples)
    return f, params, (x, (x[:, 0] > 0).astype(jnp.int32))


def affine(dtype=jnp.float64):
    """The smallest problem that a step can be looked at with."""
    x = jnp.cos(jnp.arange(6.0, dtype=dtype)).reshape(3, 2)
    return lambda params, x: x @ params["w"], {"w": jnp.ones(2, dtype)}, (x, x[:, 0])


def stepped(algorithm, params, data, schedule, **settings):
    step = Step(algorithm, schedule, **settings)
    return jax.jit(step)(step.start(params, data, jax.random.key(0)), data)


@pytest.mark.parametrize("number", [np.float64, np.float32, jnp.float64, jnp.asarray])
def test_numbers_of_numpy_and_jax_are_those_of_python(number):
    f, params, data = classified()
    params, x = jax.tree.map(jnp.float32, (params, data[0]))
    for engine in ("steps", "kept_steps"):
        settings = {"schedule": 2, "num_steps": 4, "engine": engine, "progress": False}
        pairs = (number(0.5), number(0.25)), (0.5, 0.25)
        runs = (Algorithm(f, ENTROPY, a, penalty=b) for a, b in pairs)
        found, expected = (il.train(run, params, (x, data[1]), **settings)[0] for run in runs)
        jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_the_penalty_is_that_of_damped_gauss_newton():
    """Full steps on f_lin with penalty lambda end at theta_s - (J^T J + 2 lambda I)^-1 J^T z."""
    f, params, x, y = network(examples=3)
    settings = {"loss": losses.squared_error, "optimizer": optax.sgd(0.05), "penalty": 0.3}
    state, _ = roads.train(f, params, (x, y), schedule=never(), num_steps=4000, **settings)
    jacobian, z = dense(f, params, x), np.asarray(f(params, x) - y).ravel()
    normal = jacobian.T @ jacobian + 2 * 0.3 * np.eye(jacobian.shape[1])
    expected = flat(params) - np.linalg.solve(normal, jacobian.T @ z)
    np.testing.assert_allclose(flat(state.params), expected, atol=1e-10)


def test_an_optimizer_is_told_value_and_gradient_of_the_problem_that_it_may_ask():
    f, anchor, data = affine()

    def update(gradient, state, params, *, value, grad, value_fn, **_):
        asked, slope = jax.value_and_grad(value_fn)(params)
        return gradient, {"told": (value, grad, gradient), "asked": (asked, slope, slope)}

    none = 0.0, anchor, anchor
    asking = optax.GradientTransformationExtraArgs(lambda _: {"told": none, "asked": none}, update)
    terms = {"penalty": 0.3, "regularizer": lambda params: jnp.sum(params["w"] ** 4)}
    bent = lambda params, x: jnp.tanh(f(params, x))  # noqa: E731
    step = Step(Algorithm(bent, losses.squared_error, asking, **terms), never())
    state = step.start(anchor, data, jax.random.key(0))
    state = state._replace(step=jnp.asarray(3), params={"w": jnp.asarray([0.5, 2.0])})
    found = jax.jit(step)(state, data).optimizer_state
    np.testing.assert_allclose(flat(found["told"]), flat(found["asked"]), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("bad", ["loss", "parameter"])
def test_one_number_that_is_not_finite_ends_a_run_at_once(bad):
    """Though the others are, and whatever the target."""
    f, params, data = affine()
    params |= {"unused": jnp.ones(())}

    def endless(outputs, y):
        return jnp.sum(outputs) + jnp.inf

    def spoilt(updates, params):
        return updates | {"w": updates["w"].at[1].set(jnp.inf)}

    chosen = (endless, 0.1) if bad == "loss" else (losses.squared_error, optax.stateless(spoilt))
    state = stepped(Algorithm(f, *chosen), params, data, every(1), target_loss=1e9)
    assert (int(state.diverged_at), int(state.converged_at)) == (0, -1)
    np.testing.assert_array_equal(flat(state.params), flat(params))


def test_a_run_begins_with_a_linearisation_whatever_the_schedule_says():
    f, _, (x, _) = affine()
    params, data = {"w": jnp.zeros(2)}, (x, jnp.ones(3))
    # Only there is the network's own loss seen; here it is the target, to the bit.
    target = float(losses.squared_error(jnp.zeros(3), jnp.ones(3)))
    algorithm = Algorithm(f, losses.squared_error, 0.1)
    late = lambda step, state: step > 9  # noqa: E731
    state = stepped(algorithm, params, data, late, target_loss=target)
    assert int(state.converged_at) == 0


def test_parameters_keep_their_type_whatever_the_optimizer_computes_in():
    f, params, data = affine(jnp.float32)
    widely = optax.stateless(lambda updates, _: {"w": -0.1 * updates["w"].astype(jnp.float64)})
    run = Algorithm(f, losses.squared_error, widely)
    assert stepped(run, params, data, every(1)).params["w"].dtype == jnp.float32


def test_a_reset_optimizer_starts_anew_at_each_linearisation():
    f, params, data = classified()
    adam = optax.adam(0.01)
    settings = {"loss": ENTROPY, "optimizer": adam, "schedule": every(4), "num_steps": 4}
    half, _ = roads.train(f, params, data, **settings)
    again, _ = roads.train(f, half.params, data, **settings)
    settings |= {"reset_optimizer": True, "num_steps": 8}
    twice, _ = roads.train(f, params, data, **settings)
    np.testing.assert_allclose(flat(twice.params), flat(again.params), rtol=1e-12)


@pytest.mark.parametrize("fraction", [0.4, 0.6])
def test_a_gradient_whose_squares_float16_does_not_hold_is_found_to_fall(fraction):
    """The gradient is 40,000, and one step halves it."""
    x, start = jnp.full((4, 1), 100, "float16"), jnp.zeros(1, "float16")
    algorithm = Algorithm(lambda p, x: x @ p, losses.squared_error, 1 / 80_000)
    step = Step(algorithm, when_solved(Solved(1, None, fraction)))
    state = step(step.start(start, (x, x[:, 0])), (x, x[:, 0]))
    assert bool(state.solved) == (fraction > 0.5)


@pytest.mark.parametrize(("rule", "batch_size"), [("accuracy", 4), ("gradient", None)])
def test_a_linear_problem_is_left_when_it_is_solved(rule, batch_size):
    """Every re-linearisation happens where an independent look finds the rule met, none before."""
    f, params, data = classified(examples=13)
    check, penalty = 5, 0.05
    solved = Solved(check, 1.0, None, 5) if rule == "accuracy" else Solved(check, None, 0.2, 5)
    settings = {"penalty": penalty, "reset_optimizer": True}
    algorithm = Algorithm(f, ENTROPY, optax.adam(0.01), **settings)
    run = Step(algorithm, when_solved(solved, max_period=60), batch_size)
    advance = jax.jit(lambda state, count: run.advance(state, data, count))

    def objective(p, anchor):
        gap = sum(jnp.sum(d**2) for d in jax.tree.leaves(jax.tree.map(jnp.subtract, p, anchor)))
        return ENTROPY(linearize(f, anchor)(p, data[0]), data[1]) + penalty * gap

    @jax.jit
    def is_solved(state):
        if rule == "accuracy":
            outputs = linearize(f, state.anchor)(state.params, data[0])
            return jnp.all(jnp.argmax(outputs, -1) == data[1])
        slopes = (jax.grad(objective)(p, state.anchor) for p in (state.params, state.anchor))
        now, first = map(optax.tree.norm, slopes)
        return now <= 0.2 * first

    state, early, left = run.start(params, data, jax.random.key(5)), 0, 0
    for _ in range(40):
        state = advance(state, check)
        assert int(state.updates) == left
        met = bool(is_solved(state))
        due = met or int(state.step - state.anchored_at) >= 60
        assert int(advance(state, 1).updates) - int(state.updates) == due
        early, left = early + met, left + due
    assert early >= 2


def test_plain_steps_ask_a_network_for_its_reverse_derivative_alone():
    """Of some, as those with a `jax.custom_vjp`, there is no other."""
    square = jax.custom_vjp(jnp.square)
    square.defvjp(lambda u: (u**2, u), lambda u, slope: (2 * u * slope,))
    f, params, data = affine()
    runs = [Algorithm(lambda p, x, g=g: g(f(p, x)), SQUARED, 0.01) for g in (square, jnp.square)]
    found, expected = (stepped(run, params, data, every(1)).params["w"] for run in runs)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def normalised():
    """A network with batch normalisation, of one hidden layer: its parameters and its two forms."""

    def outputs(params, statistics, h):
        h = normalize(h, *statistics, params["scale"], params["shift"])
        return jnp.tanh(h) @ params["last"]

    def apply(params, statistics, x):
        h = x @ params["first"]
        batch = h.mean(0), h.var(0)
        after = jax.tree.map(lambda old, new: 0.8 * old + 0.2 * new, statistics, batch)
        return outputs(params, batch, h), jax.lax.stop_gradient(after)

    def evaluate(params, statistics, x):
        return outputs(params, statistics, x @ params["first"])

    rng = np.random.default_rng(0)
    params = {"first": rng.normal(size=(3, 5)), "last": rng.normal(size=(5, 4))}
    params = jax.tree.map(jnp.asarray, params | {"scale": np.ones(5), "shift": np.zeros(5)})
    return params, Normalization((jnp.zeros(5), jnp.ones(5)), apply, evaluate)


def test_running_statistics_come_from_the_anchor_alone():
    """Within a period the statistics are the moving average of the anchor's, batch by batch."""
    params, normalization = normalised()
    x, y = normal(8, 3), jnp.arange(8) % 4

    def f(params, x):
        return normalization.apply(params, normalization.initial, x)[0]

    settings = {"loss": ENTROPY, "optimizer": optax.sgd(0.05), "progress": False, "num_steps": 3}
    settings |= {"normalization": normalization}
    state, _ = roads.train(f, params, (x, y), schedule=never(), **settings)
    expected = normalization.initial
    for _ in range(3):
        _, expected = normalization.apply(params, expected, x)
    np.testing.assert_allclose(flat(state.statistics), flat(expected), rtol=1e-9)
    stepped, _ = roads.train(f, params, (x, y), schedule=every(1), **settings)
    assert np.abs(flat(stepped.statistics) - flat(expected)).max() > 1e-6


def test_a_part_of_a_normalised_network_moves_as_if_the_rest_were_written_into_it():
    """With its running statistics, a regularizer of all parameters and the rule `solved`."""
    params, normalization = normalised()
    data = normal(8, 3), jnp.arange(8) % 4

    def f(p, x):
        return normalization.evaluate(p, normalization.initial, x)

    def regularizer(p):
        return 0.1 * optax.tree.norm(p, squared=True) ** 2

    def written(function):
        return lambda last, *given: function({**params, "last": last}, *given)

    forms = map(written, (normalization.apply, normalization.evaluate))
    alone = {"normalization": Normalization(normalization.initial, *forms)}
    alone |= {"regularizer": written(regularizer)}
    schedule = when_solved(Solved(2, 0.5), max_period=3)
    settings = {"loss": ENTROPY, "optimizer": 0.01, "schedule": schedule, "num_steps": 9}
    settings |= {"evaluate": {"train": data}, "progress": False}
    expected, reference = roads.train(written(f), params["last"], data, **alone, **settings)
    settings |= {"normalization": normalization, "regularizer": regularizer}
    settings |= {"trainable": lambda path: path == "last"}
    state, history = roads.train(f, params, data, **settings)
    np.testing.assert_allclose(state.params["last"], expected.params, rtol=1e-11)
    for name in params.keys() - {"last"}:
        np.testing.assert_array_equal(state.params[name], params[name])
    np.testing.assert_allclose(flat(state.statistics), flat(expected.statistics), rtol=1e-11)
    for name, values in reference.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-11, err_msg=name)
