"""Means over seeds, shares and thresholds, with their 95 % confidence intervals."""

from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

from iterlin.validation import open_unit, positive_integer


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
    open_unit("confidence", confidence)
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


def bootstrap_interval(
    statistic, *samples, confidence: float = 0.95, resamples: int = 2000
) -> Interval:
    """Any statistic of one or more samples, with its percentile bootstrap interval.

    The samples are indexed by the same seeds and resampled together. The generator is fixed, so
    the interval is a function of the samples.

    Raises ValueError for no sample, empty ones or ones of different lengths, a confidence outside
    (0, 1), or a number of resamples that is not a positive integer.
    """
    open_unit("confidence", confidence)
    positive_integer("resamples", resamples)
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


def exact_share(outcomes, confidence: float = 0.95) -> Interval:
    """The share of true outcomes with its exact interval (Clopper and Pearson, 1934).

    outcomes: 0 or 1 of any shape, taken as independent; NaN (a missing run) is left out. The limits
    are the shares at which as many or more, and as many or fewer, have a probability of
    (1 - confidence) / 2. Without outcomes the share is NaN, its interval [0, 1].

    Raises ValueError for outcomes that are neither 0 nor 1 nor NaN, or a confidence outside (0, 1).

    >>> print(exact_share([0, 0, 0]).upper.round(3))
    0.708
    """
    open_unit("confidence", confidence)
    kept = _outcomes(outcomes)
    true, count = kept.sum(), kept.size
    tail = (1 - confidence) / 2
    lower = stats.beta.ppf(tail, true, count - true + 1) if true > 0 else 0.0
    upper = stats.beta.ppf(1 - tail, true + 1, count - true) if true < count else 1.0
    return Interval(*map(np.float64, (true / count if count else np.nan, lower, upper)))


def half_point(x, outcomes, confidence: float = 0.95) -> Interval:
    """Where the probability of a true outcome passes 1/2 as x grows, by a logistic fit.

    The probability is 1 / (1 + exp(-b (x - m))), b >= 0; m is given with the interval of its
    profile likelihood, which is well defined where x separates the outcomes, too: the estimate is
    then the middle of the gap. Where the outcomes have no order in x it is NaN, and a limit that
    they do not set is infinite. x and outcomes (0 or 1) of one shape, taken as independent; pairs
    with a NaN are left out.

    Raises ValueError for shapes that differ, an infinite x, outcomes that are not 0, 1 or NaN, or
    a confidence outside (0, 1).
    """
    open_unit("confidence", confidence)
    x, outcomes = np.asarray(x, dtype=float), np.asarray(outcomes, dtype=float)
    if x.shape != outcomes.shape:
        raise ValueError(f"x {x.shape} and outcomes {outcomes.shape} must have one shape")
    if np.isinf(x).any():
        raise ValueError("x must be finite")
    paired = ~(np.isnan(x) | np.isnan(outcomes))
    x, outcomes = x[paired], _outcomes(outcomes[paired])
    if not 0 < outcomes.sum() < outcomes.size:
        return Interval(np.float64(np.nan), np.float64(-np.inf), np.float64(np.inf))
    scale = np.ptp(x) or 1.0

    def loss(m):
        """Minus the largest log likelihood of any steepness: convex in b, which may be infinite."""
        aligned = np.where(outcomes == 1, x - m, m - x) / scale

        def of(b):
            return -np.sum(special.log_expit(b * aligned))

        found = optimize.minimize_scalar(of, bounds=(0, _STEEPEST), method="bounded")
        return min(of(0.0), float(found.fun), of(_STEEPEST))

    # In the logistic curve's slope and intercept the loss is convex, so that where it is at most
    # some value is an interval of m, found from any place inside.
    grid = np.linspace(x.min(), x.max(), 101)
    losses = [loss(m) for m in grid]
    start, best = grid[np.argmin(losses)], min(losses)
    near = start - scale / 100, start + scale / 100
    found = optimize.minimize_scalar(loss, bounds=near, method="bounded")
    if found.fun < best:
        start, best = found.x, found.fun

    def limit(side, allowed):
        inside = start
        for outside in start + side * scale * np.geomspace(1e-6, 1e3, 91):
            if loss(outside) > allowed:
                return optimize.brentq(lambda m: loss(m) - allowed, inside, outside)
            inside = outside
        return side * np.inf

    def limits(more):
        return limit(-1, best + more), limit(1, best + more)

    # Across a gap between the outcomes the likelihood is flat.
    flat = limits(1e-4)
    estimate = np.mean(flat) if np.isfinite(flat).all() else np.nan
    return Interval(*map(np.float64, (estimate, *limits(stats.chi2.ppf(confidence, 1) / 2))))


# Of a logistic curve over the whole range of x: beyond it, a step.
_STEEPEST = 1e4


def _outcomes(values) -> np.ndarray:
    """The values that are not NaN; ValueError unless these are 0 or 1."""
    values = np.asarray(values, dtype=float).ravel()
    values = values[~np.isnan(values)]
    if wrong := set(values) - {0.0, 1.0}:
        raise ValueError(f"outcomes must be 0 or 1, got {sorted(wrong)[0]:g}")
    return values
