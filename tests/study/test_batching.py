"""Full batch minus minibatch, on made-up curves."""

import numpy as np
from curves import along, runs

from book.experiments.batching_helpers import FULL, MINI, add_statistics


def test_differences_are_full_batch_minus_minibatch_at_the_best_the_end_and_the_farthest():
    axes = {"batch": [FULL, MINI], "period": [1, 5, 20], "seed": range(4)}
    full, mini = [0.1, 0.9, 0.5], [0.1, 0.6, 0.7]
    test = np.stack([np.broadcast_to(each, (3, 4, 3)) for each in (full, mini)])
    test[1, 2, :, 1:] = np.nan  # diverged: counts with the accuracy that it started from
    diverged = np.where(np.isnan(test[..., -1]), 1, -1)
    found = add_statistics(runs(axes, test, diverged_at=diverged))
    for name, expected in {
        "best_moderate": 20,
        "end_moderate": -20,
        "largest_moderate": 30,
        "best_large": 80,
        "end_large": 40,
        "largest_large": 80,
    }.items():
        np.testing.assert_allclose(found[f"difference_{name}"], expected, err_msg=name)


def test_the_interval_is_over_seeds():
    axes = {"batch": [FULL, MINI], "period": [1, 5, 20], "seed": range(4)}
    test = 0.5 + 0.1 * along(3, [1, 0]) * along(1, [1, 3, 1, 3]) * np.ones((2, 3, 4, 1))
    estimate, lower, upper = add_statistics(runs(axes, test)).difference_end_standard.values
    np.testing.assert_allclose(estimate, 20)
    assert lower < 10 < 30 < upper
