"""Costs, gains and slopes of exact solves, on made-up accuracies."""

import numpy as np
from curves import along, runs

from book.experiments.exact_solves_helpers import add_statistics


def test_cost_gain_and_slopes_are_those_of_the_accuracies():
    axes = {"time": [1, 10, 100], "seed": [0, 1]}
    ends = np.array([0.1, 1.0])
    damped = runs(axes, along(2, [0.8, 0.7, 0.6]) * ends)
    flow = runs(axes, along(2, [0.75, 0.7, 0.65]) * ends)
    sgd = runs({"seed": [0, 1]}, 0.85 * np.array([0.1, 0.5, 1.0]))
    found = add_statistics({"damped": damped, "flow": flow, "sgd": sgd})
    for name, expected in {
        "cost_accuracy": 25,
        "gain_accuracy": 20,
        "cost_oracle": 25,
        "damped_slope": -10,
        "flow_slope": -5,
        "slope_difference": -5,
        "distance": 0,
    }.items():
        np.testing.assert_allclose(found[name][0], expected, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(found.look, [0, 1])
    assert found.sgd_test_accuracy.dims == ("seed", "sgd_look")
