"""Exact engines on inputs and targets of any structure, outputs of any rank, part of params."""

from functools import cache, partial

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from iterlin.training import losses, schedules, timed
from refusals import fails, refused

by_engine = partial(iterlin.train, engine="auto")
EXAMPLES, FEATURES, PLACES, CLASSES, FROZEN = 6, 3, 2, 3, 500
RNG = np.random.default_rng(0)
PARAMS = {
    "layers": [jnp.asarray(RNG.normal(size=(FEATURES, 4))), jnp.asarray(RNG.normal(size=(4,)))],
    "places": jnp.asarray(RNG.normal(size=(4, PLACES, CLASSES))),
    "frozen": jnp.asarray(RNG.normal(size=(FROZEN, 4))),
    "vocabulary": jnp.arange(FROZEN),  # integers are never trained
}
X = {"inputs": jnp.asarray(RNG.normal(size=(EXAMPLES, FEATURES))), "tokens": jnp.arange(EXAMPLES)}
LABELS = jnp.asarray(RNG.integers(CLASSES, size=(EXAMPLES, PLACES)))
WEIGHTED = {"values": jnp.sin(jnp.arange(EXAMPLES) * 1.0), "weights": jnp.geomspace(0.01, 0.1, 6)}


def hidden(params, x):
    shift = params["frozen"][params["vocabulary"][x["tokens"]]]
    return jnp.tanh(x["inputs"] @ params["layers"][0] + shift)


def scalars(params, x):
    return hidden(params, x) @ params["layers"][1]


def sequences(params, x):
    return jnp.einsum("nh,htv->ntv", hidden(params, x), params["places"])


def weighted_error(outputs, y):
    return 0.5 * jnp.sum(y["weights"] * (outputs - y["values"]) ** 2)


PADDED = losses.mean(partial(losses.cross_entropy, ignore=-100))
CASES = {
    "numbers": (scalars, losses.mean(losses.squared_error), WEIGHTED["values"]),
    "padded sequences": (sequences, PADDED, LABELS.at[:, -1].set(-100).at[0].set(-100)),
    "weighted": (scalars, weighted_error, WEIGHTED),
}
RUN = {"schedule": 10, "num_steps": 25, "progress": False}
FLOW = {"engine": "flow"}
WHEN_SOLVED = {"schedule": schedules.when_solved(schedules.Solved(5), max_period=100)}


def setting(case, **changes):
    f, loss, y = CASES[case]
    settings = {"f": f, "loss": loss, "optimizer": 0.05, "trainable": lambda path: path != "frozen"}
    algorithm = iterlin.Algorithm(**settings | changes)
    return algorithm, PARAMS, (X, y), iterlin.Watch({"train": (X, y)}, at=[0, 13, 25])


@cache
def by_steps(case):
    algorithm, params, data, watch = setting(case)
    return iterlin.train(algorithm, params, data, watch=watch, **RUN)


@pytest.mark.parametrize(
    ("case", "engine", "memory_limit"),
    [
        ("numbers", "closed_form", 1000),  # J does not fit: its kernel
        ("padded sequences", "function_space", None),
        ("padded sequences", "kept_steps", 500),  # slice by slice
        ("weighted", "function_space", None),
    ],
)
def test_exact_engines_are_the_steps_whatever_the_shapes(case, engine, memory_limit):
    algorithm, params, data, watch = setting(case)
    settings = {"engine": engine, "memory_limit": memory_limit, "watch": watch}
    found = by_engine(algorithm, params, data, **settings, **RUN)
    problems.assert_same_run(found, by_steps(case), 1e-10)
    np.testing.assert_array_equal(found[0].params["frozen"], params["frozen"])
    np.testing.assert_array_equal(found[0].anchor["frozen"], params["frozen"])
    assert found[0].params["vocabulary"] is params["vocabulary"]


def drifted(state):
    moved, anchor = (tree["layers"][1] + tree["frozen"][0] for tree in (state.params, state.anchor))
    return jnp.linalg.norm(moved - anchor) > 0.1


@pytest.mark.parametrize("engine", ["steps", "flow", "closed_form"])
def test_fixed_parameters_are_arguments_of_every_program(engine, no_constants):
    """As a constant, XLA would fold a frozen network over the data when it compiles."""
    algorithm, params, data, watch = setting("numbers")
    schedule = schedules.when(drifted, check_every=5)
    settings = RUN | {"schedule": schedule, "engine": engine}
    state, _ = by_engine(algorithm, params, data, watch=watch, **settings)
    assert int(state.updates) > 0
    if engine == "steps":
        grid = {"periods": [4], "keys": jax.random.split(jax.random.key(0)), "num_steps": 3}
        iterlin.train_sweep(algorithm, lambda key: params, data, **grid)
    with pytest.raises(UserWarning, match="constants were captured"):
        jax.jit(lambda x: x + params["frozen"])(1.0)


def test_arrays_of_numpy_and_steps_with_a_regularizer():
    penalised = {"regularizer": lambda p: 0.1 * p["places"].sum()}
    algorithm, params, data, watch = setting("numbers", **penalised)
    data, params = jax.tree.map(np.asarray, (data, params))
    found = by_engine(algorithm, params, data, watch=watch, **RUN)
    assert set(found[1]["engine"]) == {"steps"}
    problems.assert_same_run(found, iterlin.train(algorithm, params, data, watch=watch, **RUN), 0.0)
    assert np.any(found[0].params["places"] != params["places"])


test_settings_that_do_not_go_together_are_refused = refused(
    lambda algorithm, settings: by_engine(*setting("numbers", **algorithm)[:3], **RUN | settings),
    ({"regularizer": optax.tree.norm}, FLOW, "regularizer.*'steps'"),
    ({"f": lambda p, x, key: 0, "keyed": True}, FLOW, "no key"),
    ({"optimizer": timed.for_time(3.0).optimizer}, FLOW, "every.time / step size"),
    ({"f": lambda p, x: {"a": scalars(p, x)}}, {}, "one array"),
    ({}, WHEN_SOLVED, "accuracy=None, gradient"),
    ({}, FLOW | {"batch_size": 2}, "full batch as it is: no batch_size"),
)


def test_the_state_of_a_run_and_batches_of_data_are_refused():
    algorithm, params, data, _ = setting("numbers")
    state, _ = iterlin.train(algorithm, params, data, **RUN)
    fails("its state", by_engine, algorithm, state, data, **RUN | FLOW)
    fails("data must be two", by_engine, algorithm, params, iter([data]), **RUN | FLOW)


def test_types_that_differ_are_left_to_steps():
    algorithm, params, data, watch = setting("numbers", trainable=lambda path: "layers" in path)
    params = params | {"layers": [leaf.astype(jnp.float32) for leaf in params["layers"]]}
    fails("there are float32 and float64", by_engine, algorithm, params, data, engine="flow", **RUN)
    state, history = by_engine(algorithm, params, data, watch=watch, **RUN)
    assert set(history["engine"]) == {"steps"}
    assert state.params["layers"][0].dtype == jnp.float32
