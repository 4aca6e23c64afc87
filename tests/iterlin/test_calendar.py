import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin.exact import calendar
from iterlin.exact.calendar import Answers, ends_when_solved, looks_at
from iterlin.training import losses, schedules
from iterlin.training.algorithm import Algorithm
from iterlin.training.schedules import as_schedule
from jax import lax

STATE = Algorithm(lambda p, x: p["a"] * x + p["b"], losses.squared_error, 0.1).start(
    {"a": jnp.ones(()), "b": jnp.ones(())}, (jnp.ones(2), jnp.ones(2)), jax.random.key(0)
)


def at(step, anchored):
    step, anchored = (jnp.asarray(value, jnp.int32) for value in (step, anchored))
    return STATE._replace(step=step, anchored_at=anchored)


def moved(state):
    return state.params["b"] != state.anchor["b"]


@given(
    anchored=st.integers(0, 50),
    since=st.integers(0, 50),
    check_every=st.integers(1, 12),
    max_period=st.sampled_from([1, 5, 13, 60, np.inf]),
    further=st.integers(1, 40),
)
def test_stops_where_a_schedule_may_say_yes(anchored, since, check_every, max_period, further):
    step, limit = anchored + since, anchored + since + further
    answers = Answers(schedules.when(moved, check_every=check_every, max_period=max_period))
    may = (
        s
        for s in range(step + 1, limit)
        if (s - anchored) % check_every == 0 or s - anchored >= max_period
    )
    assert answers.first_after(at(step, anchored), limit) == next(may, limit)


def test_finds_the_next_yes_in_blocks(monkeypatch):
    monkeypatch.setattr(calendar, "BLOCK", 8)
    answers = Answers(schedules.every(20))
    found = [answers.first_after(at(step, 0), 70) for step in (0, 19, 20, 39, 60, 65)]
    assert found == [20, 20, 40, 40, 70, 70]
    assert answers.now(at(40, 20))
    assert not answers.now(at(41, 40))


@pytest.mark.parametrize(
    ("schedule", "fields"),
    [
        (schedules.every(3), set()),
        (schedules.when_solved(3), {"solved"}),
        (schedules.when(moved, check_every=2), {"params"}),
        # The whole state goes through jit and cond, and the step alone decides.
        (jax.jit(lambda step, state: (step > 0) & (state.step > 1)), set()),
        (lambda step, s: lax.cond(s.params["b"] > 3, lambda: True, lambda: False), {"params"}),
        (lambda step, s: (s.params["a"] == 1) | (s.solved == step), {"params", "solved"}),
    ],
)
def test_what_a_schedule_looks_at(schedule, fields):
    assert {
        name for name in ("params", "solved") if looks_at(name, as_schedule(schedule), STATE)
    } == fields


@pytest.mark.parametrize(
    ("schedule", "ends"),
    [
        (schedules.every(3), False),
        (schedules.when_solved(3), True),
        (lambda step, state: ~state.solved, False),
        (lambda step, state: state.solved & (step % 10 == 0), False),
        # It looks, and says yes at the first step either way.
        (lambda step, state: jnp.where(state.solved, step % 3 == 1, step % 2 == 1), False),
    ],
)
def test_whether_a_schedule_ends_a_problem_that_is_solved(schedule, ends):
    assert ends_when_solved(as_schedule(schedule), STATE) == ends
