"""Shares and half points against scipy's own fits and tests, and their promised coverage."""

import numpy as np
import pytest
import xarray as xr
from curves import along, runs
from scipy import optimize, stats

from book.experiments import workshop_helpers as helpers


def test_half_point_is_that_of_the_two_parameter_fit():
    rng = np.random.default_rng(5)
    x = rng.uniform(0, 4, 120)
    failed = (rng.uniform(size=120) < 1 / (1 + np.exp(-3 * (x - 1.7)))).astype(float)

    def loss(parameters):
        m, b = parameters
        return np.sum(np.logaddexp(0, np.where(failed, -1, 1) * b * (x - m)))

    fit = optimize.minimize(loss, [2.0, 1.0], method="BFGS")
    found = helpers.half_point(x, failed)
    assert found.estimate == pytest.approx(fit.x[0], abs=0.02)
    # On its own the limit is where the best steepness there loses half a quantile of chi squared.
    for limit in (found.lower, found.upper):
        best = optimize.minimize_scalar(lambda b, m=limit: loss([m, b]), bounds=(0, 50)).fun
        assert best - fit.fun == pytest.approx(stats.chi2.ppf(0.95, 1) / 2, rel=1e-2)


@pytest.mark.parametrize(("unit", "shift"), [(1, 0), (10, 7)])
def test_half_point_of_separated_outcomes_is_the_middle_of_the_gap(unit, shift):
    x, failed = np.array([0.0, 0.5, 1.0, 2.0, 2.5, 3.0]), np.array([0, 0, 0, 1, 1, 1])
    estimate, lower, upper = (np.array(helpers.half_point(unit * x + shift, failed)) - shift) / unit
    assert estimate == pytest.approx(1.5, abs=0.02)
    assert -np.inf < lower < 1 < 2 < upper < np.inf
    # A gap of 1 between six: the flanks of the profile likelihood lie alike on both sides.
    assert upper - estimate == pytest.approx(estimate - lower, rel=1e-2)


def test_half_point_knows_what_outcomes_cannot_tell():
    for outcomes in (np.ones(8), [1, 1, 1, 1, 0, 0, 0, 0]):
        found = helpers.half_point(np.arange(8.0), outcomes)
        np.testing.assert_array_equal(found, (np.nan, -np.inf, np.inf))
    # Of one x, mostly failures are beyond the half point.
    beyond = helpers.half_point([2.0] * 10, [0] + [1] * 9)
    np.testing.assert_allclose(beyond, (np.nan, -np.inf, 2), rtol=5e-4)
    of_known = helpers.half_point([1, 2, np.nan, 9], [0, 1, 1, np.nan])
    assert of_known == helpers.half_point([1, 2], [0, 1])


def test_a_run_fails_that_diverges_or_ends_with_a_higher_loss_of_what_is_trained():
    axes = {"period": [1.0, np.inf], "seed": [0, 1, 2]}
    loss = np.array([[1.0, 0.5], [1.0, 2.0], [1.0, 0.5]])
    live = runs(axes, np.zeros(2), train_loss=loss, train_loss_proxy=loss[::-1])
    live["diverged_at"] = ("period", "seed"), [[-1, -1, 9], [-1, -1, np.nan]]
    np.testing.assert_array_equal(helpers.failed(live), [[0, 1, 1], [0, 1, np.nan]])


def test_periods_count_that_have_three_updates():
    live = runs({"period": [1.0, 5.0, 10.0, 30.0, 40.0, np.inf]}, np.zeros(3), step=[0, 50, 100])
    np.testing.assert_array_equal(helpers.counted(live), [10, 30])
    with pytest.raises(ValueError, match="no period above 5 has three updates in 100 steps"):
        helpers.counted(live.sel(period=[1.0, 40.0]))


def test_a_linearisation_fails_that_the_proxy_leaves_with_a_higher_loss_than_it_met():
    axes = {"period": [10, 50], "multiple": [0.5, 1.5], "seed": [0, 1]}
    ends = np.ones((2, 2, 2, 4)) * [3.0, 2.0, 1.0, 0.5]
    ends[:, 1, :, 2] = 9.0  # at the larger step the second linearisation fails
    network = np.array([3.0, 2.0, 1.0, 0.5])
    losses = {"train_loss": network, "train_loss_proxy": ends}
    eigenvalue = np.array([2.0, 3.0, 8.0, 100.0])  # the last is of no linearisation
    live = runs(axes, np.zeros(4), next_eigenvalue=eigenvalue, **losses)
    live["step_size"] = live.multiple / 2 + 0 * live.seed
    sharpness, fails = helpers.in_linearization(live)
    np.testing.assert_array_equal(fails, along(1, [0, 1]) * np.ones((2, 2, 2)))
    np.testing.assert_allclose(sharpness.sel(multiple=0.5), 0.25 * 8)
    np.testing.assert_allclose(sharpness.sel(multiple=1.5), 0.75 * 3)
    about = xr.Dataset({"sharpness": sharpness, "fails": fails})
    half = helpers.half_failing(about, [10, 50])
    assert half.estimate == pytest.approx(np.sqrt(2 * 2.25), rel=0.02)
