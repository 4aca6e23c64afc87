"""Algorithm 3: the compiled loop against a plain one, its limits in K, and how runs end."""

import math

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roads
from iterlin import Algorithm, Step, TrainState, every, linearize, losses, mlp, never, schedules
from iterlin.training.watching import UPDATES, Watch, check_watch, log_steps, observer
from problems import bare, by_factor, flat, network, start
from refusals import fails, refused
from roads import doors, train, train_sweep

MEAN_ENTROPY = losses.mean(losses.cross_entropy)
KEYS = jax.random.split(jax.random.key(0), 2)


def classification():
    """A small network with labels: f, params, (x, labels)."""
    f, params, x, _ = network((3, 6, 3), examples=10, activation="relu")
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


def algorithm_3(f, params, data, loss, optimizer, period, chosen):
    """Algorithm 3 by hand: a dense Jacobian at the anchor, gradients J^T l'(f_s + J d)."""
    x, y = data
    vector, unravel = jax.flatten_util.ravel_pytree(params)
    state = optimizer.init(vector)
    outputs_of = jax.jit(f)
    slope = jax.jit(jax.grad(loss))
    jacobian_of = jax.jit(jax.jacfwd(lambda v: f(unravel(v), x)))
    for step, rows in enumerate(chosen):
        if step % period == 0:
            anchor = vector
            outputs, jacobian = outputs_of(unravel(anchor), x), np.asarray(jacobian_of(anchor))
        proxy = np.asarray(outputs)[rows] + jacobian[rows] @ np.asarray(vector - anchor)
        pull = np.asarray(slope(jnp.asarray(proxy), y[rows]))
        gradient = np.einsum("nop,no->p", jacobian[rows], pull)
        updates, state = optimizer.update(jnp.asarray(gradient), state, vector)
        vector = optax.apply_updates(vector, updates)
    return vector, anchor, (len(chosen) - 1) // period


@pytest.mark.parametrize(
    ("problem", "loss", "optimizer", "period", "batch_size"),
    [
        (regression, losses.squared_error, 0.05, 3, None),
        (classification, MEAN_ENTROPY, optax.adam(0.01), 4, 3),
        (classification, MEAN_ENTROPY, optax.adam(0.02), math.inf, 5),
    ],
)
def test_training_equals_a_plain_loop(problem, loss, optimizer, period, batch_size):
    f, params, data = problem()
    key, num_steps = jax.random.key(5), 20
    settings = {"loss": loss, "optimizer": optimizer, "schedule": every(period), "key": key}
    settings |= {"batch_size": batch_size, "evaluate": {"all": data}, "num_steps": num_steps}
    state, history = train(f, params, data, **settings)
    chosen = [np.arange(10)] * num_steps
    if batch_size is not None:
        chosen = list(batches(key, 10, batch_size, num_steps))
    optimizer = optax.sgd(optimizer) if isinstance(optimizer, float) else optimizer
    vector, anchor, updates = algorithm_3(f, params, data, loss, optimizer, period, chosen)
    np.testing.assert_allclose(flat(state.params), vector, atol=1e-11)
    np.testing.assert_allclose(flat(state.anchor), anchor, atol=1e-11)
    assert int(state.step) == num_steps
    assert int(state.updates) == history["updates"][-1] == updates
    assert float(state.diverged_at) == float(state.converged_at) == -1
    final = float(loss(f(state.params, data[0]), data[1]))
    assert history["all_loss"][-1] == pytest.approx(final, rel=1e-12)
    proxy = linearize(f, state.anchor)(state.params, data[0])
    assert history["all_loss_proxy"][-1] == pytest.approx(float(loss(proxy, data[1])), rel=1e-12)


def test_a_sweep_equals_its_runs_one_by_one():
    """Also of a network that draws and of which a part is trained."""
    f, params, data = classification()

    def dropped(params, x, key):
        keep = 1.0 if key is None else jax.random.bernoulli(key, 0.7, x.shape) / 0.7
        return f(params, x * keep)

    init, periods, keys = by_factor(params), (1, 5, math.inf), jax.random.split(jax.random.key(7))
    settings = {"loss": MEAN_ENTROPY, "optimizer": optax.sgd(0.05), "num_steps": 12}
    settings |= {"batch_size": 4, "evaluate": {"train": data}}
    settings |= {"metrics": {"loss": MEAN_ENTROPY, "accuracy": losses.accuracy}}
    settings |= {"keyed": True, "trainable": lambda name: name.startswith("1/")}
    grid = {"periods": periods, "keys": keys}
    states, history = train_sweep(dropped, init, data, **grid, **settings)
    assert history["train_loss"].shape == (3, 2, len(history["step"]))
    looked = {f"train_{name}{of}" for name in ("loss", "accuracy") for of in ("", "_proxy")}
    assert set(history) == looked | {"step", "updates"}
    for i, j in ((1, 0), (2, 1)):
        settings |= {"schedule": periods[i], "key": jax.random.fold_in(keys[j], 1)}
        state, single = train(dropped, init(keys[j]), data, **settings)
        chosen = jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], states.params)
        np.testing.assert_allclose(flat(chosen), flat(state.params), atol=1e-12)
        assert int(states.updates[i, j]) == int(state.updates)
        for name in single.keys() - {"step"}:
            np.testing.assert_allclose(history[name][i, j], single[name], atol=1e-12)
        accuracy = losses.accuracy(f(state.params, data[0]), data[1])
        np.testing.assert_allclose(single["train_accuracy"][-1], accuracy)


def test_a_sweep_may_draw_its_data_and_goes_on_when_one_run_diverges():
    """A target that one seed's data makes enormous ends that run alone, for every period."""
    f, params, *_ = network((2, 4, 1))
    init = by_factor(params)
    keys = jax.random.split(jax.random.PRNGKey(0), 3)  # rows of numbers, as keys once were

    def draw(key):
        x = jax.random.uniform(jax.random.fold_in(key, 9), (6, 2), minval=-2, maxval=2)
        return x, jnp.where(jnp.all(key == keys[1]), 1e200, jnp.prod(x, 1, keepdims=True))

    settings = {"loss": losses.squared_error, "optimizer": optax.sgd(0.02), "num_steps": 30}
    states, _ = train_sweep(f, init, draw, periods=[1, 10], keys=keys, **settings)
    assert states.diverged_at.tolist() == [[-1, 0, -1]] * 2
    for j in (0, 2):
        start, data = init(keys[j]), draw(keys[j])
        alone, _ = train(f, start, data, schedule=every(10), **settings)
        chosen = jax.tree.map(lambda leaf, j=j: leaf[1, j], states.params)
        np.testing.assert_allclose(flat(chosen), flat(alone.params), atol=1e-12)


def test_chunks_do_not_change_the_result():
    f, params, data = classification()
    settings = {"loss": MEAN_ENTROPY, "optimizer": optax.adam(0.02), "schedule": every(3)}
    settings |= {"num_steps": 25, "batch_size": 4, "key": jax.random.key(2)}
    settings |= {"evaluate": {"train": data}}
    grids = [[], None, list(range(26))]
    runs = [train(f, params, data, eval_steps=grid, **settings) for grid in grids]
    assert runs[0][1]["step"].tolist() == [25]
    full = runs[-1][1]
    for state, history in runs:
        np.testing.assert_array_equal(flat(state.params), flat(runs[0][0].params))
        np.testing.assert_array_equal(full["train_loss"][history["step"]], history["train_loss"])
    # At a multiple of K the proxy is the old one: it is renewed by the step that follows.
    steps = np.arange(26)
    np.testing.assert_array_equal(full["updates"], np.maximum(-(-steps // 3) - 1, 0))


def test_a_resumed_run_is_the_uninterrupted_one():
    """Also of part of the parameters, with the optimiser's state of that part."""
    f, params, data = classification()
    settings = {"loss": MEAN_ENTROPY, "optimizer": optax.adam(0.02), "schedule": every(5)}
    settings |= {"batch_size": 4, "evaluate": {"train": data}}
    settings["trainable"] = lambda name: name.startswith("1/")
    key = jax.random.key(2)
    whole, history = train(f, params, data, num_steps=23, key=key, **settings)
    half, _ = train(f, params, data, num_steps=11, key=key, **settings)
    resumed, rest = train(f, half, data, num_steps=23, **settings)
    for name in TrainState._fields:
        if name != "key":
            found, expected = flat(getattr(resumed, name)), flat(getattr(whole, name))
            np.testing.assert_array_equal(found, expected, err_msg=name)
    assert (rest["step"][0], rest["step"][-1]) == (11, 23)
    assert rest["train_loss"][-1] == history["train_loss"][-1]
    same, _ = train(f, half, data, num_steps=11, **settings)
    np.testing.assert_array_equal(flat(same.params), flat(half.params))


def test_a_state_that_cannot_go_on_so_is_refused():
    f, params, data = regression()
    settings = {"loss": losses.squared_error, "optimizer": 0.02, "schedule": every(2)}
    full, _ = train(f, params, data, num_steps=6, **settings)
    settings["batch_size"] = 4
    state, _ = train(f, params, data, num_steps=6, key=KEYS[0], **settings)
    settings |= {"num_steps": 9, "data": data}
    fewer = {"data": (data[0][:6], data[1][:6])}
    for begun, changes, message in (
        (state, {"num_steps": 5}, "num_steps 5 is below the 6 steps already taken"),
        (state, {"eval_steps": [4, 9]}, r"watch.at must lie in \[6, 9\], got 4..9"),
        (state, {"key": KEYS[0]}, "leave key out"),
        (state, fewer, "a run on 10 examples, not 6"),
        (state, {"optimizer": optax.adam(0.02)}, "another optimizer, or with other parameters"),
        (state, {"trainable": lambda name: "0" in name}, "or with other parameters trained"),
        (full, {}, "full-batch run: it cannot go on with a batch_size"),
    ):
        fails(message, train, f, begun, **settings | changes)


def test_divergence_is_recorded_with_its_step_and_not_raised():
    f, params, data = regression()
    settings = {"loss": losses.squared_error, "optimizer": optax.sgd(1e3), "schedule": every(1)}
    state, history = train(f, params, data, num_steps=50, **settings)
    step = int(state.diverged_at)
    assert 0 < step < 50
    assert int(state.converged_at) == -1
    assert history["step"][-1] == 50
    assert np.all(np.isfinite(flat(state.params)))
    # One step fewer has not diverged yet, and leaves the same parameters.
    before, _ = train(f, params, data, num_steps=step, **settings)
    assert int(before.diverged_at) == -1
    np.testing.assert_array_equal(flat(before.params), flat(state.params))


def test_log_steps():
    for num_steps in (1, 2, 1000, 10**6):
        steps = log_steps(num_steps)
        assert (steps[0], steps[-1]) == (0, num_steps)
        assert np.all(np.diff(steps) > 0)
    assert log_steps(100, 2).tolist() == [0, 1, 3, 10, 32, 100]


def test_labels_outside_the_classes_are_refused():
    model, x = mlp((3, 2)), jnp.ones((4, 3))
    params, y, total = start(model.init), jnp.asarray([0, 1, 2, 1]), losses.cross_entropy
    algorithm = Algorithm(model.apply, MEAN_ENTROPY, 0.1)
    newton = {"beta": 0.1, "damping": 1.0, "max_steps": 1, "tolerance": 0.0}
    grid = {"periods": [1], "keys": KEYS, "num_steps": 2}
    for call in (
        *doors(algorithm, model.init, (x, y), UPDATES),
        lambda: iterlin.train_sweep(algorithm, model.init, lambda key: (x, y), **grid),
        lambda: iterlin.train(algorithm, params, iter([(x, y)]), schedule=1, num_steps=2),
        lambda: iterlin.truncated_gauss_newton(model.apply, params, x, y, loss=total, **newton),
        lambda: iterlin.laplace(model.apply, params, x, y, loss=total, prior_precision=1.0),
        lambda: iterlin.ggn_product(model.apply, params, x, y, total),
    ):
        fails("labels of 2 classes, 0 to 1: got 2", call)


X3, TWO = jnp.ones((4, 3)), jnp.asarray([0, 1, 0, 1])

SUMS = dict.fromkeys(("b_c", "c", "loss", "loss_proxy"), lambda outputs, y: outputs.sum())


@pytest.mark.parametrize(
    ("watch", "message"),
    [
        (Watch({"train": (X3, TWO), "test": (X3[:3], TWO[:3] - 1)}), "set 'test' of .* got -1"),
        (Watch({"a": (X3, TWO), "a_b": (X3, TWO)}, SUMS), "two entries named 'a_b_c'"),
    ],
)
def test_wrong_labels_and_a_name_twice_are_refused_by_every_call(watch, message):
    model = mlp((3, 2))
    for call in doors(Algorithm(model.apply, MEAN_ENTROPY, 0.1), model.init, (X3, TWO), watch):
        fails(message, call)


def mistaken(door, changes):
    """A call with one mistake, on a layer of three inputs; a door is a call or an engine of it."""
    settings = {"f": lambda p, x: jnp.tanh(x @ p), "loss": MEAN_ENTROPY, "optimizer": 0.1}
    settings |= {"data": (X3, TWO), "num_steps": 2} | changes
    of_algorithm = {n: settings.pop(n) for n in roads.OF_ALGORITHM & settings.keys()}
    algorithm, data = roads.unchecked(**of_algorithm), settings.pop("data")
    params = settings.pop("params", jnp.ones((3, 2)))
    if door == "train_sweep":
        init = settings.pop("init", lambda key: params)
        settings = {"periods": [1], "keys": KEYS} | settings
        return bare(iterlin.train_sweep)(algorithm, init, data, **settings)
    settings = {"schedule": 1} | settings
    settings |= {} if door == "train" else {"engine": door}
    return bare(iterlin.train)(algorithm, params, data, **settings)


ONE_NUMBER = "must return one number, such as a sum or a mean over the examples"
TRACED = "needs a value in Python, but JAX traces it: write it with jax.numpy"
BATCHES = r"give batches \(x, y\) as an iterator, iter\(data\)$"
SUM = Watch({"test": (X3, TWO)}, {"sum": lambda o, y: np.sum(np.asarray(o))})
PAIR = Watch({"test": (X3, TWO)}, {"pair": lambda o, y: {"sum": o.sum(), "mean": o.mean()}})
KEY, IN_NUMPY = {"key": KEYS[0]}, lambda key: np.asarray(jax.random.normal(key, (3, 2)))
TRAIN, BOTH, ALL = "train", "train train_sweep", "train train_sweep flow"
WHEN_SOLVED = schedules.when_solved(schedules.Solved(5))
MISTAKES = [
    (BOTH, {"num_steps": 2.5}, "num_steps must be a positive integer, got 2.5"),
    (TRAIN, {"batch_size": 0}, "batch_size must be a positive integer, got 0"),
    (TRAIN, {"batch_size": 5} | KEY, "batch_size 5 exceeds the 4 examples there are"),
    (TRAIN, {"batch_size": 2}, "a key is needed: minibatches"),
    (TRAIN, {"augment": lambda key, x: x}, "a key is needed: .* augment"),
    (TRAIN, {"f": lambda p, x, key: x @ p, "keyed": True}, "a key is needed: .* a keyed f"),
    (TRAIN, {"target_loss": math.nan}, "target_loss must be finite and positive, got nan"),
    (TRAIN, {"target_loss": jnp.ones(2)}, "target_loss must be one number, got an array"),
    (TRAIN, {"optimizer": None}, "has no optimizer: give one, or a step size"),
    (TRAIN, {"optimizer": -0.1}, "optimizer, as a step size, must be finite and positive"),
    (TRAIN, {"optimizer": optax.adam}, "optimizer must be a transformation, .* function adam"),
    (TRAIN, {"optimizer": iterlin.for_time(2.0)}, r"optimizer must be the \.optimizer of for_time"),
    ("train flow", {"params": jnp.full((3, 2), jnp.nan)}, "params must be finite, not NaN"),
    (TRAIN, {"penalty": -1.0}, "penalty must be finite and non-negative"),
    (TRAIN, {"normalization": 3}, "normalization must be a"),
    (TRAIN, {"f": lambda p: p}, r"as f\(params, x\), but it takes \(p\)"),
    (TRAIN, {"f": lambda p, x: x, "keyed": True}, r"as f\(params, x, key\), but it takes \(p, x"),
    (BOTH, {"f": lambda p, x: {"logits": x @ p}}, "f must return one array"),
    (TRAIN, {"f": lambda p, x: x.T}, r"leads with the 4 examples, got shape \(3, 4\)"),
    (BOTH, {"f": lambda p, x: x @ p.weight}, r"^f\(params, x\) of inputs .* has no attribute"),
    (TRAIN, {"f": MEAN_ENTROPY}, "^f must be the network f.params, x., got a loss"),
    (ALL, {"loss": lambda o, y: o.sum(1)}, rf"^loss {ONE_NUMBER}: got float64\[4\]$"),
    (ALL, {"loss": lambda o: o.sum()}, r"^loss is called as loss\(outputs, y\), but it takes \(o"),
    (ALL, {"loss": lambda o, y: float(o.sum())}, f"^loss of .* fails: it {TRACED}"),
    (TRAIN, {"augment": lambda x: x}, r"^augment is called as augment\(key, x\), but it takes \(x"),
    (BOTH, {"regularizer": lambda p: p**2}, rf"^regularizer {ONE_NUMBER}: got float64\[3, 2\]"),
    (ALL, {"trainable": "lora"}, r"as lambda path: path.startswith\('lora'\), or a pytree of"),
    (TRAIN, {"checkpoint": True}, "^checkpoint must be the path of a file, got True$"),
    (TRAIN, {"key": 0}, r"^key must be a random key, as jax.random.key\(0\), got 0$"),
    ("train_sweep", {"keys": KEYS[0]}, r"^keys must be several random keys, as .*: got key<fry>"),
    (
        "train_sweep",
        {"schedule": lambda p: min(p, 5)},
        "^schedule needs the value of its period in",
    ),
    ("train_sweep", {"schedule": never}, r"^schedule is called as schedule\(period\), but it"),
    ("train_sweep", {"init": IN_NUMPY}, "^init needs the value of its key in Python, but JAX"),
    ("train_sweep", {"data": IN_NUMPY}, "^data needs the value of its key in Python, but JAX"),
    # Data.
    (ALL, {"data": (X3[:0], TWO[:0])}, "inputs must hold an example, got empty data of shape"),
    (ALL, {"data": (X3, TWO[:3])}, "inputs and targets differ in length: 4 and 3"),
    (TRAIN, {"data": (np.ones((4, 3), object), TWO)}, "^inputs must be numbers, .* dtype object$"),
    (ALL, {"data": (X3[:, :2], TWO)}, r"^f\(params, x\) of inputs float64.* fails: dot_general"),
    (TRAIN, {"data": [(X3, TWO)] * 2}, BATCHES),
    (TRAIN, {"data": (list(X3), TWO)}, "inputs are a list of the 4 examples"),
    (TRAIN, {"data": ({"a": X3, "b": X3[:3]}, TWO)}, r"inputs differ .*\['a'\]: 4, .*\['b'\]: 3"),
    (TRAIN, {"data": {"x": X3}}, r"data must be \(inputs, targets\), or batches of .*\[4, 3\]"),
    (TRAIN, {"data": (X3, [0] * 4)}, r"^targets\[0\] must lead .* a single 0: give one array in"),
    (TRAIN, {"data": iter([])}, "data has no batch"),
    (TRAIN, {"data": iter([(X3, TWO)]), "batch_size": 3}, "batch_size needs all data at once"),
    (TRAIN, {"data": iter([(X3, TWO)]), "schedule": WHEN_SOLVED}, "when_solved needs all data at"),
    (TRAIN, {"data": iter([(X3, TWO)]), "checkpoint": "run"}, "on batches takes no checkpoint"),
    # What is watched.
    (BOTH, {"watch": {"test": 1}}, "^watch must be a Watch, .* got one of type dict$"),
    (TRAIN, {"watch": Watch((X3, TWO))}, r"sets of watch must be named, .*: got \(float64\["),
    (ALL, {"watch": Watch({"test": (X3.T, TWO)})}, "^the set 'test' of watch fails: f.* of inputs"),
    (ALL, {"watch": SUM}, f"^the metric 'sum' of watch fails: it {TRACED}"),
    (TRAIN, {"watch": PAIR}, "^the metric 'pair' of watch fails: .* not a valid JAX array type"),
    (TRAIN, {"watch": Watch(batch_size=0)}, "batch_size of watch must be a positive integer"),
    (TRAIN, {"watch": Watch(observe=3)}, "observe of watch must be a function, got 3"),
    (ALL, {"watch": Watch(observe=lambda s: s.step)}, r"observe of watch must return .*int32\[\]"),
    (TRAIN, {"watch": Watch(at=[0, 1.5])}, "watch.at must be .* list of whole steps"),
]

test_a_mistake_is_told_in_one_line = refused(
    mistaken, *((door, *case) for called, *case in MISTAKES for door in called.split())
)


def test_a_call_that_jax_traces_is_refused():
    algorithm = Algorithm(lambda p, x: x @ p, losses.squared_error, 0.1)
    data, settings = (X3, X3[:, 0]), {"num_steps": 2}
    init, grid = lambda key: jnp.ones(3), {"periods": [1], "keys": KEYS}
    for call in (
        lambda x: iterlin.train(algorithm, x[0], data, schedule=1, **settings),
        lambda x: iterlin.train(algorithm, jnp.ones(3), data, schedule=1, **settings),
        lambda x: iterlin.train_sweep(algorithm, init, (x, x[:, 0]), **grid, **settings),
    ):
        with pytest.raises(ValueError, match=r"outside of jax.jit, .*train_sweep makes several"):
            jax.jit(lambda x, call=call: call(x)[0].params)(X3)


def test_a_random_key_is_recorded_as_its_words():
    watch = Watch(at=[0], observe=lambda state: {"key": state.key})
    algorithm, settings = Algorithm(lambda p, x: x @ p, losses.squared_error, 0.1), {"num_steps": 1}
    settings |= {"schedule": 1, "watch": watch, "key": KEYS[0]}
    _, history = iterlin.train(algorithm, jnp.ones(3), (X3, X3[:, 0]), **settings)
    np.testing.assert_array_equal(history["key"][:, 0], jax.random.key_data(KEYS[0]))


def test_a_watched_set_is_evaluated_a_few_examples_at_a_time():
    f, params, (x, y) = regression()
    sizes = set()

    def noted(params, x):
        sizes.add(len(x))
        return f(params, x)

    algorithm = Algorithm(noted, losses.squared_error, 0.1)
    state = Step(algorithm, 1).start(params, (x, y), jax.random.key(0))
    for batch_size, expected in ((None, {10}), (4, {4, 2}), (20, {10})):
        sizes.clear()
        observe = observer(algorithm, Watch(batch_size=batch_size))
        jax.eval_shape(observe, state, {"all": (x, y)})
        assert sizes == expected


def test_a_run_leaves_its_start_alone():
    """The loop takes its state's buffers over, but not those it was given."""
    f, params, data = regression()
    settings = {"loss": losses.squared_error, "optimizer": 0.01, "schedule": every(3)}
    state, _ = train(f, params, data, num_steps=300, **settings)
    train(f, state, data, num_steps=310, **settings)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))


def test_a_set_is_measured_as_it_is_alone():
    """Also beside others of its shape, and by a network that couples the examples of a set."""
    f, params, (x, labels) = classification()
    coupled = lambda p, x: f(p, x) - f(p, x).mean(0, keepdims=True)  # noqa: E731
    anchor = jax.tree.map(lambda leaf: 0.9 * leaf, params)
    sets = {"first": (x[:4], labels[:4]), "long": (x, labels), "second": (x[4:8], labels[4:8])}
    sets |= {"other": (x[:4], jax.nn.one_hot(labels[:4], 3)), "third": [x[6:], labels[6:]]}

    def entropy(outputs, y):
        y = y if y.ndim > 1 else jax.nn.one_hot(y, 3)
        return -(jax.nn.log_softmax(outputs) * y).mean()

    algorithm = Algorithm(coupled, MEAN_ENTROPY, 0.1)
    state = Step(algorithm, 1).start(params, (x, labels), jax.random.key(0))._replace(anchor=anchor)
    metrics = {"entropy": entropy, "sum": lambda outputs, y: outputs.sum(0)}
    check_watch(Watch(sets, metrics))
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


def test_a_pair_of_inputs_and_of_targets_is_no_list_of_batches():
    both = lambda p, x: x[0] @ p["a"] + x[1] @ p["b"]  # noqa: E731
    distance = lambda o, y: jnp.sum((o - y[0][:, 0] - y[1][:, 0]) ** 2)  # noqa: E731
    params = {"a": jnp.ones(3), "b": jnp.ones(3)}
    algorithm = Algorithm(both, distance, 0.1)
    iterlin.train(algorithm, params, [(X3, X3), (X3, X3)], schedule=1, num_steps=2)
