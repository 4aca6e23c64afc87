"""Intervals against those of scipy."""

import numpy as np
import pytest
import xarray as xr
from iterlin.study.intervals import (
    bootstrap_interval,
    exact_share,
    half_point,
    mean_interval,
    over_seeds,
)
from scipy import optimize, stats


def test_mean_interval_is_that_of_the_t_test():
    confidence = 0.9
    samples = np.random.default_rng(0).normal(2, 3, size=(9, 4))
    expected = stats.ttest_1samp(samples, 0).confidence_interval(confidence)
    for found in (
        mean_interval(samples, confidence=confidence),
        mean_interval(samples.T, axis=1, confidence=confidence),
    ):
        wanted = samples.mean(0), expected.low, expected.high
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_missing_samples_are_left_out_and_fewer_than_two_tell_nothing_of_the_spread():
    nan = np.nan
    found = mean_interval([[1.0, nan, nan], [2.0, 5.0, nan], [3.0, nan, nan], [nan, nan, nan]])
    np.testing.assert_array_equal(found.estimate, [2, 5, nan])
    assert found.lower[0] == pytest.approx(mean_interval([1.0, 2.0, 3.0]).lower, rel=1e-12)
    assert (found.lower[1], found.upper[1]) == (-np.inf, np.inf)


def test_an_interval_as_a_variable_of_a_data_set():
    samples = xr.DataArray([1.0, 2.0, np.nan, 4.0], dims="seed")
    ds = xr.Dataset({"mean": over_seeds(samples)})
    assert ds["mean"].dims == ("bound",)
    assert tuple(ds["mean"].values) == mean_interval(samples)
    with pytest.raises(TypeError):  # of one statistic, not of several
        over_seeds(np.ones((3, 2)))


def logistic(m, b, x):
    return 1 / (1 + np.exp(-b * (x - m)))


def test_bootstrap_is_a_function_of_its_samples_and_pairs_them():
    rng = np.random.default_rng(3)
    a = rng.normal(size=30)
    b = a + 1 + 0.01 * rng.normal(size=30)

    def difference(first, second):
        return np.mean(second - first)

    interval = bootstrap_interval(difference, a, b)
    assert interval == bootstrap_interval(difference, a, b)
    assert interval.estimate == difference(a, b)
    # Resampled together the common part cancels: apart, the interval would be 50 times as wide.
    assert interval.upper - interval.lower < 0.02
    assert abs(interval.estimate - 1) < 0.01


@pytest.mark.parametrize(("confidence", "deviations"), [(0.95, 1.96), (0.5, 0.674)])
def test_bootstrap_of_a_mean_ends_where_normal_tails_do(confidence, deviations):
    sample = np.random.default_rng(4).normal(size=200)
    interval = bootstrap_interval(np.mean, sample, confidence=confidence)
    half = deviations * np.std(sample) / np.sqrt(200)
    found = interval.lower - interval.estimate, interval.upper - interval.estimate
    np.testing.assert_allclose(found, (-half, half), rtol=0.1)


@pytest.mark.parametrize(("true", "count"), [(0, 3), (6, 6), (17, 40)])
def test_exact_share_is_that_of_the_binomial_test(true, count):
    outcomes = np.zeros((count, 1))
    outcomes[:true] = 1
    found = exact_share(outcomes, confidence=0.9)
    expected = stats.binomtest(true, count).proportion_ci(0.9, method="exact")
    np.testing.assert_allclose(found, (true / count, *expected), rtol=1e-9, atol=1e-12)


def test_a_share_leaves_missing_runs_out():
    assert exact_share([0, 1, np.nan]) == exact_share([0, 1])
    np.testing.assert_array_equal(exact_share([np.nan]), (np.nan, 0, 1))


def test_half_point_is_that_of_the_two_parameter_fit():
    rng, size, m, b = np.random.default_rng(5), 120, 1.7, 3
    x = rng.uniform(0, 4, size)
    failed = (rng.uniform(size=size) < logistic(m, b, x)).astype(float)

    def loss(parameters):
        m, b = parameters
        return np.sum(np.logaddexp(0, np.where(failed, -1, 1) * b * (x - m)))

    fit = optimize.minimize(loss, [2.0, 1.0], method="BFGS")
    found = half_point(x, failed)
    assert found.estimate == pytest.approx(fit.x[0], abs=0.02)
    # On its own the limit is where the best steepness there loses half a quantile of chi squared.
    for limit in (found.lower, found.upper):
        best = optimize.minimize_scalar(lambda b, m=limit: loss([m, b]), bounds=(0, 50)).fun
        assert best - fit.fun == pytest.approx(stats.chi2.ppf(0.95, 1) / 2, rel=1e-2)


@pytest.mark.parametrize(("unit", "shift"), [(10, 7), (1e-2, 0)])
def test_half_point_of_separated_outcomes_is_the_middle_of_the_gap(unit, shift):
    x, failed = np.array([0.0, 0.5, 1.0, 2.0, 2.5, 3.0]), np.array([0, 0, 0, 1, 1, 1])
    estimate, lower, upper = (np.array(half_point(unit * x + shift, failed)) - shift) / unit
    assert estimate == pytest.approx(1.5, abs=0.02)
    assert -np.inf < lower < 1 < 2 < upper < np.inf
    # A gap of 1 between six: the flanks of the profile likelihood lie alike on both sides.
    assert upper - estimate == pytest.approx(estimate - lower, rel=1e-2)


def test_half_point_knows_what_outcomes_cannot_tell():
    for outcomes in (np.ones(8), np.zeros(8), np.repeat([1, 0], 4)):  # without a rise
        found = half_point(np.arange(8.0), outcomes)
        np.testing.assert_array_equal(found, (np.nan, -np.inf, np.inf))
    # Of one x, mostly failures are beyond the half point.
    beyond = half_point([2.0] * 10, [0] + [1] * 9)
    assert np.isnan(beyond.estimate)
    assert beyond.lower == -np.inf
    assert beyond.upper == pytest.approx(2, abs=1e-3)
    # Failures that come and go with no order set no limit.
    none = half_point(np.arange(8.0), [0, 1, 1, 0, 0, 1, 1, 0])
    assert np.isinf([none.lower, none.upper]).any()
    assert half_point([1, 2, np.nan, 9], [0, 1, 1, np.nan]) == half_point([1, 2], [0, 1])


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda: mean_interval([]), "samples are empty along axis 0"),
        (lambda: bootstrap_interval(np.mean), "samples must"),
        (lambda: bootstrap_interval(np.mean, [1, 2], [1]), r"samples must .* got \[1, 2\]"),
        (lambda: bootstrap_interval(np.mean, [1.0], resamples=0), "resamples must"),
        (lambda: exact_share([0, 0.5]), r"0 or 1, got 0\.5"),
        (lambda: half_point([1.0], [0, 1]), "one shape"),
        (lambda: half_point([1.0, -np.inf], [0, 1]), "finite"),
        (lambda: mean_interval([1.0, 2.0], confidence=0), "^confidence must"),
        (lambda: bootstrap_interval(np.mean, [1.0, 2.0], confidence=1.5), "^confidence must"),
        (lambda: exact_share([0, 1], np.nan), "^confidence must"),
        (lambda: half_point([1.0, 2.0], [0, 1], 1.0), "^confidence must"),
    ],
)
def test_bad_samples_are_refused(find, message):
    with pytest.raises(ValueError, match=message):
        find()
