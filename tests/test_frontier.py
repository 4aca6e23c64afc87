"""Accuracy against updates: growing periods, families read between their settings."""

import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.exact.calendar import Answers
from iterlin.study.frontier import OUT_OF_REACH, at_updates, fewest_updates, growing
from test_calendar import at

NAN = np.nan


def test_periods_grow_and_are_known_ahead():
    schedule, step = growing(100, 2.0), 0
    answers, ends = Answers(schedule), []
    while step < 10_000:
        step = answers.first_after(at(step, step), 10_000)
        ends.append(step)
    assert np.diff(ends[:-1], prepend=0).tolist() == [100, 200, 400, 800, 1600, 3200]
    assert ends[-1] == 10_000
    assert not bool(schedule(jnp.asarray(0), None))


@pytest.mark.parametrize("factor", [1, 0.5, 0, -2, NAN])
def test_a_factor_that_does_not_grow_is_refused(factor):
    with pytest.raises(ValueError, match="factor must be"):
        growing(10, factor)


UPDATES = np.array([32.0, 2.0, 8.0])
LINEAR = 3 * np.log(UPDATES) + 1


@pytest.mark.parametrize(
    ("updates", "values", "wanted", "expected"),
    [
        (UPDATES, [LINEAR, -np.log(UPDATES)], 5.0, [3 * np.log(5) + 1, -np.log(5)]),
        (UPDATES, LINEAR, 100.0, LINEAR[0]),
        (UPDATES, LINEAR, 1.0, LINEAR[1]),
        ([4, 4, 9], [1.0, 3.0, 7.0], 4, 2.0),  # as many updates count as their mean
        ([1, 4, 16], [[1.0, 2.0, NAN], [1.0, NAN, 3.0]], 2, [1.5, NAN]),
        ([1, NAN], np.ones((2, 2)), 1, [NAN, NAN]),
        ([1, 2], np.ones(2), NAN, NAN),
    ],
)
def test_a_family_is_linear_in_log_updates(updates, values, wanted, expected):
    found = at_updates(updates, np.array(values), wanted)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("least", [0.3, 1.0, 2.4, 3.9])
def test_the_fewest_updates_are_where_the_family_crosses(least):
    updates, values = np.array([1.0, 2.0, 10.0, 50.0]), np.array([0.0, 1.0, 3.0, 4.0])
    found = fewest_updates(updates, values, least)
    np.testing.assert_allclose(at_updates(updates, values, found), least, rtol=1e-12)
    order = [2, 0, 3, 1]
    assert fewest_updates(updates[order], values[order], least) == found


@pytest.mark.parametrize(
    ("updates", "values", "expected"),
    [
        ([2, 8], [3.0, 3.0], 2.0),
        ([2, 8], [3.0, 1.0], OUT_OF_REACH),
        ([2, 8], [NAN, 3.0], OUT_OF_REACH),
        ([2, NAN], [3.0, 3.0], OUT_OF_REACH),
        # A lucky setting of few updates does not count.
        ([1, 2, 4, 8], [5.0, 1.0, 3.0, 3.0], 2**1.5),
    ],
)
def test_ends_of_a_family(updates, values, expected):
    assert fewest_updates(updates, values, 2.0) == pytest.approx(expected)
    assert OUT_OF_REACH == 1000  # records hold it


@pytest.mark.parametrize("read", [at_updates, fewest_updates])
@pytest.mark.parametrize("updates", [[1, 0], [1, np.inf], [1, 2, 3], 3.0])
def test_updates_that_are_none_are_refused(read, updates):
    with pytest.raises(ValueError, match="updates"):
        read(updates, np.ones(2), 1)
