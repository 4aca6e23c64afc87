"""Gaps between K = 1 and the large period, on made-up curves."""

import numpy as np
import pytest
from curves import along, runs
from iterlin_study.runs import merging

from book.experiments.few_updates_helpers import add_statistics, sharpness

AXES = {"period": [1, 100], "seed": range(4)}


def test_gaps_are_at_the_end_at_equal_loss_and_at_the_best_reading():
    every, few = [0.1, 0.6, 0.9, 0.8], [0.1, 0.2, 0.5, 0.6]
    test = np.stack([np.broadcast_to(each, (4, 4)) for each in (every, few)])
    loss = along(2, [1, 10]) * np.array([8.0, 4.0, 2.0, 0.4])  # the few end with the loss 4
    updates = along(2, [1, 0]) * np.arange(4) + along(2, [0, 1]) * [0, 1, 2, 2]
    lazy = merging.named(runs({"seed": range(4)}, [0.1, 0.4]), "lazy")
    live = runs(AXES, test, train_loss=loss, updates=updates).merge(lazy, compat="override")
    found = add_statistics(live)
    np.testing.assert_allclose(found.gap_end, 20)
    np.testing.assert_allclose(found.gap_matched, 0)  # 0.6 of either where the loss is 4
    np.testing.assert_allclose(found.gap_oracle, 30)
    np.testing.assert_allclose(found.share, 0.5)  # from 0.4 to 0.8 the few come to 0.6
    np.testing.assert_allclose(found.final_updates, 2)


@pytest.mark.parametrize(
    ("halve_after", "halvings"), [([1], [0, 0, 0, 1, 1, 1, 1]), ([1, 2], [0, 0, 0, 1, 1, 2, 2])]
)
def test_sharpness_uses_the_step_size_of_the_moment(halve_after, halvings):
    live = runs(AXES, np.zeros(7), curvature=8.0)
    live["time"] = "evaluation", np.arange(7.0)
    live.attrs |= {"step_size": 0.5, "momentum": 1.0, "halve_after": halve_after}
    found = sharpness(live, live.isel(period=0, seed=0))
    np.testing.assert_allclose(found, 2 * 0.5 ** np.array(halvings))
