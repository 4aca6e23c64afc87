"""What is judged of runs to convergence in a wide network, on made-up curves."""

import numpy as np
from curves import runs
from numpy.testing import assert_allclose

from book.experiments.width_helpers import add_statistics, merged

TIMES, SEEDS = [50, 1000], [0, 1, 2, 3]


def live():
    """SGD ends at 80 %, the periods at 79 and 60 %, one linearisation at 65 %."""
    ends, axes = np.array([0.5, 1.0]), {"size": [1000], "seed": SEEDS}
    flow = np.array([0.79, 0.60])[:, None, None, None] * ends
    flows = runs({"time": TIMES} | axes, flow, train_accuracy=[0.3, 1.0], train_loss=[2, 0.5])
    descent = runs(axes, 0.8 * ends, train_accuracy=[0.4, 0.96], train_loss=[2, 0.02])
    return merged(flows, runs(axes, 0.65 * ends), descent)


def test_gaps_are_points_below_sgd_at_the_end():
    ds = add_statistics(live(), few=50, long=1000)
    for name, gap in (("few_gap", 1), ("long_gap", 20), ("lazy_gap", 15)):
        assert_allclose(ds[name][0], gap, atol=1e-9)
    for name, fit in (("few_fit", 100), ("long_fit", 100), ("first_fit", 96)):
        assert_allclose(ds[name][0], fit, atol=1e-9)


def test_the_matched_gap_reads_sgd_at_the_loss_of_the_other():
    ds = add_statistics(live(), few=50, long=1000)
    # SGD goes from 40 to 80 % as log(loss) goes from log 2 to log 0.02; it is read at 0.5.
    way = np.log(2 / 0.5) / np.log(2 / 0.02)
    assert_allclose(ds.few_gap_matched[0], 40 + 40 * way - 79, atol=1e-6)
