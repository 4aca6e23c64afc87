"""When to re-linearise: fixed periods, traced periods, never."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin import every, never
from iterlin.schedules import NEVER, Solved, periods_array
from problems import bare


def asked(schedule, steps):
    return [bool(schedule(jnp.asarray(step), None)) for step in range(steps)]


@given(st.integers(1, 12))
def test_every_is_due_at_multiples(period):
    assert asked(every(period), 25) == [step % period == 0 for step in range(25)]


@pytest.mark.parametrize("period", [None, math.inf, 10**15, np.int64(2**40)])
def test_a_period_beyond_the_run_is_due_at_the_start_alone(period):
    schedule = never() if period is None else bare(every)(period)
    assert asked(schedule, 5) == [True, False, False, False, False]
    assert not bool(schedule(jnp.asarray(2**31 - 2, jnp.int32), None))


def test_a_period_may_be_written_as_a_float():
    due = [bool(every(1e3)(jnp.asarray(step), None)) for step in (999, 1000, 2000)]
    assert due == [False, True, True]
    assert periods_array([1e3, math.inf]).tolist() == [1000, NEVER]


def test_periods_may_be_traced():
    periods = periods_array([1, 3, math.inf])
    assert periods.dtype == jnp.int32
    assert int(periods[-1]) == NEVER
    due = jax.jit(jax.vmap(lambda k: every(k)(jnp.asarray(6), None)))(periods)
    assert due.tolist() == [True, True, False]


@pytest.mark.parametrize("period", [0, -1, 2.5, True, "3", None, -math.inf, math.nan])
def test_bad_period_is_refused(period):
    with pytest.raises(
        ValueError, match="period must be a positive integer or infinity, got"
    ) as error:
        bare(every)(period)
    assert repr(period) in str(error.value)
    with pytest.raises(ValueError, match="period must be a positive integer or infinity, got"):
        periods_array([1, period])


@pytest.mark.parametrize("infinity", [np.float32("inf"), np.asarray(np.inf), jnp.asarray(jnp.inf)])
def test_infinity_of_any_type_is_never(infinity):
    assert not every(infinity)(10**6, None)
    assert periods_array([1, infinity]).tolist() == [1, NEVER]
    assert [step for step in range(9) if every(np.float32(4))(step, None)] == [0, 4, 8]


@pytest.mark.parametrize("periods", [3, math.inf, None, [], (), np.asarray(5), jnp.asarray(5)])
def test_what_is_no_sequence_of_periods_is_refused(periods):
    with pytest.raises(ValueError, match="periods must be a sequence of at least one period, got"):
        periods_array(periods)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"check_every": 0}, "check_every must be a positive integer, got 0"),
        ({"check_every": -1}, "check_every must be a positive integer, got -1"),
        ({"check_every": 1.5}, "check_every must be a positive integer, got 1.5"),
        ({"slice_size": 0}, "slice_size must be a positive integer, got 0"),
        ({"accuracy": 2}, r"accuracy must lie in \(0, 1\], got 2"),
        ({"accuracy": 0}, "accuracy must be finite and positive, got 0"),
        ({"accuracy": math.nan}, "accuracy must be finite and positive, got nan"),
        ({"gradient": -1}, "gradient must be finite and non-negative, got -1"),
        ({"accuracy": None}, "the rule `Solved` needs an accuracy or a gradient"),
    ],
)
def test_a_rule_that_cannot_be_met_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Solved.__post_init__(SimpleNamespace(**vars(Solved(1)) | settings))
