"""Means and other statistics over seeds, with their 95 % confidence intervals."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from iterlin.linearise.validation import check_open_unit_interval, check_positive_integer
from scipy import stats


class Interval(NamedTuple):
    """An estimate and the limits of its interval, all of one shape."""

    estimate: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    def variable(self) -> tuple[str, np.ndarray]:
        """The interval of a scalar as a variable of a data set: these three, over "bound"."""
        return "bound", np.asarray([float(value) for value in self])


def over_seeds(samples) -> tuple[str, np.ndarray]:
    """`mean_interval` of one sample a seed, as a variable of a data set."""
    return mean_interval(samples).variable()


def mean_interval(samples, axis: int = 0, confidence: float = 0.95) -> Interval:
    """Mean over `axis` with Student's t interval; NaN samples (dropped runs) are left out.

    With fewer than two samples the interval is the whole line: nothing is known of the spread.

    Raises ValueError without a sample, or for a confidence outside (0, 1).
    """
    check_open_unit_interval("confidence", confidence)
    samples = np.asarray(samples, dtype=float)
    if samples.ndim == 0 or samples.shape[axis] == 0:
        raise ValueError(f"samples are empty along axis {axis}: their shape is {samples.shape}")
    count = np.sum(~np.isnan(samples), axis=axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(samples, axis=axis) / count
        variance = np.nansum((samples - np.expand_dims(mean, axis)) ** 2, axis=axis) / (count - 1)
        half = stats.t.ppf(0.5 + confidence / 2, count - 1) * np.sqrt(variance / count)
    half = np.where(count > 1, half, np.inf)
    return Interval(mean, mean - half, mean + half)


def slope_per_decade(samples: xr.DataArray, axis: str) -> xr.DataArray:
    """Return the least-squares slope of the samples over log10 of an axis, for each run.

    A run that lacks a sample has the slope NaN: one of the other samples would be another number.
    """
    decades = np.log10(samples[axis])
    centred = decades - decades.mean()
    return (samples * centred).sum(axis, skipna=False) / (centred**2).sum()


def bootstrap_interval(
    statistic, *samples, confidence: float = 0.95, resamples: int = 2000
) -> Interval:
    """Any statistic of one or more samples, with its percentile bootstrap interval.

    The samples are indexed by the same seeds and resampled together. The generator is fixed, so
    the interval is a function of the samples.

    Raises ValueError for no sample, empty ones or ones of different lengths, a confidence outside
    (0, 1), or a number of resamples that is not a positive integer.
    """
    check_open_unit_interval("confidence", confidence)
    check_positive_integer("resamples", resamples)
    samples = [np.asarray(sample, dtype=float) for sample in samples]
    lengths = {len(sample) for sample in samples}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"samples must be of one length, 1 at least: got {sorted(lengths)}")
    rng = np.random.default_rng(0)
    size = len(samples[0])
    draws = []
    for _ in range(resamples):
        chosen = rng.integers(0, size, size)
        draws.append(statistic(*(sample[chosen] for sample in samples)))
    tail = (1 - confidence) / 2
    lower, upper = np.nanquantile(draws, [tail, 1 - tail])
    return Interval(statistic(*samples), lower, upper)
