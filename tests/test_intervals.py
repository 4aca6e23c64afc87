"""Intervals against scipy's own, known order statistics and their promised coverage."""

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


def test_bootstrap_of_a_mean_ends_where_normal_tails_do():
    sample = np.random.default_rng(4).normal(size=200)
    for confidence, deviations in ((0.95, 1.96), (0.5, 0.674)):
        interval = bootstrap_interval(np.mean, sample, confidence=confidence)
        error = np.std(sample) / np.sqrt(200)
        limits = (interval.lower - interval.estimate, interval.upper - interval.estimate)
        np.testing.assert_allclose(limits, np.outer([-1, 1], deviations * error)[:, 0], rtol=0.1)


@pytest.mark.parametrize(("true", "count"), [(0, 3), (3, 3), (1, 9), (6, 6), (17, 40)])
def test_exact_share_is_that_of_the_binomial_test(true, count):
    outcomes = np.zeros((count, 1))
    outcomes[:true] = 1
    found = exact_share(outcomes, confidence=0.9)
    expected = stats.binomtest(true, count).proportion_ci(0.9, method="exact")
    assert found.estimate == true / count
    np.testing.assert_allclose((found.lower, found.upper), expected, rtol=1e-9, atol=1e-12)


def test_the_limits_of_a_share_are_where_the_tails_are():
    found = exact_share([1] * 4 + [0] * 6)
    assert stats.binom.sf(3, 10, found.lower) == pytest.approx(0.025, rel=1e-9)
    assert stats.binom.cdf(4, 10, found.upper) == pytest.approx(0.025, rel=1e-9)


def test_a_share_leaves_missing_runs_out_and_refuses_what_is_no_outcome():
    assert exact_share([0, 1, np.nan]) == exact_share([0, 1])
    none = exact_share([np.nan])
    assert np.isnan(none.estimate)
    assert (none.lower, none.upper) == (0, 1)
    with pytest.raises(ValueError, match=r"0 or 1, got 0\.5"):
        exact_share([0, 0.5])


def test_exact_shares_cover_at_least_as_often_as_they_promise():
    for share in (0.05, 0.3, 0.5):
        chances = stats.binom.pmf(np.arange(8), 7, share)
        found = [exact_share(np.arange(7) < true) for true in range(8)]
        covered = sum(p for p, f in zip(chances, found, strict=True) if f.lower <= share <= f.upper)
        assert covered >= 0.95


def logistic(m, b, x):
    return 1 / (1 + np.exp(-b * (x - m)))


@pytest.mark.parametrize(("size", "m", "b"), [(120, 1.7, 3), (4000, 2.0, 15), (4000, 2.035, 15)])
def test_half_point_is_that_of_the_two_parameter_fit(size, m, b):
    rng = np.random.default_rng(5)
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
    for unit in (1e-2, 1e4):  # in which x is measured
        np.testing.assert_allclose(half_point(unit * x, failed), unit * np.array(found), rtol=1e-3)


def test_half_point_of_separated_outcomes_is_the_middle_of_the_gap():
    x, failed = np.array([0.0, 0.5, 1.0, 2.0, 2.5, 3.0]), np.array([0, 0, 0, 1, 1, 1])
    found = half_point(x, failed)
    assert found.estimate == pytest.approx(1.5, abs=0.02)
    assert found.lower < 1 < 2 < found.upper
    assert np.isfinite([found.lower, found.upper]).all()
    moved = half_point(10 * x + 7, failed)
    np.testing.assert_allclose(moved, 10 * np.array(found) + 7, rtol=1e-3)


def test_half_point_covers_the_truth_as_often_as_it_promises():
    rng = np.random.default_rng(6)
    x = np.linspace(-2, 2, 40)
    covered = []
    for _ in range(40):
        found = half_point(x, rng.uniform(size=40) < logistic(0.3, 3.0, x))
        covered.append(found.lower <= 0.3 <= found.upper)
    assert np.mean(covered) >= 0.85


def test_half_point_knows_what_outcomes_cannot_tell():
    same = half_point(np.arange(8.0), np.ones(8))
    assert np.isnan(same.estimate)
    assert (same.lower, same.upper) == (-np.inf, np.inf)
    assert str(half_point(np.arange(8.0), np.zeros(8))) == str(same)
    # Of one x, mostly failures are beyond the half point.
    beyond = half_point([2.0] * 10, [0] + [1] * 9)
    assert np.isnan(beyond.estimate)
    assert beyond.lower == -np.inf
    assert beyond.upper == pytest.approx(2, abs=1e-3)
    falling = half_point(np.arange(8.0), [1, 1, 1, 1, 0, 0, 0, 0])
    assert str(falling) == str(same)
    # Failures that come and go with no order set no limit.
    none = half_point(np.arange(8.0), [0, 1, 1, 0, 0, 1, 1, 0])
    assert np.isinf([none.lower, none.upper]).any()
    assert half_point([1, 2, np.nan, 9], [0, 1, 1, np.nan]) == half_point([1, 2], [0, 1])
    with pytest.raises(ValueError, match="one shape"):
        half_point([1.0], [0, 1])
    with pytest.raises(ValueError, match="finite"):
        half_point([1.0, -np.inf], [0, 1])


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda: mean_interval([]), r"samples are empty along axis 0: their shape is \(0,\)"),
        (lambda: mean_interval(np.ones((2, 0)), axis=1), "samples are empty along axis 1"),
        (lambda: mean_interval(3.0), "samples are empty along axis 0"),
        (lambda: bootstrap_interval(np.mean), r"samples must be of one length, .* got \[\]"),
        (lambda: bootstrap_interval(np.mean, []), r"samples must be of one length, .* got \[0\]"),
        (
            lambda: bootstrap_interval(np.mean, [1.0, 2.0], [1.0]),
            r"samples must be of one length, .* got \[1, 2\]",
        ),
        (
            lambda: bootstrap_interval(np.mean, [1.0], resamples=0),
            "resamples must be a positive integer, got 0",
        ),
    ],
)
def test_too_few_samples_are_refused(find, message):
    with pytest.raises(ValueError, match=message):
        find()


@pytest.mark.parametrize("confidence", [-0.5, 0, 1, 2, np.nan])
def test_a_confidence_outside_the_unit_interval_is_refused(confidence):
    for find in (
        lambda: mean_interval([1.0, 2.0], confidence=confidence),
        lambda: bootstrap_interval(np.mean, [1.0, 2.0], confidence=confidence),
        lambda: exact_share([0, 1], confidence),
        lambda: half_point([1.0, 2.0], [0, 1], confidence),
    ):
        with pytest.raises(ValueError, match=r"^confidence must"):
            find()
