"""Schedules with one long period, and the statistics by which their runs are compared."""

import numpy as np
import pytest
from iterlin.exact.calendar import Answers
from test_calendar import at

from book.beyond.early_or_late_helpers import (
    at_steps,
    centred_alignment,
    ends_of_periods,
    label,
    rank_correlation,
    same_class,
)

NAN = np.nan


@pytest.mark.parametrize(
    ("places", "lengths"),
    [([], [10] * 5), ([1], [99, 10, 10, 10, 10]), ([3, 5], [10, 10, 99, 10, 99])],
)
def test_periods_at_the_places_are_long(places, lengths):
    ends = ends_of_periods(10, 99, 5, places)
    assert np.diff(ends, prepend=0).tolist() == lengths


def test_settings_are_named_by_their_places():
    places = ([], [3], [6, 7, 8], [1, 4], list(range(1, 9)))
    assert list(map(label, places)) == ["none", "3", "6 to 8", "1, 4", "1 to 8"]


@pytest.mark.parametrize("places", [[0], [1, 6]])
def test_a_place_outside_the_run_is_refused(places):
    with pytest.raises(ValueError, match="places must lie between 1 and 5"):
        ends_of_periods(10, 99, 5, places)


def test_the_schedule_relinearises_at_the_given_steps_alone():
    answers, found, step = Answers(at_steps([10, 100_010, 100_020])), [], 0
    while step < 200_000:
        step = answers.first_after(at(step, step), 200_000)
        found.append(step)
    assert found == [10, 100_010, 100_020, 200_000]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([[1.0, 2.0], [3.0, 40.0]], [[-1.0, 0.0], [5.0, 6.0]], 1.0),
        ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0], 0.8),
        ([1.0, 2.0, NAN, 3.0], [3.0, 2.0, 9.0, 1.0], -1.0),
        ([1.0, 2.0, NAN], [3.0, 2.0, 1.0], NAN),
        ([1.0, 1.0, 1.0], [3.0, 2.0, 1.0], NAN),
    ],
)
def test_rank_correlation_leaves_out_missing_runs(one, other, expected):
    np.testing.assert_allclose(rank_correlation(np.array(one), np.array(other)), expected)


def test_alignment_ignores_a_constant_and_the_size_of_a_kernel():
    same, crossed = (same_class(np.array(labels)) for labels in ([0, 0, 1, 1], [0, 1, 0, 1]))
    np.testing.assert_allclose(centred_alignment(3 * same + 7, same), 1, rtol=1e-5)
    np.testing.assert_allclose(centred_alignment(crossed, same), 0, atol=1e-6)
    assert np.isnan(centred_alignment(same * NAN, same))
