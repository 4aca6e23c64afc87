"""Accuracy against updates: growing periods, families read between their settings."""

import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.exact.calendar import Answers
from iterlin.study.frontier import OUT_OF_REACH, at_updates, fewest_updates, growing
from test_calendar import at


def test_periods_grow_and_are_known_ahead():
    schedule, step = growing(100, 2.0), 0
    answers, ends = Answers(schedule), []
    while step < 10_000:
        step = answers.first_after(at(step, step), 10_000)
        ends.append(step)
    assert np.diff(ends[:-1], prepend=0).tolist() == [100, 200, 400, 800, 1600, 3200]
    assert ends[-1] == 10_000
    assert not bool(schedule(jnp.asarray(0), None))


@pytest.mark.parametrize("factor", [1, 0.5, 0, -2, np.nan])
def test_a_factor_that_does_not_grow_is_refused(factor):
    with pytest.raises(ValueError, match="factor must be"):
        growing(10, factor)


def test_a_family_linear_in_log_updates_is_read_as_such():
    updates = np.array([32.0, 2.0, 8.0])
    values = np.stack([3 * np.log(updates) + 1, -np.log(updates)])
    np.testing.assert_allclose(
        at_updates(updates, values, 5.0), [3 * np.log(5) + 1, -np.log(5)], rtol=1e-12
    )
    np.testing.assert_allclose(at_updates(updates, values, 100.0), values[:, 0])
    np.testing.assert_allclose(at_updates(updates, values, 1.0), values[:, 1])


def test_settings_with_as_many_updates_count_as_their_mean():
    assert at_updates([4, 4, 9], np.array([1.0, 3.0, 7.0]), 4) == 2


def test_what_another_setting_lacks_leaves_those_between_alone():
    values = np.array([[1.0, 2.0, np.nan], [1.0, np.nan, 3.0]])
    found = at_updates([1, 4, 16], values, 2)
    assert found[0] == 1.5
    assert np.isnan(found[1])


def test_the_fewest_updates_are_where_the_family_crosses():
    updates, values = np.array([1.0, 2.0, 10.0, 50.0]), np.array([0.0, 1.0, 3.0, 4.0])
    for least in (0.3, 1.0, 2.4, 3.9):
        found = fewest_updates(updates, values, least)
        np.testing.assert_allclose(at_updates(updates, values, found), least, rtol=1e-12)
    order = [2, 0, 3, 1]
    assert fewest_updates(updates[order], values[order], 2.4) == fewest_updates(
        updates, values, 2.4
    )


def test_a_lucky_setting_of_few_updates_does_not_count():
    assert fewest_updates([1, 2, 4, 8], [5.0, 1.0, 3.0, 3.0], 2.0) == pytest.approx(2**1.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0, 3.0], 2.0), ([3.0, 1.0], OUT_OF_REACH), ([np.nan, 3.0], OUT_OF_REACH)],
)
def test_ends_of_a_family(values, expected):
    assert fewest_updates([2, 8], values, 2.0) == expected
    assert OUT_OF_REACH == 1000  # records hold it


def test_runs_that_are_missing_leave_nothing_to_read():
    assert np.isnan(at_updates([1, np.nan], np.ones((2, 2)), 1)).all()
    assert np.isnan(at_updates([1, 2], np.ones(2), np.nan))
    assert fewest_updates([1, np.nan], np.ones(2), 0.5) == OUT_OF_REACH


@pytest.mark.parametrize("updates", [[1, 0], [1, np.inf], [1, 2, 3]])
def test_updates_that_are_none_are_refused(updates):
    with pytest.raises(ValueError, match="updates"):
        at_updates(updates, np.ones(2), 1)
    with pytest.raises(ValueError, match="updates"):
        fewest_updates(updates, np.ones(2), 1)


def test_one_number_is_no_family():
    with pytest.raises(ValueError, match=r"updates \(\) must be one for each"):
        at_updates(3.0, 1.0, 1.0)
