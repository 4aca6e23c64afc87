"""Intervals against those of scipy, and what tables say of samples."""

import numpy as np
import pytest
import xarray as xr
from bs4 import BeautifulSoup
from iterlin_study.report import intervals, tables
from iterlin_study.report.intervals import bootstrap_interval, mean_interval
from refusals import refused
from scipy import stats
from test_early_stopping import curves


def test_mean_interval_is_that_of_the_t_test():
    samples = np.random.default_rng(0).normal(2, 3, size=(9, 4))
    expected = stats.ttest_1samp(samples, 0).confidence_interval(0.95)
    for found in (mean_interval(samples), mean_interval(samples.T, axis=1)):
        wanted = samples.mean(0), expected.low, expected.high
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_missing_samples_are_left_out():
    nan = np.nan
    rows = [[1.0, nan, nan], [2.0, 5.0, nan], [3.0, 6.0, nan], [4.0, 7.0, nan], [nan] * 3]
    found = mean_interval(rows)
    np.testing.assert_array_equal(found.estimate, [2.5, 6, nan])
    assert found.lower[0] == pytest.approx(mean_interval([1.0, 2.0, 3.0, 4.0]).lower, rel=1e-12)


@pytest.mark.parametrize("interval", [mean_interval, lambda s: bootstrap_interval(np.nanmean, s)])
def test_three_known_samples_have_no_interval_and_four_have_one(interval):
    assert interval([1.0, 2.0, 3.0, *[np.nan] * 28]) == (2.0, -np.inf, np.inf)
    assert np.isfinite(interval([1.0, 2.0, 3.0, 4.0])).all()


def test_an_interval_as_a_variable_of_a_data_set():
    samples = xr.DataArray([1.0, 2.0, np.nan, 4.0], dims="seed")
    ds = xr.Dataset({"mean": intervals.over_seeds(samples)})
    assert ds["mean"].dims == ("bound",)
    assert tuple(ds["mean"].values) == mean_interval(samples)
    with pytest.raises(TypeError):  # of one statistic, not of several
        intervals.over_seeds(np.ones((3, 2)))


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


@pytest.mark.parametrize("size", [6, 8, 200])
def test_bootstrap_of_a_mean_is_about_as_long_as_students(size):
    samples = np.random.default_rng(5).normal(size=(20, size))
    lengths = [np.diff(bootstrap_interval(np.mean, sample)[1:])[0] for sample in samples]
    expected = mean_interval(samples, axis=1)
    ratio = np.mean(lengths / (expected.upper - expected.lower))
    assert 0.9 < ratio < 1.1  # the plain percentile interval's is about 0.7 and 0.78


def test_resamples_at_once_give_the_interval_that_they_give_one_by_one():
    samples = np.random.default_rng(6).normal(size=30)
    samples[:3] = np.nan
    for share in (0.05, 0.5, 0.95):
        expected = bootstrap_interval(lambda s, q=share: np.nanquantile(s, q), samples)
        found = bootstrap_interval(
            lambda s, q=share: intervals.nan_quantile(s, q), samples, vectorized=True
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isnan(intervals.nan_quantile(np.full(4, np.nan), 0.5))
    assert intervals.nan_quantile(np.array([1, np.inf, -np.inf, np.nan, 3]), 1 / 3) == 1


def test_difference_of_shares_is_that_of_newcombe():
    # Newcombe 1998, method 10: 56 of 70 minus 48 of 80.
    found = intervals.difference_of_shares(56, 70, 48, 80)
    np.testing.assert_allclose(found, (0.2, 0.0524, 0.3339), atol=2e-4)
    assert intervals.difference_of_shares(0, 8, 5, 8).upper < 0


@pytest.mark.parametrize(
    ("bounds", "digits", "words"),
    [
        ((0.0933, -1.728, 1.914), None, "0.1 [-1.7, 1.9]"),
        ((-33.02, -86.1, 20.08), None, "-33 [-86, 20]"),
        ((98.13, 96.3, 99.97), 0, "98 [96, 100]"),
        ((-0.5, -1.0, -0.02), 1, "-0.5 [-1.0, 0.0]"),
        ((9.08e-15, 6.99e-15, 1.12e-14), None, "9.1e-15 [7e-15, 1.1e-14]"),
        ((4.6, 4.4, np.inf), None, "4.60 [4.40, –]"),
        ((np.inf, 4.4, np.inf), None, "inf"),
    ],
)
def test_an_estimate_with_its_interval_in_words(bounds, digits, words):
    assert intervals.text(bounds, digits) == words


test_bad_samples_are_refused = refused(
    lambda call: call(),
    (lambda: bootstrap_interval(np.mean, [1, 2], [1]), r"samples must .* got \[1, 2\]"),
    (lambda: mean_interval([]), "samples are empty"),
)


def test_slope_per_decade_is_that_of_a_line_and_missing_samples_leave_none():
    size, rng = np.array([10.0, 50.0, 1000.0]), np.random.default_rng(0)
    values = rng.normal(size=(2, 3))
    samples = xr.DataArray(values, {"size": size}, ("seed", "size"))
    lines = [stats.linregress(np.log10(size), row).slope for row in values]
    np.testing.assert_allclose(intervals.slope_per_decade(samples, "size"), lines)
    missing = samples.where((samples["size"] > 10) | (samples.seed > 0))
    slopes = intervals.slope_per_decade(missing, "size")
    np.testing.assert_allclose(slopes, [np.nan, lines[1]])


def pair(mean, half):
    """Held together, so that a table does not break it."""
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half}"


def read(shown):
    return BeautifulSoup(shown.data, "html.parser")


def cells(shown):
    return [[cell.get_text() for cell in row.select("td")] for row in read(shown).select("tr")]


def test_intervals_of_samples_in_words():
    assert tables.interval_text([1.0, 2.0, 3.0, 4.0]) == pair("2.5", "2.1")
    assert tables.interval_text([1.0, 2.0, 3.0, np.nan]) == "2.0"
    assert tables.interval_text([np.nan, np.nan]) == "–"
    assert tables.interval_text(4 * [0.123], digits=2) == pair("0.12", "0.00")


def test_a_table_has_titled_columns_and_a_caption():
    shown = tables.table(["", "b"], [[1, 500 * "x"], [2, ""]], "Two rows")
    assert [th["scope"] for th in read(shown).select("thead th")] == ["col"]
    assert cells(shown) == [[""], ["1", 500 * "x"], ["2", ""]]
    assert read(shown).caption.get_text() == "Two rows"
    assert tables.FOOT not in shown.data
    assert tables.FOOT in tables.table(["a"], [[pair(1, 2)]]).data


def test_readings_of_runs():
    ds = curves().isel(seed=[0, 1, 0, 1])
    ds["updates"] = ds.step // 10
    ds["diverged_at"] = (("period", "seed"), [4 * [-1], [50, -1, -1, -1]])
    ds["accuracy_oracle"] = 100 * ds.test_accuracy.max("evaluation")
    ds["accuracy_validated"] = ds.accuracy_oracle - 1
    _, first, second = cells(tables.readings(ds, title="All runs"))
    assert first[:2] == ["K = 1", "100"]
    assert first[-2:] == [pair("1.0", "0.0"), "0"]
    assert (second[0], second[-1]) == ("K = ∞", "1")
