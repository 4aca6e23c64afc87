"""What damping gains and costs, on made-up curves."""

import numpy as np
from curves import along, runs

from book.experiments.damping_cnn_helpers import add_statistics

AXES = {"penalty": [0.001, 0.1, 1.0], "seed": range(4)}


def test_gain_is_that_of_the_large_penalty_and_linearisations_count_until_all_is_fitted():
    test = 0.5 + along(2, [0.0, 0.2, 0.3]) * np.array([0.0, 1.0, 0.5, 0.0])
    fit = np.broadcast_to(along(2, [1.0, 1.0, 0.9]) * [0.1, 0.98, 0.995, 1.0], (3, 4, 4))
    updates = along(2, [1, 40, 400]) * np.array([0, 2, 4.75, 6])
    found = add_statistics(runs(AXES, test, train_accuracy=fit, updates=updates), [0.001, 0.1])
    np.testing.assert_allclose(found.gain_oracle, 20)
    taken = found.linearizations_to_fit.transpose("penalty", "seed")
    np.testing.assert_allclose(taken[:2].T, [[5.75, 191]] * 4)
    assert np.isnan(taken[2]).all()  # it never fits
    np.testing.assert_allclose(found.linearizations_ratio, np.log10(191 / 5.75))
