"""Intervals against scipy's own, known order statistics and their promised coverage."""

import numpy as np
import pytest
import xarray as xr
from iterlin.study.intervals import bootstrap_interval, mean_interval, over_seeds
from scipy import stats


def test_mean_interval_is_that_of_the_t_test():
    samples = np.random.default_rng(0).normal(2, 3, size=(9, 4))
    interval = mean_interval(samples)
    for column in range(4):
        expected = stats.ttest_1samp(samples[:, column], 0).confidence_interval(0.95)
        assert interval.estimate[column] == pytest.approx(samples[:, column].mean(), rel=1e-12)
        assert interval.lower[column] == pytest.approx(expected.low, rel=1e-9)
        assert interval.upper[column] == pytest.approx(expected.high, rel=1e-9)
    narrow = mean_interval(samples.T, axis=1, confidence=0.5)
    assert np.all(narrow.upper - narrow.lower < interval.upper - interval.lower)


def test_missing_samples_are_left_out():
    samples = np.array([[1.0, 4.0], [2.0, np.nan], [3.0, 6.0], [np.nan, np.nan]])
    interval, kept = mean_interval(samples), mean_interval([[1.0], [2.0], [3.0]])
    assert interval.estimate.tolist() == [2, 5]
    assert interval.lower[0] == pytest.approx(kept.lower[0], rel=1e-12)


def test_fewer_than_two_samples_tell_nothing_of_the_spread():
    one = mean_interval([5.0])
    assert (one.estimate, one.lower, one.upper) == (5, -np.inf, np.inf)
    none = mean_interval([[np.nan], [np.nan]])
    assert np.isnan(none.estimate[0])


def test_an_interval_as_a_variable_of_a_data_set():
    samples = xr.DataArray([1.0, 2.0, np.nan, 4.0], dims="seed")
    ds = xr.Dataset({"mean": over_seeds(samples)})
    assert ds["mean"].dims == ("bound",)
    assert tuple(ds["mean"].values) == mean_interval(samples)
    with pytest.raises(TypeError):  # of one statistic, not of several
        over_seeds(np.ones((3, 2)))


@pytest.mark.parametrize(
    ("find", "truth"),
    [
        (lambda s: mean_interval(s), 0.0),
        (lambda s: bootstrap_interval(np.mean, s, resamples=300), 0.0),
    ],
    ids=["mean", "bootstrap"],
)
def test_intervals_cover_the_truth_as_often_as_they_promise(find, truth):
    rng = np.random.default_rng(2)
    runs = [find(rng.normal(size=25)) for _ in range(300)]
    covered = np.mean([run.lower <= truth <= run.upper for run in runs])
    assert 0.90 < covered <= 0.995


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
    assert interval.lower < 1 < interval.upper or abs(interval.estimate - 1) < 0.01
