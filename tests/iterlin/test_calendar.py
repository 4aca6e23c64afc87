import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin import Algorithm, Step, losses, schedules
from iterlin.exact import calendar
from iterlin.exact.calendar import Calendar
from iterlin.training.schedules import as_schedule, reads_params

ALGORITHM = Algorithm(lambda p, x: p["a"] * x + p["b"], losses.squared_error, 0.1)
STATE = Step(ALGORITHM, 1).start({"a": jnp.ones(()), "b": jnp.ones(())}, (jnp.ones(2), jnp.ones(2)))


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
    plan = Calendar(schedules.when(moved, check_every=check_every, max_period=max_period))
    later = range(step + 1, limit)
    may = (s for s in later if (s - anchored) % check_every == 0 or s - anchored >= max_period)
    assert plan.next_stop(at(step, anchored), limit) == next(may, limit)


@pytest.mark.parametrize("due", [9, lambda step, state: step % 9 == 0])
def test_finds_the_next_yes_at_once_or_in_blocks(monkeypatch, due):
    monkeypatch.setattr(calendar, "BLOCK", 8)
    plan = Calendar(as_schedule(due))
    found = [plan.next_stop(at(step, 0), 70) for step in (0, 8, 9, 17, 60, 65)]
    assert found == [9, 9, 18, 18, 63, 70]
    assert plan.is_due(at(18, 9))
    assert not plan.is_due(at(19, 18))


@pytest.mark.parametrize(
    ("schedule", "reads"),
    [
        (schedules.every(3), False),
        (schedules.when_solved(schedules.Solved(3)), False),
        (schedules.when(moved, check_every=2), True),
        # The whole state goes through jit and cond, and the step alone decides.
        (jax.jit(lambda step, state: (step > 0) & (state.step > 1)), False),
        (lambda step, s: jax.lax.cond(s.params["b"] > 3, lambda: True, lambda: False), True),
        (lambda step, s: (s.params["a"] == 1) | (s.solved == step), True),
    ],
)
def test_whether_a_schedule_reads_the_parameters(schedule, reads):
    assert reads_params(as_schedule(schedule), STATE) == reads
