"""Schedules that look at the parameters, followed exactly by engines that take no steps."""

from functools import partial

import iterlin
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from iterlin import Watch, losses, when
from refusals import fails

by_engine = partial(iterlin.train, engine="auto")
F, PARAMS, X, Y = problems.network((3, 6, 4), examples=12)
LABELS = jnp.argmax(Y, 1)
LENGTH = 120
ENTROPY = losses.mean(losses.cross_entropy)
SQUARED = losses.mean(losses.squared_error, over="examples")


def setting(loss=ENTROPY, at=(0, 7, 40, LENGTH), step_size=0.05, **changes):
    data = X, (LABELS if loss is ENTROPY else Y)
    algorithm = iterlin.Algorithm(F, loss, step_size, **changes)
    return (algorithm, PARAMS, data), Watch({"train": data}, at=list(at))


def moved_far(state):
    return optax.tree.norm(optax.tree.sub(state.params, state.anchor)) > 0.5


@pytest.mark.parametrize(
    ("engine", "loss", "max_period"),
    [("function_space", ENTROPY, 27), ("closed_form", SQUARED, np.inf)],
)
def test_a_schedule_is_followed_as_by_the_steps_of_train(engine, loss, max_period):
    problem, watch = setting(loss)
    schedule = when(moved_far, check_every=4, max_period=max_period)
    settings = {"schedule": schedule, "num_steps": LENGTH, "watch": watch}
    reference = iterlin.train(*problem, **settings)
    found = by_engine(*problem, engine=engine, progress=False, **settings)
    assert 2 <= int(reference[0].updates) < LENGTH // 4
    problems.assert_same_run(found, reference, 1e-10)


FLOW = {"engine": "function_space_flow", "tolerance": 1e-6}


def events(run, check_every, looks, **settings):
    """The steps at which it re-linearises, as far as the looks tell."""
    (algorithm, params, data), _ = setting(step_size=0.01)
    watch = Watch(at=looks, observe=lambda state: {"at": state.anchored_at})
    schedule = when(moved_far, check_every=check_every)
    settings = {"schedule": schedule, "num_steps": int(looks[-1]), "watch": watch} | settings
    return np.unique(run(algorithm, params, data, progress=False, **settings)[1]["at"])[1:]


def test_events_of_a_flow_are_those_of_small_steps_within_one_check():
    check_every, looks = 20, np.arange(0, 1201, 20)
    taken = events(iterlin.train, check_every, looks)
    flowed = events(by_engine, check_every, looks, **FLOW)
    assert len(taken) == len(flowed) >= 2
    assert not (flowed % check_every).any()
    assert np.abs(np.diff(flowed, prepend=0) - np.diff(taken, prepend=0)).max() <= check_every


def test_a_flow_stops_at_the_first_check_after_the_event():
    def first(check_every):
        once = lambda state: moved_far(state) & (state.updates == 0)  # noqa: E731
        schedule = when(once, check_every=check_every)
        return events(by_engine, check_every, [0, 500], **FLOW, schedule=schedule).item()

    event = first(1)
    assert event > 60
    assert first(16) == -(-event // 16) * 16


def test_looks_that_only_steps_follow_are_refused_and_left_to_them():
    problem, watch = setting()
    looks = lambda step, state: moved_far(state)  # noqa: E731
    settings = {"schedule": looks, "num_steps": LENGTH, "watch": watch}
    fails("check_every", by_engine, *problem, engine="flow", **settings)
    penalised, _ = setting(penalty=0.1)  # whose minimum takes no steps at which to look
    now_and_then = settings | {"schedule": when(moved_far, check_every=4)}
    fails("look at the parameters", by_engine, *penalised, engine="minimum", **now_and_then)
    _, history = by_engine(*problem, progress=False, **settings)
    assert set(history["engine"]) == {"steps"}
