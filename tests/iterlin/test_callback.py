"""A callback after each look; runs that end early, and checkpoints that are trained on."""

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.training import losses
from iterlin.training.checkpoints import CheckpointError
from problems import assert_same_run, bare, by_factor, network
from refusals import fails, refused

F, PARAMS, X, Y = network((3, 6, 2), examples=10)
DATA = X, Y
KEY = jax.random.key(0)
SQUARED = losses.mean(losses.squared_error)


def of_head(path):
    return path.startswith("1/")


def run(at=(0, 10, 20, 30), *, data=DATA, trainable=None, train=iterlin.train, **settings):
    algorithm = iterlin.Algorithm(F, SQUARED, 0.1, trainable=trainable)
    observe = lambda state: {"bias": state.params[1]["bias"]}  # noqa: E731
    watch = iterlin.Watch({"all": DATA}, at=list(at), observe=observe)
    settings = {"schedule": 7, "watch": watch, "num_steps": 30, "progress": False} | settings
    return train(algorithm, PARAMS, data, **settings)


@pytest.mark.parametrize("engine", ["steps", "closed_form"])
def test_a_callback_gets_the_whole_state_and_what_is_recorded_at_each_look(engine):
    """Its states stay, though training goes on; numbers are those of Python."""
    seen = []
    settings = {"engine": engine, "trainable": of_head}
    _, history = run(**settings, callback=lambda state, row: seen.append((state, row)))
    assert [row["step"] for _, row in seen] == [0, 10, 20, 30] == [int(s.step) for s, _ in seen]
    for look, (state, row) in enumerate(seen):
        assert set(row) == set(history) - {"engine"}
        for name, value in row.items():
            np.testing.assert_array_equal(value, history[name][..., look], err_msg=name)
        assert type(row["all_loss"]) is float
        assert row["all_loss"] == pytest.approx(float(SQUARED(F(state.params, X), Y)), rel=1e-12)


@pytest.mark.parametrize(
    ("engine", "kind"), [("steps", bool), ("steps", jnp.asarray), ("closed_form", np.bool_)]
)
def test_true_of_any_kind_ends_the_run_and_keeps_it(engine, kind):
    ended = run(engine=engine, callback=lambda state, row: kind(row["step"] >= 20))
    assert_same_run(ended, run(engine=engine, at=(0, 10, 20), num_steps=20))


def test_a_callback_of_a_sweep_sees_all_runs_and_ends_them():
    keys, seen = jax.random.split(KEY, 3), []
    algorithm = iterlin.Algorithm(F, SQUARED, 0.1, trainable=of_head)
    watch = iterlin.Watch({"all": DATA}, at=[0, 10, 20])

    def callback(state, row):
        seen.append((jax.tree.map(jnp.shape, state.params), row["all_loss"].shape))
        return row["step"] == 10

    settings = {"periods": [1, 5], "keys": keys, "num_steps": 20, "watch": watch}
    settings["callback"] = callback
    states, history = iterlin.train_sweep(algorithm, by_factor(PARAMS), DATA, **settings)
    assert history["step"].tolist() == [0, 10]
    assert int(states.step) == 10
    assert seen == [(jax.tree.map(jnp.shape, states.params), (2, 3))] * 2


@pytest.mark.parametrize("engine", ["steps", "closed_form"])
def test_a_run_that_its_callback_ended_stays_so_until_it_is_told_to_go_on(engine, tmp_path):
    settings = {"engine": engine, "checkpoint": tmp_path / "run.npz"}
    calls = []

    def callback(state, row):
        calls.append(row["step"])
        return row["step"] == 10

    ended = run(**settings, callback=callback)
    assert_same_run(run(**settings, callback=callback), ended)
    assert calls == [0, 10]
    assert_same_run(run(**settings), run(engine=engine))  # without a callback it goes on


def test_an_exception_in_a_callback_loses_nothing_of_a_checkpoint(tmp_path):
    settings = {"checkpoint": tmp_path / "run.npz", "batch_size": 4, "key": KEY}
    run(at=(0, 10), num_steps=10, **settings)

    def failing(state, row):
        if row["step"] == 30:
            raise RuntimeError("no connection")

    fails("no connection", run, **settings, callback=failing, error=RuntimeError)
    seen = []
    found = run(**settings, callback=lambda state, row: seen.append(row["step"]))
    assert seen == [20, 30]
    assert_same_run(found, run(batch_size=4, key=KEY))


test_a_callback_that_does_not_fit_is_refused = refused(
    lambda callback: run(train=bare(iterlin.train), callback=callback),
    (3, r"callback must be a function of \(state, row\), got 3"),
    (lambda row: None, r"callback is called as callback\(state, row\), but it takes \(row\)"),
    (lambda state, row: row["all_loss"], "callback must return one bool, .*: got [0-9.]+$"),
    (lambda state, row: row["bias"] > 0, r"callback must return one bool, .*: got bool\[2\]$"),
)


@pytest.mark.parametrize(
    "engine", ["steps", "closed_form", pytest.param("flow", marks=pytest.mark.nightly)]
)
def test_a_checkpoint_with_more_steps_gives_one_long_run(engine, tmp_path):
    """To the bit; step 20 is in the midst of a period of 7."""
    settings = {"batch_size": 4, "key": KEY} if engine == "steps" else {"engine": engine}
    kept = settings | {"checkpoint": tmp_path / "run.npz"}
    run(at=(0, 10, 20), num_steps=20, **kept)
    assert_same_run(run(**kept), run(**settings))


def test_a_longer_run_keeps_what_was_recorded_at_other_looks(tmp_path):
    settings = {"checkpoint": tmp_path / "run.npz"}
    run(at=(0, 3, 20), num_steps=20, **settings)
    found = run(at=(0, 10, 25), **settings)
    assert found[1]["step"].tolist() == [0, 3, 20, 25, 30]
    assert_same_run(found, run(at=(0, 3, 20, 25)))


def test_fewer_steps_than_were_taken_are_refused_in_a_line(tmp_path):
    for engine in ("steps", "closed_form"):
        settings = {"checkpoint": tmp_path / engine, "engine": engine}
        run(at=(0, 20), num_steps=20, **settings)
        with pytest.raises(CheckpointError, match=r"^.* has taken 20 steps: num_steps 10 is below"):
            run(at=(0,), num_steps=10, **settings)


@pytest.mark.parametrize("batches", [15, 20])
def test_data_that_end_end_the_run_and_keep_it(batches):
    with pytest.warns(UserWarning, match=f"data ended at step {batches}"):
        found = run(data=(DATA for _ in range(batches)))
    at = [step for step in (0, 10, 20) if step <= batches]
    assert_same_run(found, run(at=at, num_steps=batches))
