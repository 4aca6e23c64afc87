"""When to re-linearise: fixed periods, traced periods, never."""

import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin import Algorithm, Watch, every, for_time, losses, never, train, train_sweep
from iterlin.training.schedules import NEVER, Solved, as_schedule, periods_array, when, when_solved
from problems import bare
from refusals import fails, refused
from roads import doors


def asked(schedule, steps):
    return jax.vmap(lambda step: schedule(step, None))(jnp.arange(steps)).tolist()


@given(st.integers(1, 12))
def test_every_is_due_at_multiples(period):
    assert asked(every(period), 25) == [step % period == 0 for step in range(25)]


def test_a_period_may_be_infinite_and_of_any_type():
    for period in (math.inf, 10**15, np.float32("inf"), np.asarray(np.inf), jnp.asarray(jnp.inf)):
        schedule = bare(every)(period)
        assert asked(schedule, 5) == [True, False, False, False, False]
        assert not bool(schedule(jnp.asarray(2**31 - 2, jnp.int32), None))
        assert periods_array([1e3, period]).tolist() == [1000, NEVER]
    assert asked(never(), 3) == [True, False, False]
    assert asked(every(np.float32(2)), 4) == [True, False, True, False]


@pytest.mark.parametrize("period", [0, 2.5, True, -math.inf])
def test_bad_period_is_refused(period):
    message = re.escape(f"period must be a positive integer or infinity, got {period!r}")
    for call in (lambda: bare(every)(period), lambda: periods_array([1, period])):
        fails(message, call)
    for periods in (3, []):
        fails("periods must be a sequence of at least one period", periods_array, periods)


def test_a_sweep_may_vary_how_often_a_schedule_looks():
    def by(period):
        return when(lambda state: jnp.asarray(True), check_every=period)

    settings = {"periods": [2, 3], "keys": jax.random.split(jax.random.key(0), 1)}
    settings |= {"num_steps": 6, "schedule": by, "progress": False}
    state, _ = train_sweep(ALGORITHM, lambda key: START, DATA, **settings)
    assert state.anchored_at.tolist() == [[4], [3]]


def test_a_schedule_that_reads_no_parameters_is_the_same_with_fixed_ones():
    """Engines then skip steps by its period, as without them."""
    for schedule in (every(5), as_schedule([3, 7]), when_solved(Solved(5))):
        assert schedule.bind_fixed({"fixed": jnp.ones(2)}) == schedule


@pytest.mark.parametrize("engine", ["steps", "flow"])
def test_a_list_of_steps_is_a_schedule(engine):
    for steps in ([3, 7], (7, 3), np.asarray([3, 7]), jnp.asarray([3, 7])):
        assert asked(bare(as_schedule)(steps), 10) == [step in (3, 7) for step in range(10)]
    watch = Watch(at=range(10))
    settings = {"schedule": [3, 7], "num_steps": 9, "engine": engine, "watch": watch}
    _, history = train(ALGORITHM, START, DATA, **settings)
    assert history["updates"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    for steps in ([-1], [2.5], ["often"], [[3, 7]]):
        fails("a step of the schedule must be a non-negative int", bare(as_schedule), steps)
    fails(r"the \.schedule of for_time", bare(as_schedule), for_time(2.0))


def due(schedule, anchored, **state):
    """Steps after a linearisation, from its own on, at which it says yes."""
    state = SimpleNamespace(anchored_at=anchored, **state)
    yes = jax.vmap(lambda since: schedule(anchored + since, state))(jnp.arange(13))
    return np.flatnonzero(yes).tolist()


def yes(state):
    return state.params > 0


@pytest.mark.parametrize("anchored", [0, 7])
def test_a_schedule_looks_at_the_state_now_and_then_until_its_longest_period_is_over(anchored):
    schedule = when_solved(Solved(5), max_period=10)
    assert due(schedule, anchored, solved=False) == [10, 11, 12]
    assert due(schedule, anchored, solved=True) == list(range(13))
    assert due(when(yes, check_every=4), anchored, params=1.0) == [4, 8, 12]
    assert due(when(yes, check_every=1), anchored, params=1.0) == list(range(1, 13))
    for params, expected in ((1.0, [4, 8, 10, 11, 12]), (-1.0, [10, 11, 12])):
        assert due(when(yes, check_every=4, max_period=10), anchored, params=params) == expected


test_a_look_that_cannot_be_taken_is_refused = refused(
    lambda settings: bare(when)(**settings),
    ({"predicate": lambda: True, "check_every": 2}, "predicate is called as predicate.state"),
    ({"predicate": bool, "check_every": 0}, "check_every must be a positive integer"),
)

DATA, START = (jnp.eye(2), jnp.array([1.0, 0.0])), jnp.zeros(2)
ALGORITHM = Algorithm(lambda p, x: jnp.tanh(x @ p), losses.squared_error, 0.1)


def the_schedule(step, state):
    return step % 5


OTHER = r"^schedule is called as schedule\(step, state\), but it takes .*il.never\(\)"
ANSWERS = [
    (the_schedule, r"the schedule the_schedule must return one bool, .*got int32\[\]"),
    (lambda step, state: step == jnp.arange(3), r"must return one bool, .*bool\[3\]"),
    (lambda step, state: step in (3, 7), r"needs the value of its step .*jnp.isin\(step"),
    (when(the_schedule.__get__(3), check_every=2), "predicate the_schedule must return one bool"),
    (when(lambda s: bool(s.step > 3), check_every=2), "needs the value of its state in Python"),
    (never, OTHER),
]


@pytest.mark.parametrize(("schedule", "message"), ANSWERS)
def test_a_schedule_that_returns_no_bool_is_refused_before_compute(schedule, message):
    begun = Watch(observe=lambda state: pytest.fail("it has begun"))
    for call in doors(ALGORITHM, lambda key: START, DATA, begun, schedule):
        fails(message, call)


def test_a_plain_function_may_answer_in_python_and_numpy():
    for answer in (True, np.bool_(True), np.asarray(True), jnp.asarray(True)):
        schedule = as_schedule(lambda step, state, answer=answer: answer)
        assert bool(schedule(3, None))
    settings = {"schedule": lambda step, state: step % 5 == 0, "num_steps": 12}
    for engine in ("steps", "auto"):
        state, _ = train(ALGORITHM, START, DATA, engine=engine, **settings)
        assert (int(state.updates), int(state.anchored_at)) == (2, 10)


test_a_rule_that_cannot_be_met_is_refused = refused(
    lambda settings: Solved.__post_init__(SimpleNamespace(**vars(Solved(1)) | settings)),
    ({"check_every": 0}, "check_every must be a positive integer, got 0"),
    ({"accuracy": 2}, r"accuracy must lie in \(0, 1\], got 2"),
    ({"accuracy": None}, "the rule `Solved` needs an accuracy or a gradient"),
)
