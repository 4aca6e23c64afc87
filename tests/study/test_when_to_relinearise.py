"""Accuracy against updates: growing periods, families read between their settings."""

import numpy as np
import pytest
from iterlin.exact.calendar import Answers
from test_calendar import at

from book.beyond.when_to_relinearise_helpers import (
    OUT_OF_REACH,
    at_updates,
    fewest_updates,
    growing,
)

NAN = np.nan
UPDATES = np.array([32.0, 2.0, 8.0])
LINEAR = 3 * np.log(UPDATES) + 1


def test_periods_grow_and_are_known_ahead():
    answers, ends, step = Answers(growing(100, 2.0)), [], 0
    while step < 10_000:
        step = answers.first_after(at(step, step), 10_000)
        ends.append(step)
    assert np.diff(ends, prepend=0).tolist() == [100, 200, 400, 800, 1600, 3200, 3700]
    with pytest.raises(ValueError, match="factor must be"):
        growing(100, 1)


@pytest.mark.parametrize(
    ("updates", "values", "wanted", "expected"),
    [
        (UPDATES, [LINEAR, -np.log(UPDATES)], 5.0, [3 * np.log(5) + 1, -np.log(5)]),
        (UPDATES, LINEAR, 100.0, LINEAR[0]),
        (UPDATES, LINEAR, 1.0, LINEAR[1]),
        ([4, 4, 9], [1.0, 3.0, 7.0], 4, 2.0),  # settings with as many updates count as their mean
        ([1, 4, 16], [[1.0, 2.0, NAN], [1.0, NAN, 3.0]], 2, [1.5, NAN]),
        ([1, NAN], np.ones((2, 2)), 1, [NAN, NAN]),
    ],
)
def test_a_family_is_linear_in_log_updates(updates, values, wanted, expected):
    found = at_updates(updates, np.array(values), wanted)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_fewest_updates_are_where_the_family_crosses():
    updates, values = np.array([1.0, 2.0, 10.0, 50.0]), np.array([0.0, 1.0, 3.0, 4.0])
    order = [2, 0, 3, 1]
    for least in (0.3, 1.0, 3.9):
        found = fewest_updates(updates, values, least)
        np.testing.assert_allclose(at_updates(updates, values, found), least, rtol=1e-12)
        assert fewest_updates(updates[order], values[order], least) == found


@pytest.mark.parametrize(
    ("updates", "values", "expected"),
    [
        ([2, 8], [3.0, 3.0], 2.0),
        ([2, 8], [3.0, 1.0], OUT_OF_REACH),
        ([2, 8], [NAN, 3.0], OUT_OF_REACH),
        ([2, NAN], [3.0, 3.0], OUT_OF_REACH),
        ([1, 2, 4, 8], [5.0, 1.0, 3.0, 3.0], 2**1.5),  # a lucky setting of few updates
    ],
)
def test_a_family_that_falls_short_with_most_updates_is_out_of_reach(updates, values, expected):
    np.testing.assert_allclose(fewest_updates(updates, np.array(values), 2.0), expected)
