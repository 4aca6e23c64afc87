"""Differences to K = 1, on made-up curves."""

import numpy as np
from curves import along, runs

from book.experiments.period_sweep_helpers import add_statistics


def test_the_coincidence_is_judged_at_short_periods_and_the_drop_at_the_largest_finite_one():
    # With a step of 0.01 the periods 5 and 10 are within eta K = 0.1.
    axes = {"period": [1.0, 5.0, 10.0, 1000.0, np.inf], "seed": range(4)}
    test = along(2, [0.9, 0.89, 0.94, 0.6, 0.2]) * np.ones((1, 4, 3))
    steps = np.array([0, 1000, 2000])
    live = runs(axes, test, step=steps)
    fit = [0.5, 1.0, 1.0]
    newton = runs({"seed": range(4)}, [0.1, 0.7, 0.8], train_accuracy=fit, step=steps)
    found = add_statistics(live, newton, 0.01)
    np.testing.assert_allclose(found.largest_gap_oracle, -4)
    np.testing.assert_allclose(found.trajectory_distance, 4)
    np.testing.assert_allclose(found.drop_oracle, 30)
    # Read until the network fits; the whole run would come to 0.8.
    np.testing.assert_allclose(found.newton_accuracy_oracle, 70)
    np.testing.assert_allclose(found.newton_whole_oracle, 80)
    np.testing.assert_allclose(found.newton_drop_oracle, 20)
    assert found.newton_updates.dims == ("seed", "newton_evaluation")


def test_the_readings_begin_after_the_first_period():
    axes = {"period": [1.0, 5.0, 1000.0], "seed": range(4)}
    live = runs(axes, [0.9, 0.8, 0.7, 0.6], step=[0, 100, 500, 1000])
    found = add_statistics(live, runs({"seed": range(4)}, [0.5]), 0.01)
    np.testing.assert_allclose(found.accuracy_oracle[:, 0], [80, 80, 60])
