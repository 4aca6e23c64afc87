"""Networks as people have them: parts that are trained, pytrees of inputs, outputs of any rank,
networks that draw, data that comes in batches."""

import itertools
from functools import partial

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin.training import losses, schedules, timed
from problems import bare, flat, normal, single
from refusals import fails, refused

N, T, CLASSES = 12, 3, 4
KEY = jax.random.key(7)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(N, 5)))
LABELS = jnp.asarray(RNG.integers(CLASSES, size=N))
TOKEN_LABELS = jnp.asarray(RNG.integers(CLASSES, size=(N, T)))
ENTROPY = losses.mean(losses.cross_entropy)
SHAPES = {"body": (5, 6), "head": (6, CLASSES)}
PARAMS = {name: jnp.asarray(RNG.normal(size=shape) / 2) for name, shape in SHAPES.items()}


def classifier(params, x):
    return jnp.tanh(x @ params["body"]) @ params["head"]


def tokens(params, x):
    """Outputs (N, T, classes)."""
    scales = 1.0 + jnp.arange(T)
    return jnp.tanh(jnp.einsum("t,nh->nth", scales, x @ params["body"])) @ params["head"]


def run(f, params, data, *, loss=ENTROPY, optimizer=0.3, schedule=4, num_steps=11, **settings):
    watch = settings.pop("watch", il.Watch({"train": data}))
    of_run = {name: settings.pop(name, None) for name in ("key", "batch_size", "augment")}
    algorithm = il.Algorithm(f, loss, optimizer, **settings)
    of_run |= {"schedule": schedule, "num_steps": num_steps, "watch": watch}
    return il.train(algorithm, params, data, **of_run)


def close(a, b, tolerance=1e-12):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=tolerance), a, b)


@partial(jax.jit, static_argnames=("f", "extra"))
def descended(params, anchor, f=classifier, *, data=(X, LABELS), size=0.3, key=(), extra=None):
    """A step of gradient descent on the network linearised at the anchor."""
    x, y = data
    proxy = il.linearize(lambda p, x: f(p, x, *key), anchor)
    slope = jax.grad(lambda p: ENTROPY(proxy(p, x), y) + (extra(p) if extra else 0.0))(params)
    return jax.tree.map(lambda p, g: p - size * g, params, slope)


def by_hand(period, num_steps=11, f=classifier, given=lambda step: {}):
    """Parameters after steps that are `descended`, each with what `given(step)` says."""
    params = anchor = PARAMS
    for step in range(num_steps):
        anchor = params if step % period == 0 else anchor
        params = descended(params, anchor, f, **given(step))
    return params


def test_what_is_not_floating_point_is_left_alone():
    """To the object: an index in 64 bits that JAX has no type for is still one."""
    params = {**PARAMS, "step": 3, "ids": np.arange(4), "key": KEY, "nothing": None}
    state, _ = run(classifier, params, (X, LABELS))
    wanted, _ = run(classifier, PARAMS, (X, LABELS))
    close({name: state.params[name] for name in PARAMS}, wanted.params, 0)
    assert state.params["nothing"] is None
    assert all(state.params[name] is params[name] for name in ("step", "ids", "key"))
    assert il.jacobian(classifier, params, X).shape == (N * CLASSES, 54)


def test_complex_parameters_are_refused_where_they_would_be_trained():
    params = {**PARAMS, "phase": jnp.asarray([1j])}
    for call in (run, lambda f, params, _: il.empirical_ntk(f, params, X)):
        with pytest.raises(ValueError, match=r"params hold complex128 at 'phase'.* real and imag"):
            call(classifier, params, (X, LABELS))
    fixed = il.jacobian(classifier, params, X, trainable=lambda name: name != "phase")
    np.testing.assert_array_equal(fixed, il.jacobian(classifier, PARAMS, X))


def test_linear_algebra_is_that_of_the_part():
    """Columns of the Jacobian, products with it, the proxy and the exact solutions."""
    trainable = {"body": True, "head": False}
    whole = il.jacobian(classifier, PARAMS, X)
    found = il.jacobian(classifier, PARAMS, X, trainable=trainable)
    close(found, whole[:, : PARAMS["body"].size])
    close(il.jacobian(classifier, PARAMS, X, trainable=trainable, independent=False), found)
    products = il.jacobian_products(classifier, PARAMS, X, trainable=trainable)
    cotangent, y = normal(N, CLASSES), normal(N, CLASSES, seed=1)
    close(flat(products.vjp(cotangent)), cotangent.reshape(-1) @ found)
    moved = il.linearized_gradient_flow(classifier, PARAMS, X, y, time=0.7, trainable=trainable)
    values, vectors = np.linalg.eigh(np.asarray(found @ found.T))
    decayed = vectors @ np.diag(np.exp(-0.7 * values)) @ vectors.T
    residual = decayed @ np.asarray(classifier(PARAMS, X) - y).reshape(-1)
    proxy = il.linearize(classifier, PARAMS, trainable=trainable)
    close(proxy(moved, X) - y, residual.reshape(N, CLASSES), 1e-9)
    np.testing.assert_array_equal(moved["head"], PARAMS["head"])


test_a_bad_choice_of_parameters_is_refused = refused(
    lambda params, trainable: run(classifier, params, (X, LABELS), trainable=trainable),
    (PARAMS, lambda name: False, r"no floating point leaf to train, of body \(f.*, head"),
    (jnp.arange(3), None, r"params hold no floating .* to train, of params \(int64\)$"),
    (PARAMS, {"body": True}, "is not a prefix of params"),
    (PARAMS, lambda name: 1, "must be true or false of 'body', got 1"),
    ([jnp.ones(1)] * 9, lambda name: False, r"to train, of 0 .*, 1 .*, 7 \(float64\), \.\.\.$"),
    ({"act": jax.nn.relu}, None, "at 'act', which is no array: take apart"),
    (jax.nn.relu, None, "at '', which is no array: params come after f"),
)


def test_inputs_and_targets_may_be_pytrees():
    """A mask with the inputs, weights with the targets."""

    def masked(params, x):
        return classifier(params, x["features"] * x["mask"][:, None])

    def weighted(outputs, y):
        each = optax.softmax_cross_entropy_with_integer_labels(outputs, y["label"])
        return jnp.mean(each * y["weight"])

    x = {"features": X, "mask": jnp.where(jnp.arange(N) % 3 == 0, 0.0, 1.0)}
    weights = jnp.linspace(0.5, 2, N)
    data = x, {"label": LABELS, "weight": weights}

    def plain(outputs, y):
        return weighted(outputs, {"label": y[:, 0].astype(int), "weight": y[:, 1]})

    stacked = X * x["mask"][:, None], jnp.stack([LABELS * 1.0, weights], 1)
    settings = {"batch_size": 5, "key": KEY}
    state, history = run(masked, PARAMS, data, loss=weighted, **settings)
    wanted, expected = run(classifier, PARAMS, stacked, loss=plain, **settings)
    close(state.params, wanted.params)
    close(history, expected)
    close(il.jacobian(masked, PARAMS, x), il.jacobian(classifier, PARAMS, stacked[0]))


def test_outputs_may_be_of_any_rank():
    """Everything is as of the same outputs, raveled, example by example."""

    def raveled(params, x):
        return tokens(params, x).reshape(len(x), -1)

    def loss_of_raveled(outputs, targets):
        return ENTROPY(outputs.reshape(N, T, CLASSES), targets)

    data = X, TOKEN_LABELS
    state, history = run(tokens, PARAMS, data, optimizer=0.05)
    wanted, expected = run(raveled, PARAMS, data, loss=loss_of_raveled, optimizer=0.05)
    close(state.params, wanted.params)
    close(history, expected)
    close(il.jacobian(tokens, PARAMS, X), il.jacobian(raveled, PARAMS, X))


# Networks that draw, further terms of the loss, optimisers that search ----------------------


def dropped(params, x, key):
    keep = 1.0 if key is None else jax.random.bernoulli(key, 0.7, x.shape) / 0.7
    return classifier(params, x * keep)


@pytest.mark.parametrize("schedule", [1, 4])
def test_a_keyed_network_draws_anew_at_each_step(schedule):
    """Network and Jacobian of a step share what it draws; looks draw nothing."""
    state, history = run(dropped, PARAMS, (X, LABELS), keyed=True, key=KEY, schedule=schedule)
    stream = jax.random.fold_in(KEY, 2**31 - 2)
    drawn = lambda step: {"key": (jax.random.fold_in(stream, step),)}  # noqa: E731
    close(state.params, by_hand(schedule, f=dropped, given=drawn))
    looked = ENTROPY(classifier(state.params, X), LABELS)
    np.testing.assert_allclose(history["train_loss"][-1], looked)


def test_inputs_are_augmented_with_a_key_of_the_step():
    def augment(key, x):
        return x + jax.random.normal(key, x.shape)

    state, _ = run(classifier, PARAMS, (X, LABELS), augment=augment, key=KEY)
    stream = jax.random.fold_in(KEY, 2**31 - 1)
    drawn = lambda step: {"data": (augment(jax.random.fold_in(stream, step), X), LABELS)}  # noqa: E731
    close(state.params, by_hand(4, given=drawn))


def test_a_regularizer_is_part_of_the_objective():
    def towards_start(params):
        moved = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), params, PARAMS)
        return 0.1 * sum(jax.tree.leaves(moved)) + 0.01 * jnp.sum(params["head"] ** 4)

    state, _ = run(classifier, PARAMS, (X, LABELS), regularizer=towards_start)
    close(state.params, by_hand(4, given=lambda step: {"extra": towards_start}))


def test_a_line_search_solves_the_linear_problem():
    """L-BFGS sees the step's own objective, penalty included, and reaches its minimum."""
    y = normal(N, CLASSES)
    settings = {"loss": losses.squared_error, "optimizer": optax.lbfgs(), "penalty": 0.2}
    settings |= {"schedule": il.never(), "num_steps": 60, "watch": il.Watch()}
    state, _ = run(classifier, PARAMS, (X, y), **settings)
    close(state.params, il.eigenmodes(classifier, PARAMS, X, y).damped(0.4), 1e-5)
    params, *data = single((PARAMS, X, y))  # not of the default type
    again, _ = run(classifier, params, data, **settings)
    close(again.params, state.params, 1e-2)


def test_batches_may_come_from_an_iterable():
    order = [np.arange(4) + start for start in (0, 4, 8, 0, 4, 8, 0)]  # one more than steps
    taken = []

    def batches():
        for chosen in order:
            taken.append(chosen[0])
            yield X[chosen], LABELS[chosen]

    watch = il.Watch({"train": (X, LABELS)}, at=[0, 3, 6])
    state, history = run(classifier, PARAMS, batches(), num_steps=6, schedule=2, watch=watch)
    part = lambda step: {"data": (X[order[step]], LABELS[order[step]])}  # noqa: E731
    close(state.params, by_hand(2, 6, given=part))
    assert len(taken) == 6
    assert history["step"].tolist() == [0, 3, 6]


@jax.jit
def drift(state):
    rows = [il.jacobian(classifier, p, X[:4]) for p in (state.anchor, state.params)]
    return il.kernel_drift(*(r @ r.T for r in rows))


def test_a_schedule_looks_at_the_network_now_and_then():
    schedule = schedules.when(lambda state: drift(state) > 0.15, check_every=3)
    settings = {"schedule": schedule, "optimizer": 1.0, "trainable": lambda name: name == "body"}
    settings |= {"num_steps": 30, "watch": il.Watch(at=range(31))}
    state, history = run(classifier, PARAMS, (X, LABELS), **settings)
    params = anchor = PARAMS
    anchored, updates = 0, []
    for step in range(30):
        looked = step > anchored and (step - anchored) % 3 == 0
        if looked and drift(state._replace(params=params, anchor=anchor)) > 0.15:
            anchor, anchored = params, step
            updates.append(step)
        params = PARAMS | {"body": descended(params, anchor, size=1.0)["body"]}
    close(state.params, params)
    assert len(updates) >= 2
    # A look at step t sees the updates of the steps before it.
    assert np.flatnonzero(np.diff(history["updates"])).tolist() == updates


def test_a_schedule_may_be_a_number_and_data_a_list():
    wanted, _ = run(classifier, PARAMS, (X, LABELS), schedule=il.every(4))
    state, _ = run(classifier, PARAMS, [X, LABELS], schedule=4.0, watch=il.Watch())
    close(state.params, wanted.params, 0)
    algorithm = il.Algorithm(classifier, ENTROPY, 0.1)
    for schedule in ("often", 0):
        with pytest.raises(ValueError, match="schedule must be a period, a list"):
            bare(il.train)(algorithm, PARAMS, (X, LABELS), schedule=schedule, num_steps=3)


def test_a_period_of_a_fixed_time():
    """Every period has that time exactly, and steps that stay below the stable ones."""
    time, fraction = 8.0, 0.5
    rule = timed.for_time(time, fraction=fraction)
    seen = lambda state: {"step_size": state.optimizer_state.step_size}  # noqa: E731
    watch = il.Watch({"train": (X, LABELS)}, at=range(301), observe=seen)
    settings = {**rule._asdict(), "num_steps": 300, "watch": watch}
    _, history = run(classifier, PARAMS, (X, LABELS), **settings)
    begins = np.append(0, np.flatnonzero(np.diff(history["updates"])))
    assert len(begins) >= 3
    sizes = np.diff(begins)
    eta = history["step_size"][begins[:-1] + 1]
    np.testing.assert_allclose(sizes * eta, time)
    matrix = il.jacobian(classifier, PARAMS, X)
    largest = np.linalg.eigvalsh(np.asarray(matrix @ matrix.T))[-1]
    bound = losses.smoothness(ENTROPY, LABELS) * largest
    assert 0.85 / 1.1 < eta[0] * bound / (2 * fraction) <= 1.0
    proxy = history["train_loss_proxy"]
    for first, last in itertools.pairwise(begins):
        assert np.all(np.diff(proxy[first + 1 : last + 1]) <= 1e-12)


def test_a_penalty_counts_twice_in_the_curvature_of_a_fixed_time():
    """J J^T is the identity, L therefore 1.1 + 2 * 0.3, and 10 L / (2 * 0.4) is 21.25."""
    rule = timed.for_time(10.0, fraction=0.4)
    algorithm = il.Algorithm(lambda p, x: p, losses.squared_error, rule.optimizer, penalty=0.3)
    data = jnp.ones((3, 1)), jnp.ones(3)
    settings = {"schedule": rule.schedule, "num_steps": 1}
    found = il.train(algorithm, jnp.zeros(3), data, **settings)[0].optimizer_state
    assert int(found.left) == 21
    np.testing.assert_allclose(found.step_size, 10 / 22)


def test_a_fixed_time_needs_a_known_curvature():
    rule = timed.for_time(1.0)
    with pytest.raises(ValueError, match=r"no bound on the curvature of .*: take a fixed"):
        run(classifier, PARAMS, (X, LABELS), **rule._asdict(), loss=lambda o, y: jnp.sum(o**4))
    with pytest.raises(ValueError, match="regularizer"):
        run(classifier, PARAMS, (X, LABELS), **rule._asdict(), regularizer=optax.tree.norm)
    with pytest.raises(ValueError, match="needs its optimizer"):
        run(classifier, PARAMS, (X, LABELS), schedule=rule.schedule, optimizer=0.1)
    # In a chain, too, the schedule finds what it needs.
    chain = optax.chain(optax.clip_by_global_norm(1e3), rule.optimizer)
    settings = {"schedule": rule.schedule, "num_steps": 3}
    alone = run(classifier, PARAMS, (X, LABELS), **rule._asdict(), num_steps=3)[0].params
    chained = run(classifier, PARAMS, (X, LABELS), optimizer=chain, **settings)[0].params
    jax.tree.map(np.testing.assert_array_equal, chained, alone)
    for settings in ({"time": 0.0}, {"time": 1.0, "fraction": 1.0}):
        fails("must", timed.for_time, **settings)
