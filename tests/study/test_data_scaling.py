"""Slopes over the logarithm of the size, on made-up accuracies."""

import numpy as np
from curves import runs

from book.experiments.data_scaling_helpers import add_statistics

SIZES, SEEDS = [10, 100, 1000], range(4)


def grid(slopes):
    """Runs over (period, size, seed) whose best accuracy gains these points a decade."""
    decades = np.log10(SIZES)[:, None, None]
    test = np.stack([(30 + slope * decades) / 100 * [0.5, 1.0] for slope in slopes.values()])
    axes = {"period": list(slopes), "size": SIZES, "seed": SEEDS}
    return runs(axes, test * np.ones((1, 1, 4, 1)))


def test_slopes_are_against_k_1_and_of_the_finite_period_that_differs_most():
    small, large = grid({1: 8, 10: 7, 100: 12}), grid({1: 9, np.inf: 4})
    found = add_statistics(small, large)
    np.testing.assert_allclose(found.slope_oracle, [[8] * 4, [7] * 4, [12] * 4])
    np.testing.assert_allclose(found.finite_slope_oracle, 4)
    np.testing.assert_allclose(found.lazy_slope_oracle, -5)
    assert found.large_updates.dims == ("large_period", "size", "seed", "evaluation")
