"""Intervals against those of scipy."""

import numpy as np
import pytest
import xarray as xr
from iterlin_study.report.intervals import (
    bootstrap_interval,
    mean_interval,
    over_seeds,
    slope_per_decade,
)
from scipy import stats


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


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda: mean_interval([]), "samples are empty along axis 0"),
        (lambda: bootstrap_interval(np.mean), "samples must"),
        (lambda: bootstrap_interval(np.mean, [1, 2], [1]), r"samples must .* got \[1, 2\]"),
        (lambda: bootstrap_interval(np.mean, [1.0], resamples=0), "resamples must"),
        (lambda: mean_interval([1.0, 2.0], confidence=0), "^confidence must"),
        (lambda: bootstrap_interval(np.mean, [1.0, 2.0], confidence=1.5), "^confidence must"),
    ],
)
def test_bad_samples_are_refused(find, message):
    with pytest.raises(ValueError, match=message):
        find()


def test_slope_per_decade_is_that_of_a_line_and_missing_samples_leave_none():
    size, rng = np.array([10.0, 50.0, 1000.0]), np.random.default_rng(0)
    values = rng.normal(size=(2, 3))
    samples = xr.DataArray(values, {"size": size}, ("seed", "size"))
    lines = [stats.linregress(np.log10(size), row).slope for row in values]
    np.testing.assert_allclose(slope_per_decade(samples, "size"), lines)
    missing = samples.where((samples["size"] > 10) | (samples.seed > 0))
    np.testing.assert_array_equal(np.isnan(slope_per_decade(missing, "size")), [True, False])
