"""What full solves cost, on made-up curves."""

import numpy as np
from curves import along, runs

from book.experiments.full_solve_helpers import ADAM, FIXED, SGD, STOPPED, add_statistics

AXES = {"solver": [SGD, ADAM, FIXED, STOPPED], "seed": range(4)}


def test_gaps_are_between_solvers_and_only_ends_of_periods_count_as_solved():
    test = along(2, [0.9, 0.8, 0.5, 0.6]) * np.array([0.1, 1.0, 0.2, 0.3, 0.4, 0.5, 0.6])
    # Three readings a period: 1 in the middle of the first period does not solve it.
    proxy = np.broadcast_to([0.1, 1.0, 0.5, 0.5, 1.0, 0.5, 1.0], (4, 4, 7))
    found = add_statistics(runs(AXES, test, train_accuracy_proxy=proxy), 3)
    for name, expected in {
        "sgd_fixed": 40,
        "sgd_stopped": 30,
        "adam_fixed": 30,
        "adam_stopped": 20,
    }.items():
        np.testing.assert_allclose(found[f"gap_{name}_oracle"], expected, err_msg=name)
    np.testing.assert_allclose(found.solved_share, 0.5)
