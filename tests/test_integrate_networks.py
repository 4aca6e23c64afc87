"""Exact engines on inputs and targets of any structure, outputs of any rank, part of params."""

from functools import cache

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from iterlin import losses, ntk_matrix, schedules, timed
from iterlin.exact import engines
from iterlin.exact.checks import check_outputs
from iterlin.exact.choice import ENGINES
from iterlin.exact.integrate import integrate, integrator
from iterlin.exact.task import Task
from iterlin.parameters import bound, split
from iterlin.schedules import Solved
from iterlin.watching import Watch

EXAMPLES, FEATURES, PLACES, CLASSES, FROZEN = 6, 3, 2, 3, 500
KEYS = jax.random.split(jax.random.key(0), 6)
PARAMS = {
    "layers": [jax.random.normal(KEYS[0], (FEATURES, 4)), jax.random.normal(KEYS[1], (4,))],
    "places": jax.random.normal(KEYS[2], (4, PLACES, CLASSES)),
    "frozen": jax.random.normal(KEYS[3], (FROZEN, 4)),
    "vocabulary": jnp.arange(FROZEN),  # integers are never trained
}
X = {
    "inputs": jax.random.normal(KEYS[4], (EXAMPLES, FEATURES)),
    "tokens": jnp.arange(EXAMPLES),
}
LABELS = jax.random.randint(KEYS[5], (EXAMPLES, PLACES), 0, CLASSES)
WEIGHTED = {"values": jnp.sin(jnp.arange(EXAMPLES) * 1.0), "weights": jnp.geomspace(0.01, 0.1, 6)}
ENTROPY = losses.mean(losses.cross_entropy)


def hidden(params, x):
    rows = params["vocabulary"][x["tokens"]]
    shift = params["frozen"][rows]
    return jnp.tanh(x["inputs"] @ params["layers"][0] + shift)


def scalars(params, x):
    return hidden(params, x) @ params["layers"][1]


def sequences(params, x):
    return jnp.einsum("nh,htv->ntv", hidden(params, x), params["places"])


def weighted_error(outputs, y):
    return 0.5 * jnp.sum(y["weights"] * (outputs - y["values"]) ** 2)


CASES = {
    "numbers": (scalars, losses.mean(losses.squared_error), WEIGHTED["values"]),
    "sequences": (sequences, ENTROPY, LABELS),
    "weighted": (scalars, weighted_error, WEIGHTED),
}
RUN = {"schedule": 10, "num_steps": 25}


def not_frozen(path):
    return path != "frozen"


def setting(case, **changes):
    f, loss, y = CASES[case]
    algorithm = iterlin.Algorithm(f, loss, 0.05, **{"trainable": not_frozen} | changes)
    return algorithm, PARAMS, (X, y), Watch({"train": (X, y)}, at=[0, 13, 25])


def assert_same(found, expected, tolerance):
    (state, history), (other, reference) = found, expected
    trained = [{**tree, "vocabulary": 0} for tree in (state.params, other.params)]
    np.testing.assert_allclose(*map(problems.flat, trained), atol=tolerance)
    for name, values in reference.items():
        np.testing.assert_allclose(history[name], values, atol=tolerance, err_msg=name)
    assert state.params["vocabulary"].dtype == PARAMS["vocabulary"].dtype


@cache
def by_steps(case):
    algorithm, params, data, watch = setting(case)
    return iterlin.train(algorithm, params, data, watch=watch, **RUN)


@pytest.mark.parametrize(
    ("case", "engine", "memory_limit"),
    [
        ("numbers", "closed_form", None),
        ("numbers", "closed_form", 1000),  # J does not fit: its kernel
        ("numbers", "function_space", None),
        ("sequences", "function_space", None),
        ("sequences", "kept_steps", 500),  # slice by slice
        ("weighted", "function_space", None),
        ("weighted", "kept_steps", None),
        ("weighted", "auto", None),
    ],
)
def test_exact_engines_are_the_steps_whatever_the_shapes(case, engine, memory_limit):
    algorithm, params, data, watch = setting(case)
    found = integrate(
        algorithm,
        params,
        data,
        engine=engine,
        watch=watch,
        memory_limit=memory_limit,
        progress=False,
        **RUN,
    )
    assert_same(found, by_steps(case), 1e-10)
    np.testing.assert_array_equal(found[0].params["frozen"], params["frozen"])
    np.testing.assert_array_equal(found[0].anchor["frozen"], params["frozen"])


@pytest.mark.parametrize(("penalty", "engine"), [(0.0, "flow"), (0.1, "minimum")])
def test_flow_and_minimum_of_sequences(penalty, engine):
    """Of part of the parameters, and of the network with the others written into it."""
    algorithm, params, data, watch = setting("sequences", penalty=penalty)
    moving = {name: params[name] for name in ("layers", "places")}
    written = setting("sequences", penalty=penalty, trainable=None)[0]
    object.__setattr__(written, "f", lambda p, x: sequences({**params, **p}, x))
    settings = {"engine": engine, "watch": watch, "tolerance": 1e-6, **RUN}
    found, history = integrate(algorithm, params, data, **settings)
    other, reference = integrate(written, moving, data, **settings)
    for name in moving:
        np.testing.assert_allclose(
            problems.flat(found.params[name]), problems.flat(other.params[name]), atol=1e-10
        )
    np.testing.assert_allclose(history["train_loss"], reference["train_loss"], atol=1e-10)
    assert history["train_loss"][-1] < history["train_loss"][0]


def drifted(state):
    moved, anchor = (tree["layers"][1] + tree["frozen"][0] for tree in (state.params, state.anchor))
    return jnp.linalg.norm(moved - anchor) > 0.1


@pytest.mark.optimized
@pytest.mark.parametrize("engine", ["auto", "flow", "function_space", "closed_form"])
def test_what_is_fixed_is_an_argument_of_every_program(engine, no_constants):
    algorithm, params, data, watch = setting("numbers")
    schedule = schedules.when(drifted, check_every=5)
    state, _ = integrate(
        algorithm, params, data, engine=engine, watch=watch, schedule=schedule, num_steps=25
    )
    assert int(state.updates) > 0
    with pytest.raises(UserWarning, match="constants were captured"):
        jax.jit(lambda x: x + params["frozen"])(1.0)


@pytest.mark.optimized
def test_other_fixed_values_compile_nothing_anew(monkeypatch):
    made = []

    def flow(task):
        made.append(engines.GradientFlow(task, with_kernel=True))
        return made[-1]

    monkeypatch.setitem(ENGINES, "flow", flow)
    algorithm, params, data, watch = setting("sequences")
    run = integrator(algorithm, data, engine="flow", watch=watch)
    ends = [run({**params, "frozen": c * params["frozen"]}, **RUN)[0] for c in (1.0, 0.5)]
    [engine] = made
    assert [engine._go_on._cache_size(), engine._parameters._cache_size()] == [1, 1]
    assert engine._start._cache_size() == 2  # the first linearisation, and one after another
    assert np.any(ends[0].params["places"] != ends[1].params["places"])


def test_the_kernel_is_that_of_what_is_trained():
    moving, fixed = split(PARAMS, not_frozen)
    kernel = ntk_matrix(sequences, PARAMS, X, trainable=not_frozen)
    jacobian = problems.dense(bound(sequences, fixed), moving, X)
    np.testing.assert_allclose(kernel, jacobian @ jacobian.T, atol=1e-12)


def test_arrays_of_numpy_and_steps_with_a_regularizer():
    algorithm, params, data, watch = setting(
        "numbers", regularizer=lambda p: 0.1 * p["places"].sum()
    )
    data, params = jax.tree.map(np.asarray, (data, params))
    found = integrate(algorithm, params, data, watch=watch, progress=False, **RUN)
    assert set(found[1]["engine"]) == {"steps"}
    assert_same(found, iterlin.train(algorithm, params, data, watch=watch, **RUN), 0.0)
    assert np.any(found[0].params["places"] != params["places"])


@pytest.mark.parametrize(
    ("case", "algorithm", "settings", "message"),
    [
        ("numbers", {"regularizer": optax.tree.norm}, {"engine": "flow"}, "regularizer.*'steps'"),
        ("numbers", {"f": lambda p, x, key: 0, "keyed": True}, {"engine": "steps"}, "no key"),
        ("numbers", {"optimizer": timed.for_time(3.0).optimizer}, {}, "every.time / step size"),
        ("numbers", {"optimizer": None}, {}, "step size"),
        ("numbers", {"trainable": lambda path: False}, {}, "trainable"),
        ("numbers", {}, {"schedule": 2.5}, "schedule"),
        ("weighted", {}, {"engine": "closed_form"}, "squared error"),
        ("numbers", {"f": lambda p, x: {"a": scalars(p, x)}}, {}, "one array"),
        ("numbers", {"f": lambda p, x: jnp.sum(scalars(p, x))}, {}, "leads with the 6 examples"),
        *[
            (
                case,
                {"solved": Solved(5)},
                {"schedule": schedules.when_solved(100)},
                "accuracy=None, gradient",
            )
            for case in ("weighted", "numbers")
        ],
        ("numbers", {"batch_size": 2}, {}, "full batch as it is: no batch_size"),
    ],
)
def test_refuses_what_does_not_go_together(case, algorithm, settings, message):
    f, loss, y = CASES[case]
    chosen = {"f": f, "loss": loss, "optimizer": 0.05, "trainable": not_frozen} | algorithm
    with pytest.raises(ValueError, match=message):
        integrate(iterlin.Algorithm(**chosen), PARAMS, (X, y), **RUN | settings)


def test_labels_of_sequences_are_counted_place_by_place():
    task = Task(sequences, (X, LABELS), ENTROPY, 0.05, 0.0, 1e-3, 2**30, Solved(5), not_frozen)
    check_outputs(task, PARAMS)
    with pytest.raises(ValueError, match=r"one for each row of outputs \(6, 2, 3\)"):
        check_outputs(task._replace(data=(X, LABELS[:, :1])), PARAMS)


def test_refuses_the_state_of_a_run_and_batches_of_data():
    algorithm, params, data, _ = setting("numbers")
    state = algorithm.start(params, data, jax.random.key(0))
    with pytest.raises(ValueError, match="give its state"):
        integrate(algorithm, state, data, **RUN)
    with pytest.raises(ValueError, match="data must be two"):
        integrate(algorithm, params, iter([data]), **RUN)


def test_types_that_differ_are_for_steps_alone():
    algorithm, params, data, watch = setting("numbers", trainable=lambda path: "layers" in path)
    params = params | {"layers": [leaf.astype(jnp.float32) for leaf in params["layers"]]}
    with pytest.raises(ValueError, match="there are float32 and float64"):
        integrate(algorithm, params, data, engine="flow", **RUN)
    state, history = integrate(algorithm, params, data, watch=watch, progress=False, **RUN)
    assert set(history["engine"]) == {"steps"}
    assert state.params["layers"][0].dtype == jnp.float32
