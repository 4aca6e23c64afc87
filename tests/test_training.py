"""Algorithm 3: the compiled loop against a plain one, its limits in K, and how runs end."""

import math
from itertools import count

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roads
from iterlin import every, linearize, losses, never, schedules
from iterlin.algorithm import Algorithm
from iterlin.networks.mlp import mlp
from iterlin.runtime import checkpoints, chunks
from iterlin.state import TrainState
from iterlin.study import runs
from iterlin.study.groups import Problem
from iterlin.watching import Watch, check_watch, log_steps, observer
from problems import bare, dense, flat, network
from roads import train, train_sweep

MEAN_ENTROPY = losses.mean(losses.cross_entropy)
OPTIMIZERS = {"sgd": optax.sgd(0.05), "adam": optax.adam(0.01)}


def classification(dtype=jnp.float64):
    """A small network with labels: f, params, (x, labels)."""
    f, params, x, _ = network((3, 6, 3), examples=10, activation="relu")
    params, x = jax.tree.map(lambda leaf: leaf.astype(dtype), (params, x))
    return f, params, (x, jnp.arange(10) % 3)


def regression():
    f, params, x, y = network((3, 6, 2), examples=10)
    return f, params, (x, y)


def batches(key, size, batch_size, num_steps):
    """The order that a key gives, epoch by epoch, an incomplete last batch left out."""
    per_epoch = size // batch_size
    for step in range(num_steps):
        epoch, index = divmod(step, per_epoch)
        order = jax.random.permutation(jax.random.fold_in(key, epoch), size)
        yield np.asarray(order[index * batch_size : (index + 1) * batch_size])


def algorithm_3(f, params, data, loss, optimizer, due, num_steps, chosen):
    """Algorithm 3 by hand: a dense Jacobian at the anchor, gradients J^T l'(f_s + J d)."""
    x, y = data
    vector, unravel = jax.flatten_util.ravel_pytree(params)
    state = optimizer.init(vector)
    outputs_of = jax.jit(f)
    slope = jax.jit(jax.grad(loss))
    jacobian_of = jax.jit(jax.jacfwd(lambda v: f(unravel(v), x)))
    anchors = []
    for step in range(num_steps):
        if step == 0 or due(step):
            anchor = vector
            anchors.append(step)
            outputs, jacobian = outputs_of(unravel(anchor), x), np.asarray(jacobian_of(anchor))
        rows = np.arange(len(x)) if chosen is None else next(chosen)
        proxy = np.asarray(outputs)[rows] + jacobian[rows] @ np.asarray(vector - anchor)
        pull = np.asarray(slope(jnp.asarray(proxy), y[rows]))
        gradient = np.einsum("nop,no->p", jacobian[rows], pull)
        updates, state = optimizer.update(jnp.asarray(gradient), state, vector)
        vector = optax.apply_updates(vector, updates)
    return vector, anchor, len(anchors) - 1


@pytest.mark.parametrize(
    ("problem", "loss", "optimizer", "period", "batch_size"),
    [
        (regression, losses.squared_error, "sgd", 3, None),
        (regression, losses.squared_error, "adam", 7, None),
        (regression, losses.mean(losses.squared_error), "adam", 5, 4),
        (classification, MEAN_ENTROPY, "sgd", 1, None),
        (classification, MEAN_ENTROPY, "adam", 4, 3),
        (classification, MEAN_ENTROPY, "sgd", math.inf, 10),
    ],
)
def test_training_equals_a_plain_loop(problem, loss, optimizer, period, batch_size):
    f, params, data = problem()
    key, num_steps = jax.random.key(5), 20
    state, history = train(
        f,
        params,
        data,
        loss=loss,
        optimizer=OPTIMIZERS[optimizer],
        schedule=every(period),
        num_steps=num_steps,
        batch_size=batch_size,
        key=key,
        evaluate={"all": data},
    )
    chosen = None if batch_size is None else batches(key, 10, batch_size, num_steps)
    vector, anchor, updates = algorithm_3(
        f,
        params,
        data,
        loss,
        OPTIMIZERS[optimizer],
        lambda step: step % period == 0,
        num_steps,
        chosen,
    )
    np.testing.assert_allclose(flat(state.params), vector, atol=1e-11)
    np.testing.assert_allclose(flat(state.anchor), anchor, atol=1e-11)
    assert int(state.step) == num_steps
    assert int(state.updates) == history["updates"][-1] == updates
    assert float(state.diverged_at) == float(state.converged_at) == -1
    assert not state.solved
    final = float(loss(f(state.params, data[0]), data[1]))
    assert history["all_loss"][-1] == pytest.approx(final, rel=1e-12)
    proxy = linearize(f, state.anchor)(state.params, data[0])
    assert history["all_loss_proxy"][-1] == pytest.approx(float(loss(proxy, data[1])), rel=1e-12)


@pytest.mark.optimized
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_period_one_is_plain_gradient_descent_bit_for_bit(dtype, batch_size):
    f, params, data = classification(dtype)
    key, num_steps = jax.random.key(3), 40
    state, _ = train(
        f,
        params,
        data,
        loss=MEAN_ENTROPY,
        optimizer=optax.sgd(0.1),
        schedule=every(1),
        num_steps=num_steps,
        batch_size=batch_size,
        key=key,
    )

    @jax.jit
    def step(params, x, y):
        gradient = jax.grad(lambda p: MEAN_ENTROPY(f(p, x), y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    x, y = data
    plain = params
    chosen = batches(key, 10, batch_size or 10, num_steps)
    for rows in chosen:
        plain = step(plain, x, y) if batch_size is None else step(plain, x[rows], y[rows])
    for found, expected in zip(jax.tree.leaves(state.params), jax.tree.leaves(plain), strict=True):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(flat(state.anchor), flat(state.params), atol=0.1)


def test_never_is_training_of_the_linearised_network():
    f, params, data = classification()
    settings = {
        "loss": MEAN_ENTROPY,
        "optimizer": optax.adam(0.02),
        "num_steps": 60,
        "batch_size": 5,
        "key": jax.random.key(1),
    }
    state, history = train(f, params, data, schedule=never(), **settings)
    plain, _ = train(linearize(f, params), params, data, schedule=every(1), **settings)
    np.testing.assert_allclose(flat(state.params), flat(plain.params), atol=1e-12)
    np.testing.assert_array_equal(flat(state.anchor), flat(params))
    assert history["updates"][-1] == 0


def test_a_schedule_may_look_at_the_drift_of_the_parameters():
    f, params, data = regression()
    limit = 0.3

    def drifted(step, state):
        leaves = zip(jax.tree.leaves(state.params), jax.tree.leaves(state.anchor), strict=True)
        return sum(jnp.sum((a - b) ** 2) for a, b in leaves) > limit**2

    state, _ = train(
        f,
        params,
        data,
        loss=losses.squared_error,
        optimizer=optax.sgd(0.02),
        schedule=drifted,
        num_steps=60,
    )
    # By hand, with the gradient of the proxy from `linearize`.
    theta = anchor = params
    updates = 0
    descend = jax.jit(
        lambda theta, anchor: jax.tree.map(
            lambda p, g: p - 0.02 * g,
            theta,
            jax.grad(lambda t: losses.squared_error(linearize(f, anchor)(t, data[0]), data[1]))(
                theta
            ),
        )
    )
    for _ in range(60):
        if np.linalg.norm(flat(theta) - flat(anchor)) > limit:
            anchor, updates = theta, updates + 1
        theta = descend(theta, anchor)
    np.testing.assert_allclose(flat(state.params), flat(theta), atol=1e-11)
    assert int(state.updates) == updates
    assert 1 < updates < 30


# Sweeps, chunks and resumption.


def sweep(periods=(1, 5, math.inf), seeds=2, num_steps=12, lr=0.05, **settings):
    f, _, data = classification()
    model = mlp((3, 6, 3))
    keys = jax.random.split(jax.random.key(7), seeds)
    return (
        f,
        model,
        data,
        keys,
        train_sweep(
            f,
            model.init,
            data,
            periods=periods,
            keys=keys,
            loss=MEAN_ENTROPY,
            optimizer=optax.sgd(lr),
            num_steps=num_steps,
            batch_size=4,
            evaluate={"train": data},
            metrics={"loss": MEAN_ENTROPY, "accuracy": losses.accuracy},
            **settings,
        ),
    )


def test_a_sweep_equals_its_runs_one_by_one():
    periods = (1, 5, math.inf)
    f, model, data, keys, (states, history) = sweep(periods)
    assert history["train_loss"].shape == (3, 2, len(history["step"]))
    looked = {f"train_{name}{of}" for name in ("loss", "accuracy") for of in ("", "_proxy")}
    assert set(history) == looked | {"step", "updates"}
    for i, period in enumerate(periods):
        for j, key in enumerate(keys):
            state, single = train(
                f,
                model.init(key),
                data,
                loss=MEAN_ENTROPY,
                optimizer=optax.sgd(0.05),
                schedule=every(period),
                num_steps=12,
                batch_size=4,
                key=jax.random.fold_in(key, 1),
                evaluate={"train": data},
                metrics={"loss": MEAN_ENTROPY, "accuracy": losses.accuracy},
            )
            chosen = jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], states.params)
            np.testing.assert_allclose(flat(chosen), flat(state.params), atol=1e-12)
            assert int(states.updates[i, j]) == int(state.updates)
            for name in single.keys() - {"step"}:
                np.testing.assert_allclose(history[name][i, j], single[name], atol=1e-12)
            accuracy = losses.accuracy(f(state.params, data[0]), data[1])
            np.testing.assert_allclose(single["train_accuracy"][-1], accuracy)


def test_a_sweep_may_draw_its_data_from_its_keys():
    model = mlp((2, 4, 1))

    def draw(key):
        x = jax.random.normal(jax.random.fold_in(key, 9), (6, 2))
        return x, jnp.prod(x, 1, keepdims=True)

    keys = jax.random.split(jax.random.PRNGKey(0), 2)  # rows of numbers, as keys once were
    settings = {"loss": losses.squared_error, "optimizer": optax.sgd(0.01), "num_steps": 8}
    states, _ = train_sweep(model.apply, model.init, draw, periods=[2], keys=keys, **settings)
    for j, key in enumerate(keys):
        state, _ = train(model.apply, model.init(key), draw(key), schedule=every(2), **settings)
        chosen = jax.tree.map(lambda leaf, j=j: leaf[0, j], states.params)
        np.testing.assert_allclose(flat(chosen), flat(state.params), atol=1e-12)


def test_chunks_do_not_change_the_result():
    f, params, data = classification()
    settings = {
        "loss": MEAN_ENTROPY,
        "optimizer": optax.adam(0.02),
        "schedule": every(3),
        "num_steps": 25,
        "batch_size": 4,
        "key": jax.random.key(2),
        "evaluate": {"train": data},
    }
    grids = [[25], [0, 1, 2, 3, 7, 24, 25], None, list(range(26))]
    runs = [train(f, params, data, eval_steps=grid, **settings) for grid in grids]
    full = runs[-1][1]
    for state, history in runs:
        np.testing.assert_array_equal(flat(state.params), flat(runs[0][0].params))
        np.testing.assert_array_equal(full["train_loss"][history["step"]], history["train_loss"])
    # At a multiple of K the proxy is the old one: it is renewed by the step that follows.
    steps = np.arange(26)
    np.testing.assert_array_equal(full["updates"], np.maximum(-(-steps // 3) - 1, 0))


def test_a_resumed_run_is_the_uninterrupted_one():
    f, params, data = classification()
    settings = {
        "loss": MEAN_ENTROPY,
        "optimizer": optax.adam(0.02),
        "schedule": every(5),
        "batch_size": 4,
        "evaluate": {"train": data},
    }
    key = jax.random.key(2)
    whole, history = train(f, params, data, num_steps=23, key=key, **settings)
    half, _ = train(f, params, data, num_steps=11, key=key, **settings)
    saved = jax.tree.map(
        lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf),
        half,
    )
    resumed, rest = train(f, jax.tree.map(jnp.asarray, saved), data, num_steps=23, **settings)
    for name in TrainState._fields:
        if name != "key":
            np.testing.assert_array_equal(
                flat(getattr(resumed, name)), flat(getattr(whole, name)), err_msg=name
            )
    assert rest["step"][0] == 11
    assert rest["step"][-1] == 23
    assert rest["train_loss"][-1] == history["train_loss"][-1]


def test_a_run_goes_on_from_its_checkpoint_and_from_no_other_s(tmp_path, monkeypatch):
    x = jnp.eye(3)
    settings = {"loss": losses.squared_error, "optimizer": 0.1, "schedule": every(3)}
    settings |= {"num_steps": 8, "eval_steps": [0, 5, 8], "data": (x, x + 1)}

    def f(params, x):
        return jnp.sin(x @ params)

    whole, _ = train(f, x, **settings)
    settings["checkpoint"] = tmp_path / "run"

    def killed(*arguments, notes, save=checkpoints.save, **settings):
        save(*arguments, notes=notes, **settings)
        if notes["taken"] == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", killed)
        patched.setattr(chunks.time, "monotonic", count(step=chunks.CHECKPOINT).__next__)
        with pytest.raises(KeyboardInterrupt):
            train(f, x, **settings)
    state, history = train(f, x, **settings)
    np.testing.assert_array_equal(state.params, whole.params)
    assert history["updates"].tolist() == [0, 1, 2]
    changes = {"the data": {"data": (x, x)}, r"optimizer .* \(0.1, here 0.2\)": {"optimizer": 0.2}}
    for words, change in changes.items():
        with pytest.raises(checkpoints.CheckpointError, match=f"it differs in {words}"):
            train(f, x, **settings | change)


# How runs end.


def test_divergence_is_recorded_with_its_step_and_not_raised():
    f, params, data = regression()
    state, history = train(
        f,
        params,
        data,
        loss=losses.squared_error,
        optimizer=optax.sgd(1e3),
        schedule=every(1),
        num_steps=50,
        evaluate={"train": data},
    )
    step = int(state.diverged_at)
    assert 0 < step < 50
    assert int(state.converged_at) == -1
    assert np.all(np.isfinite(flat(state.params)))
    # One step fewer has not diverged yet, and leaves the same parameters.
    before, _ = train(
        f,
        params,
        data,
        loss=losses.squared_error,
        optimizer=optax.sgd(1e3),
        schedule=every(1),
        num_steps=step,
    )
    assert int(before.diverged_at) == -1
    np.testing.assert_array_equal(flat(before.params), flat(state.params))
    assert history["step"][-1] == 50


def test_the_other_runs_of_a_sweep_go_on():
    """A target that one seed's data makes infinite ends that run alone, for every period."""
    model = mlp((2, 4, 1))
    keys = jax.random.split(jax.random.key(0), 3)

    def draw(key):
        x = jax.random.normal(key, (6, 2))
        bad = jnp.all(jax.random.key_data(key) == jax.random.key_data(keys[1]))
        return x, jnp.where(bad, jnp.inf, jnp.prod(x, 1, keepdims=True))

    settings = {"loss": losses.squared_error, "optimizer": optax.sgd(0.02), "num_steps": 30}
    states, _ = train_sweep(model.apply, model.init, draw, periods=[1, 10], keys=keys, **settings)
    assert states.diverged_at.tolist() == [[-1, 0, -1]] * 2
    for j in (0, 2):
        alone, _ = train(
            model.apply, model.init(keys[j]), draw(keys[j]), schedule=every(10), **settings
        )
        chosen = jax.tree.map(lambda leaf, j=j: leaf[1, j], states.params)
        np.testing.assert_allclose(flat(chosen), flat(alone.params), atol=1e-12)


def test_target_loss_ends_a_run_at_a_linearisation():
    f, params, data = regression()
    settings = {"loss": losses.squared_error, "optimizer": optax.sgd(0.02), "num_steps": 400}
    _, history = train(
        f,
        params,
        data,
        schedule=every(10),
        evaluate={"train": data},
        eval_steps=list(range(401)),
        **settings,
    )
    target = float(history["train_loss"][200])
    reached = next(s for s in range(0, 401, 10) if history["train_loss"][s] <= target)
    state, _ = train(f, params, data, schedule=every(10), target_loss=target, **settings)
    assert int(state.converged_at) == reached
    assert int(state.diverged_at) == -1
    # It stands still, as the last linearisation that was trained left it.
    assert int(state.anchored_at) == reached - 10
    assert int(state.updates) == reached // 10 - 1
    found = float(losses.squared_error(f(state.params, data[0]), data[1]))
    assert found == pytest.approx(float(history["train_loss"][reached]), rel=1e-9)


# Compilation.


def test_one_program_serves_all_periods_seeds_and_chunks():
    """`f` is traced once a program: more chunks, periods or seeds trace it no more often."""
    traces = []
    model = mlp((2, 4, 1))

    def f(params, x):
        traces.append(x.shape)
        return model.apply(params, x)

    def count(periods, seeds, eval_steps):
        traces.clear()
        x = jnp.arange(12.0).reshape(6, 2) / 10
        train_sweep(
            f,
            model.init,
            (x, x[:, :1]),
            periods=periods,
            keys=jax.random.split(jax.random.key(0), seeds),
            loss=losses.squared_error,
            optimizer=optax.sgd(0.01),
            num_steps=20,
            eval_steps=eval_steps,
        )
        return len(traces)

    fewest = count([3], 1, [20])
    assert fewest >= 1
    assert count([3], 1, list(range(21))) <= fewest
    assert count([1, 3, 10, math.inf], 3, [0, 2, 9, 20]) <= fewest


def test_a_period_beyond_the_run_costs_no_linearisation():
    f, params, data = regression()
    _, history = train(
        f,
        params,
        data,
        loss=losses.squared_error,
        optimizer=optax.sgd(0.01),
        schedule=every(10**12),
        num_steps=10,
    )
    assert history["updates"].tolist() == [0] * len(history["step"])


@pytest.mark.parametrize("num_steps", [1, 2, 7, 1000, 10**6])
def test_log_steps(num_steps):
    steps = log_steps(num_steps)
    assert steps[0] == 0
    assert steps[-1] == num_steps
    assert np.all(np.diff(steps) > 0)


def test_log_steps_are_so_many_a_decade():
    assert log_steps(10).tolist() == [0, 1, 2, 3, 5, 7, 10]
    assert log_steps(100, 2).tolist() == [0, 1, 3, 10, 32, 100]
    assert log_steps(2, 1).tolist() == [0, 1, 2]
    assert log_steps(50, 1).tolist() == [0, 1, 50]


# Bad input.


def attempt(**changes):
    f, params, data = regression()
    settings = {
        "data": data,
        "loss": losses.squared_error,
        "optimizer": optax.sgd(0.01),
        "schedule": every(1),
        "num_steps": 5,
    }
    return roads.attempt(f, params, **(settings | changes))


@pytest.mark.parametrize("num_steps", [0, -1, 2.5, True, "3"])
def test_bad_number_of_steps_is_refused(num_steps):
    with pytest.raises(ValueError, match="num_steps must be a positive integer, got"):
        attempt(num_steps=num_steps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0, "key": 0}, "batch_size must be a positive integer, got 0"),
        ({"batch_size": 2.5, "key": 0}, "batch_size must be a positive integer, got 2.5"),
        (
            {"batch_size": 11, "key": jax.random.key(0)},
            "batch_size 11 exceeds the 10 examples there are",
        ),
        ({"batch_size": 4}, "minibatch run needs a key"),
        ({"augment": lambda key, x: x}, "an augmented run needs a key"),
        ({"target_loss": -1.0}, "target_loss must be finite and positive, got -1.0"),
        ({"target_loss": math.nan}, "target_loss must be finite and positive, got nan"),
        ({"eval_steps": [0, 6]}, r"watch.at must lie in \[0, 5\], got 0..6"),
        ({"eval_steps": [-1, 3]}, r"watch.at must lie in \[0, 5\], got -1..3"),
        ({"eval_steps": [3, 3]}, "watch.at must be a strictly increasing list"),
        ({"eval_steps": [0, 2, 1]}, "watch.at must be a strictly increasing list"),
        ({"eval_steps": [[0], [3]]}, "watch.at must be a strictly increasing list"),
        ({"eval_steps": [0, 2.5]}, "watch.at must be a strictly increasing list of whole steps"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        attempt(**changes)


def test_more_steps_than_an_int32_can_count_are_refused():
    for num_steps in (2**31, 2**40):
        with pytest.raises(ValueError, match=r"^num_steps must be below 2147483648"):
            attempt(num_steps=num_steps)


def test_empty_data_are_called_empty():
    _, _, (x, y) = regression()
    with pytest.raises(ValueError, match=r"inputs must hold an example, got empty data of shape"):
        attempt(data=(x[:0], y[:0]))


@pytest.mark.parametrize("label", [-1, 2])
@pytest.mark.parametrize("wrapped", [False, True])
def test_labels_outside_the_classes_are_refused(label, wrapped):
    """By training, by sweeps and by all else that takes the cross-entropy."""
    model, x, key = mlp((3, 2)), jnp.ones((4, 3)), jax.random.key(0)
    params, y = model.init(key), jnp.asarray([0, 1, label, 1])
    within = lambda outputs, y: losses.cross_entropy(outputs, y)  # noqa: E731
    loss, total = (within, within) if wrapped else (MEAN_ENTROPY, losses.cross_entropy)
    algorithm = Algorithm(model.apply, loss, 0.1)
    steps, newton = {"schedule": 1, "num_steps": 2}, {"max_steps": 1, "tolerance": 0.0}
    keys, prior = jax.random.split(key), {"prior_precision": 1.0}
    for call in (
        lambda: iterlin.train(algorithm, params, (x, y), **steps),
        lambda: iterlin.train(algorithm, params, iter([(x, y)]), **steps),
        lambda: iterlin.train_sweep(
            algorithm, model.init, (x, y), periods=[1], keys=keys, num_steps=2
        ),
        lambda: iterlin.train_sweep(
            algorithm, model.init, lambda key: (x, y), periods=[1], keys=keys, num_steps=2
        ),
        lambda: iterlin.integrate(algorithm, params, (x, y), engine="flow", **steps),
        lambda: iterlin.truncated_gauss_newton(
            model.apply, params, x, y, loss=loss, beta=0.1, damping=1.0, **newton
        ),
        lambda: iterlin.laplace(model.apply, params, x, y, loss=total, **prior),
        lambda: iterlin.ggn_product(model.apply, params, x, y, loss),
    ):
        with pytest.raises(ValueError, match=f"labels of 2 classes, 0 to 1: got {label}"):
            call()


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {"accuracy": losses.accuracy},
        {"top": lambda outputs, y: losses.accuracy(outputs, y)},
    ],
)
def test_labels_of_watched_sets_are_checked(metrics):
    """In runs, sweeps, exact runs and grids."""
    model, x, key = mlp((3, 2)), jnp.ones((4, 3)), jax.random.key(0)
    params, y = model.init(key), jnp.asarray([0, 1, 0, 1])
    algorithm = Algorithm(model.apply, MEAN_ENTROPY, 0.1)
    watch = Watch({"train": (x, y), "test": (x[:3], y[:3] - 1)}, metrics)
    steps, keys = {"num_steps": 2, "watch": watch}, jax.random.split(key)
    problem = Problem(algorithm, model.init, (x, y), watch)
    for call in (
        lambda: iterlin.train(algorithm, params, (x, y), schedule=1, **steps),
        lambda: iterlin.train_sweep(algorithm, model.init, (x, y), periods=[1], keys=keys, **steps),
        lambda: iterlin.integrate(algorithm, params, (x, y), schedule=1, **steps),
        lambda: runs.run_all(problem, [runs.Run(0, 2, 0.1, (0, 3))]),
    ):
        with pytest.raises(ValueError, match=r"set 'test' of watch: .* 2 classes.*got -1"):
            call()


X3, TWO = jnp.ones((4, 3)), jnp.asarray([0, 1, 0, 1])
KEYS = jax.random.split(jax.random.key(0), 2)


def mistaken(**changes):
    """Calls with one mistake, to `train`, `train_sweep` and `integrate`, where they have it."""
    of_algorithm = {n: v for n, v in changes.items() if n in roads.OF_ALGORITHM}
    rest = {n: v for n, v in changes.items() if n not in roads.OF_ALGORITHM}
    if "augment" in changes and "key" not in changes:
        rest["key"] = KEYS[0]
    params, data = jnp.ones((3, 2)), rest.pop("data", (X3, TWO))

    def algorithm():
        settings = {"loss": MEAN_ENTROPY, "optimizer": 0.1} | of_algorithm
        return roads.unchecked(lambda p, x: jnp.tanh(x @ p), **settings)

    settings = {"num_steps": 2, **{n: v for n, v in rest.items() if n not in ("key", "keys")}}
    key = {n: v for n, v in rest.items() if n == "key"}
    sweep = {"periods": [1], "keys": rest.get("keys", KEYS)} | settings
    calls = {
        "train": lambda: bare(iterlin.train)(
            algorithm(), params, data, schedule=1, **settings, **key
        ),
        "train_sweep": lambda: bare(iterlin.train_sweep)(
            algorithm(), lambda key: params, data, **sweep
        ),
        "integrate": lambda: bare(iterlin.integrate)(
            algorithm(), params, data, schedule=1, **settings
        ),
    }
    if "keys" in changes:
        return [calls["train_sweep"]]
    if isinstance(changes.get("watch"), dict):  # of the others the type checker of tests tells
        return [calls["train"], calls["train_sweep"]]
    if "key" in changes or changes.get("data") is not None:
        return [calls["train"]]
    if {"augment", "regularizer"} & set(changes):
        return [calls["train"], calls["train_sweep"]]
    return list(calls.values())


def per_example(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y)


WIDE = Watch({"test": (jnp.ones((4, 7)), TWO)})
ONE_NUMBER = "must return one number, such as a sum or a mean over the examples"
TRACED = "needs a value in Python, but JAX traces it: write it with jax.numpy"
BATCHES = r"give batches \(x, y\) as an iterator, iter\(data\)$"


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"loss": per_example}, rf"^loss {ONE_NUMBER}: got float64\[4\]$"),
        ({"loss": lambda o, y: (o[:, 0] - y) ** 2}, rf"^loss {ONE_NUMBER}: got float64\[4\]$"),
        ({"loss": lambda o, y: None}, rf"^loss {ONE_NUMBER}: got None"),
        ({"loss": lambda o: o.sum()}, r"^loss is called as loss\(outputs, y\), but it takes \(o\)"),
        ({"loss": lambda o, y: float(o.sum())}, f"^loss of .* fails: it {TRACED}"),
        (
            {"loss": lambda o, y: (o - y[:2]).sum()},
            r"^loss of float64\[4, 2\] and int64\[4\] fails",
        ),
        ({"augment": lambda x: x}, r"^augment is called as augment\(key, x\), but it takes \(x\)"),
        (
            {"augment": lambda key, x: x[:2]},
            r"^augment must return as many .*: got float64\[2, 3\]$",
        ),
        ({"augment": lambda key, x: x[:, :2]}, r"^augment of inputs float64\[4, 3\] fails: .*dot_"),
        ({"augment": lambda x, key: jax.random.split(key) + x}, "^augment of inputs .* fails"),
        ({"regularizer": lambda: 0}, r"^regularizer is called as regularizer\(params\), but it"),
        ({"regularizer": lambda p: p**2}, rf"^regularizer {ONE_NUMBER}: got float64\[3, 2\]"),
        ({"regularizer": lambda p: p @ p}, r"^regularizer of float64\[3, 2\] fails: dot_general"),
        ({"trainable": "lora"}, r"as lambda path: path.startswith\('lora'\), or a pytree of bools"),
        ({"watch": {"test": (X3, TWO)}}, r"^watch must be a Watch, as .* got one of type dict$"),
        (
            {"watch": WIDE},
            r"^the set 'test' of watch fails: f.* of inputs float64\[4, 7\] fails: dot",
        ),
        (
            {"watch": Watch({"test": (X3, TWO)}, {"sum": lambda o, y: np.sum(np.asarray(o))})},
            f"^the metric 'sum' of watch fails: it {TRACED}",
        ),
        ({"watch": Watch(observe=lambda s: {"at": float(s.step)})}, "^observe of watch needs the"),
        ({"watch": Watch(observe=lambda s: s.step)}, r"observe of watch must return .*int32\[\]"),
        ({"watch": Watch(observe=lambda s: {"a": None})}, "^observe of watch fails: None is not"),
        ({"checkpoint": True}, "^checkpoint must be the path of a file, got True$"),
        ({"key": 0}, r"^key must be a random key, as jax.random.key\(0\), got 0$"),
        ({"key": KEYS}, r"^key must be a random key, as .*, got key<fry>\[2\]$"),
        ({"keys": KEYS[0]}, r"^keys must be several random keys, as .*: got key<fry>\[\]$"),
        ({"keys": jax.random.PRNGKey(0)}, r"^keys must be several .*: got uint32\[2\]$"),
        ({"keys": 3}, "^keys must be several random keys, as .*: got 3$"),
        ({"data": (np.ones((4, 3), object), TWO)}, "^inputs must be numbers, .* dtype object$"),
        ({"data": (X3, np.array(["a", "b"] * 2))}, "^targets must be numbers, .* dtype <U1$"),
        (
            {"data": (X3[:, :2], TWO)},
            r"^f\(params, x\) of inputs float64.* fails: dot_general",
        ),
        ({"data": [(X3, TWO)] * 2}, BATCHES),
        ({"data": [(X3, TWO), (X3[:2], TWO[:2])]}, BATCHES),
        ({"data": [(X3, TWO)] * 3}, BATCHES),
    ],
)
def test_a_mistake_is_told_in_one_line(mistake, message):
    for call in mistaken(**mistake):
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, jax.grad])
def test_a_call_that_jax_traces_is_refused(around):
    """And nothing else is said, of donated buffers say."""
    algorithm = Algorithm(lambda p, x: x @ p, losses.squared_error, 0.1)
    data, settings = (X3, X3[:, 0]), {"num_steps": 2}

    def trained(p):
        return iterlin.train(algorithm, p, data, schedule=1, **settings)[0].params.sum()

    def integrated(p):
        return iterlin.integrate(algorithm, p, data, schedule=1, **settings)[0].params.sum()

    def swept(p):
        keys = jax.random.split(jax.random.key(p[0].astype(int)), 2)
        return iterlin.train_sweep(
            algorithm, lambda key: jnp.ones(3), data, periods=[1], keys=keys, **settings
        )[0].params.sum()

    params = jnp.ones((2, 3)) if around is jax.vmap else jnp.ones(3)
    for call in (trained, integrated, swept)[: 2 if around is jax.grad else 3]:
        with pytest.raises(ValueError, match=r"outside of jax.jit, .*train_sweep makes several"):
            around(call)(params)


def test_a_pair_of_inputs_and_of_targets_is_no_list_of_batches():
    both = lambda p, x: x[0] @ p["a"] + x[1] @ p["b"]  # noqa: E731
    distance = lambda o, y: jnp.sum((o - y[0][:, 0] - y[1][:, 0]) ** 2)  # noqa: E731
    params = {"a": jnp.ones(3), "b": jnp.ones(3)}
    algorithm = Algorithm(both, distance, 0.1)
    iterlin.train(algorithm, params, [(X3, X3), (X3, X3)], schedule=1, num_steps=2)


@pytest.mark.parametrize("at", [[], (), range(0), np.arange(0)])
def test_no_steps_to_look_at_are_the_end_alone(at):
    _, history = attempt(eval_steps=at)
    assert history["step"].tolist() == [5]


def test_a_rule_that_nobody_looks_at_is_told():
    f, params, data = regression()
    rule = schedules.Solved(2, accuracy=None, gradient=0.1)
    algorithm = Algorithm(f, losses.squared_error, 0.1, solved=rule)
    settings = {"num_steps": 3}
    message = "rule `solved` has no effect: this schedule does not look at it, as il.when_solved"
    with pytest.warns(UserWarning, match=message):
        iterlin.train(algorithm, params, data, schedule=2, **settings)
    with pytest.warns(UserWarning, match=message):
        iterlin.integrate(algorithm, params, data, schedule=2, engine="flow", **settings)
    with pytest.warns(UserWarning, match=message):
        iterlin.train_sweep(algorithm, lambda key: params, data, periods=[2], keys=KEYS, **settings)
    # Warnings are errors in tests: of these there is none.
    iterlin.train(algorithm, params, data, schedule=schedules.when_solved(2), **settings)
    seen = Watch(observe=lambda state: {"solved": state.solved})
    iterlin.train(algorithm, params, data, schedule=2, watch=seen, **settings)


def test_data_of_different_lengths_or_shapes_are_refused():
    _, _, (x, y) = regression()
    with pytest.raises(ValueError, match="inputs and targets differ in length: 10 and 9"):
        attempt(data=(x, y[:9]))
    with pytest.raises(ValueError, match="must be 10 integer labels"):
        attempt(loss=lambda o, t: bare(losses.cross_entropy)(o, t))
    with pytest.raises(ValueError, match=r"targets have shape \(10, 1\)"):
        attempt(data=(x, y[:, :1]), loss=lambda o, t: bare(losses.squared_error)(o, t))


def test_a_run_cannot_be_resumed_backwards():
    f, params, data = regression()
    settings = {"loss": losses.squared_error, "optimizer": optax.sgd(0.01), "schedule": every(2)}
    state, _ = train(f, params, data, num_steps=6, **settings)
    with pytest.raises(ValueError, match="num_steps 5 is below the 6 steps already taken"):
        train(f, state, data, num_steps=5, **settings)
    with pytest.raises(ValueError, match=r"watch.at must lie in \[6, 9\], got 4..9"):
        train(f, state, data, num_steps=9, eval_steps=[4, 9], **settings)
    same, history = train(f, state, data, num_steps=6, **settings)
    np.testing.assert_array_equal(flat(same.params), flat(state.params))
    assert history["step"].tolist() == [6]


def test_bad_period_of_a_sweep_is_refused():
    with pytest.raises(ValueError, match="period must be a positive integer or infinity, got 0"):
        sweep(periods=(1, 0))


def test_the_jacobian_of_the_anchor_is_what_moves_the_parameters():
    """One full-batch step of squared error is -eta J^T z, whatever the schedule."""
    f, params, data = regression()
    state, _ = attempt(num_steps=1, schedule=never())
    z = np.ravel(np.asarray(f(params, data[0]) - data[1]))
    expected = flat(params) - 0.01 * dense(f, params, data[0]).T @ z
    np.testing.assert_allclose(flat(state.params), expected, atol=1e-13)


@pytest.mark.parametrize(
    ("watch", "message"),
    [
        ({"test": 1}, "watch must be a Watch, .* got one of type dict$"),
        (Watch({"test": 3}), "the set 'test' of watch must be inputs and targets"),
        (Watch({"test": (1, 2, 3)}), "the set 'test' of watch must be inputs and targets"),
        (Watch(sets=None), "sets of watch must be named"),
        (Watch(metrics=3), "metrics of watch must be named"),
        (Watch(observe=3), "observe of watch must be a function, got 3"),
        (Watch(batch_size=0), "batch_size of watch must be a positive integer"),
        (Watch(metrics={"accuracy": 3}), "the metric 'accuracy' of watch must be a function"),
        (
            Watch({"test": (jnp.ones((0, 3)), jnp.ones((0, 2)))}),
            r"watch.sets\['test'\]\[0\] must hold an example, got empty data",
        ),
    ],
)
def test_what_is_watched_is_checked(watch, message):
    f, params, data = regression()
    algorithm = Algorithm(f, losses.squared_error, 0.1)
    with pytest.raises(ValueError, match=message):
        bare(iterlin.train)(algorithm, params, data, schedule=every(1), num_steps=2, watch=watch)


TWICE = [
    (Watch(observe=lambda state: {"step": -1}), "step"),
    (Watch(observe=lambda state: {"updates": -1}), "updates"),
    (Watch({"test": None}, observe=lambda state: {"test_loss": -1}), "test_loss"),
    (Watch({"test": None}, observe=lambda state: {"test_loss_proxy": -1}), "test_loss_proxy"),
    (Watch({"a": None, "a_b": None}, {"b_c": jnp.sum, "c": jnp.sum}), "a_b_c"),
    (Watch({"a": None}, {"loss": jnp.sum, "loss_proxy": jnp.sum}), "a_loss_proxy"),
]


@pytest.mark.parametrize(("watch", "name"), TWICE)
def test_a_name_twice_is_refused_before_compute(watch, name):
    """In runs, sweeps, exact runs of any engine and grids."""
    f, params, data = regression()
    metrics = watch.metrics and dict.fromkeys(watch.metrics, lambda o, y: o.sum())
    watch = watch._replace(sets=dict.fromkeys(watch.sets, data), metrics=metrics)
    algorithm = Algorithm(f, losses.squared_error, 0.1)
    steps = {"num_steps": 3, "watch": watch}
    keys = jax.random.split(jax.random.key(0), 2)
    problem = Problem(algorithm, lambda key: params, data, watch)
    calls = [
        lambda: iterlin.train(algorithm, params, data, schedule=2, **steps),
        lambda: iterlin.train_sweep(
            algorithm, lambda key: params, data, periods=[2], keys=keys, **steps
        ),
        lambda: iterlin.integrate(algorithm, params, data, schedule=2, engine="steps", **steps),
        lambda: iterlin.integrate(algorithm, params, data, schedule=2, engine="flow", **steps),
        lambda: runs.run_all(problem, [runs.Run(0, 2, 0.1, (0, 3))]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"have two entries named '{name}': rename a set or"):
            call()


@pytest.mark.parametrize("name", ["evaluations", "stability", "seconds", "engine"])
def test_integrate_has_further_names(name):
    f, params, data = regression()
    algorithm = Algorithm(f, losses.squared_error, 0.1)
    settings = {"schedule": 2, "num_steps": 3, "watch": Watch(observe=lambda state: {name: 1.0})}
    for engine in ("steps", "flow"):
        with pytest.raises(ValueError, match=f"have two entries named '{name}'"):
            iterlin.integrate(algorithm, params, data, engine=engine, **settings)
    _, history = iterlin.train(algorithm, params, data, **settings)
    assert history[name].tolist() == [1.0] * len(history["step"])


@pytest.mark.parametrize("name", ["step", "seconds", "diverged_at", "train_loss", "kernel_drift"])
def test_grids_have_further_names(name):
    f, params, data = regression()
    algorithm = Algorithm(f, losses.squared_error, 0.1)
    watch = Watch({"train": data})
    problem = Problem(
        algorithm, lambda key: params, data, watch, diagnose=4, observe=lambda state: {name: 1.0}
    )
    with pytest.raises(ValueError, match=f"have two entries named '{name}'"):
        runs.run_all(problem, [runs.Run(0, 2, 0.1, (0, 3))])


def test_a_watched_set_is_evaluated_a_few_examples_at_a_time():
    f, params, (x, y) = regression()
    sizes = set()

    def noted(params, x):
        sizes.add(len(x))
        return f(params, x)

    algorithm = Algorithm(noted, losses.squared_error, 0.1)
    state = algorithm.start(params, (x, y), jax.random.key(0))
    for batch_size, expected in ((None, {10}), (4, {4, 2}), (20, {10})):
        sizes.clear()
        observe = observer(algorithm, Watch(batch_size=batch_size))
        jax.eval_shape(observe, state, {"all": (x, y)})
        assert sizes == expected


def test_a_watched_set_may_be_a_list():
    x = jnp.ones((2, 3))
    check_watch(Watch({"test": [x, x]}, {"sum": lambda outputs, y: outputs.sum()}, batch_size=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"f": 3}, "f must be a function, got 3"),
        ({"loss": None}, "loss must be a function"),
        ({"augment": 1}, "augment must be a function"),
        ({"optimizer": -0.1}, "optimizer, as a step size, must be finite and positive"),
        ({"optimizer": np.array([0.1, 0.2])}, "must be one number"),
        ({"penalty": -1.0}, "penalty must be finite and non-negative"),
        ({"solved": 3}, "solved must be a rule"),
        ({"normalization": 3}, "normalization must be a"),
        ({"mesh": 3}, "mesh must be a jax.sharding.Mesh"),
    ],
)
def test_an_algorithm_is_checked_when_it_is_made(settings, message):
    with pytest.raises(ValueError, match=message):
        roads.unchecked(**{"f": jnp.multiply, "loss": losses.squared_error} | settings)


def test_an_algorithm_without_an_optimizer_cannot_train():
    f, params, data = regression()
    with pytest.raises(ValueError, match="has no optimizer: give one, or a step size"):
        train(f, params, data, loss=losses.squared_error, schedule=every(1), num_steps=2)


def test_a_step_size_is_gradient_descent_of_that_size():
    f, params, data = regression()
    settings = {"loss": losses.squared_error, "schedule": every(3), "num_steps": 7}
    number, _ = train(f, params, data, optimizer=0.02, **settings)
    sgd, _ = train(f, params, data, optimizer=optax.sgd(0.02), **settings)
    np.testing.assert_array_equal(flat(number.params), flat(sgd.params))


def test_a_penalty_alone_acts():
    """No second switch is needed for it."""
    f, params, data = regression()
    settings = {"loss": losses.squared_error, "optimizer": 0.02, "schedule": never()}
    free, held = (
        train(f, params, data, penalty=penalty, num_steps=20, **settings)[0].params
        for penalty in (0.0, 5.0)
    )
    start = flat(params)
    assert np.linalg.norm(flat(held) - start) < 0.9 * np.linalg.norm(flat(free) - start)


def test_a_resumed_run_has_its_own_key_and_data():
    f, params, (x, y) = regression()
    settings = {"loss": losses.squared_error, "optimizer": 0.02, "schedule": every(2)}
    key = jax.random.key(0)
    state, _ = train(f, params, (x, y), num_steps=3, batch_size=4, key=key, **settings)
    with pytest.raises(ValueError, match="leave key out"):
        train(f, state, (x, y), num_steps=6, batch_size=4, key=key, **settings)
    with pytest.raises(ValueError, match="a run on 10 examples, not 6"):
        train(f, state, (x[:6], y[:6]), num_steps=6, batch_size=4, **settings)


def test_parameters_that_stay_are_given_back_as_they_came():
    """To the object: an index in 64 bits that JAX has no type for is still one."""
    params = {"w": jnp.zeros(2), "index": np.array([1, 2], np.int64)}
    state, _ = iterlin.train(
        Algorithm(lambda p, x: x @ p["w"], losses.squared_error, 0.1),
        params,
        (jnp.eye(2), jnp.ones(2)),
        schedule=2,
        num_steps=3,
    )
    assert state.params["index"] is params["index"]


def test_a_set_is_measured_as_it_is_alone():
    """Also where others of its shape go through the same program, and by a network that couples the
    examples of a set."""
    f, params, (x, labels) = classification()
    coupled = lambda p, x: f(p, x) - f(p, x).mean(0, keepdims=True)  # noqa: E731
    anchor = jax.tree.map(lambda leaf: 0.9 * leaf, params)
    sets = {
        "first": (x[:4], labels[:4]),
        "long": (x, labels),
        "second": (x[4:8], labels[4:8]),
        "other": (x[:4], jax.nn.one_hot(labels[:4], 3)),
        "third": [x[6:], labels[6:]],
    }

    def entropy(outputs, y):
        y = y if y.ndim > 1 else jax.nn.one_hot(y, 3)
        return -(jax.nn.log_softmax(outputs) * y).mean()

    algorithm = Algorithm(coupled, MEAN_ENTROPY, 0.1)
    state = algorithm.start(params, (x, labels), jax.random.key(0))._replace(anchor=anchor)
    metrics = {"entropy": entropy, "sum": lambda outputs, y: outputs.sum(0)}
    seen = jax.jit(observer(algorithm, Watch(metrics=metrics)))(state, sets)
    proxy = linearize(coupled, anchor)
    expected = {"updates": 0}
    for name, (inputs, y) in sets.items():
        for metric, function in metrics.items():
            expected[f"{name}_{metric}"] = function(coupled(params, inputs), y)
            expected[f"{name}_{metric}_proxy"] = function(proxy(params, inputs), y)
    assert set(seen) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(seen[name], value, rtol=1e-12, atol=1e-15, err_msg=name)
