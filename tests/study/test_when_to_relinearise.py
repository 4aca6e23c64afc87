"""Accuracy against updates: growing periods, families read between their settings."""

import numpy as np
import pytest
from curves import assert_statistics, runs
from iterlin.exact.calendar import Calendar
from test_calendar import at

from book.beyond import when_to_relinearise_helpers as helpers

NAN = np.nan
UPDATES = np.array([32.0, 2.0, 8.0])
LINEAR = 3 * np.log(UPDATES) + 1


def stops(schedule, last):
    """Return the steps at which a schedule, as it is known ahead, ends periods, and the last."""
    plan, found = Calendar(schedule), [0]
    while found[-1] < last:
        found.append(plan.next_stop(at(found[-1], found[-1]), last))
    return found[1:]


def test_periods_grow_and_are_known_ahead():
    ends = stops(helpers.growing(100, 2.0), 10_000)
    assert np.diff(ends, prepend=0).tolist() == [100, 200, 400, 800, 1600, 3200, 3700]
    with pytest.raises(ValueError, match="factor must be"):
        helpers.growing(100, 1)


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
    found = helpers.at_updates(updates, np.array(values), wanted)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_fewest_updates_are_where_the_family_crosses():
    updates, values = np.array([1.0, 2.0, 10.0, 50.0]), np.array([0.0, 1.0, 3.0, 4.0])
    order = [2, 0, 3, 1]
    for least in (0.3, 1.0, 3.9):
        found = helpers.fewest_updates(updates, values, least)
        np.testing.assert_allclose(helpers.at_updates(updates, values, found), least, rtol=1e-12)
        assert helpers.fewest_updates(updates[order], values[order], least) == found


@pytest.mark.parametrize(
    ("updates", "values", "expected"),
    [
        ([2, 8], [3.0, 3.0], 2.0),
        ([2, 8], [3.0, 1.0], helpers.OUT_OF_REACH),
        ([2, 8], [NAN, 3.0], helpers.OUT_OF_REACH),
        ([2, NAN], [3.0, 3.0], helpers.OUT_OF_REACH),
        ([1, 2, 4, 8], [5.0, 1.0, 3.0, 3.0], 2**1.5),  # a lucky setting of few updates
    ],
)
def test_a_family_that_falls_short_with_most_updates_is_out_of_reach(updates, values, expected):
    np.testing.assert_allclose(helpers.fewest_updates(updates, np.array(values), 2.0), expected)


def runs_of(taken, accuracy):
    """Schedules seen before so many updates, after half and after all of them, and SGD's runs."""
    taken, accuracy = np.asarray(taken, float), np.asarray(accuracy, float)
    updates, curve = (np.stack([0 * a, a / 2, a], -1)[:, None] for a in (taken, accuracy))
    axes = {"schedule": range(len(taken)), "seed": range(4)}
    others = {"step": [0, 50, 100], "updates": updates, "anchored_at": [0, 20, 80]}
    flows = runs(axes, curve, train_loss=[2.0, 1.0, 0.5], **others).drop_vars("schedule")
    losses = {"train_accuracy": 1.0, "train_loss": [2.0, 0.5, 0.1]}
    descent = runs({"seed": range(4)}, [0.1, 0.4, 0.8], **losses)
    families = ["fixed", "fixed", "growing", "event", "event"]
    options = {"families": families, "settings": [2.0, 20.0, 4.0, 0.5, 1.0], "unit": 0.1}
    return helpers.at_the_end(flows, descent, **options), descent


TAKEN, ENDS = [16, 4, 8, 16, 4], [0.9, 0.7, 0.8, 0.85, 0.79]


def test_statistics_of_schedules_with_known_ends():
    found = helpers.add_statistics(*runs_of(TAKEN, ENDS))
    # Events gain -5 and 9 points over fixed periods at as many updates; over growing ones 5, -1.
    expected = {"over_fixed_end": 2, "over_growing_end": 2, "gain_0.5": -5, "gain_1": 9}
    # 99 % of SGD's 80 % lie between 4 updates (70 %) and 16 (90 %).
    expected |= {"enough_fixed_end": 4 ** (1 + (0.792 - 0.7) / 0.2), "enough_growing_end": 8}
    # At the loss of 0.5 SGD had 40 %, so that all reach it with the fewest updates.
    expected |= {"matched_accuracy": 40, "enough_event_matched": 4}
    assert_statistics(found, expected)


def test_fewest_updates_by_the_number_of_images():
    sets = {400: runs_of(TAKEN, ENDS)[0], 100: runs_of(TAKEN, [0.9, 0.8, 0.8, 0.85, 0.75])[0]}
    found = helpers.by_size(sets)
    assert found["size"].values.tolist() == [100, 400]
    large = 4 ** (1 + (0.792 - 0.7) / 0.2)
    fixed = found.enough_by_size.sel(of_family="fixed").transpose("size", "bound")
    np.testing.assert_allclose(fixed, [[4] * 3, [large] * 3])
    np.testing.assert_allclose(found.enough_growth, large / 4)
    np.testing.assert_allclose(found.size_fit, 70)  # the least of all sets


def test_event_times_are_interpolated_between_looks():
    """Updates 1, 2 by time 2 and 3, 4 by time 8: the third at the geometric mean of the two."""
    found, _ = runs_of(TAKEN, ENDS)
    numbers, times = helpers.event_times(helpers.family(found, "event").isel(schedule=1))
    assert numbers.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(times, np.tile([NAN, 2, 4, 8], (4, 1)))
    fixed = helpers.family(found.isel(schedule=[1, 0]), "fixed")
    assert fixed.taken.values[:, 0].tolist() == [16, 4]
