"""Shares and thresholds of outcomes that are true or false, with 95 % confidence intervals."""

import numpy as np
from iterlin_study.report.intervals import Interval
from scipy import optimize, special, stats

# Steepness of a logistic curve over the whole range of x beyond which it is a step.
STEEPEST = 1e4


def exact_share(outcomes) -> Interval:
    """Return the share of true outcomes with its exact interval (Clopper and Pearson, 1934).

    outcomes: 0 or 1 of any shape, taken as independent; NaN (a missing run) is left out. Without
    outcomes the share is NaN, its interval [0, 1].
    """
    kept = np.ravel(np.asarray(outcomes, dtype=float))
    kept = kept[~np.isnan(kept)]
    true, count = kept.sum(), kept.size
    lower = stats.beta.ppf(0.025, true, count - true + 1) if true > 0 else 0.0
    upper = stats.beta.ppf(0.975, true + 1, count - true) if true < count else 1.0
    return Interval(*map(np.float64, (true / count if count else np.nan, lower, upper)))


def half_point(x, outcomes) -> Interval:
    """Return where the probability of a true outcome passes 1/2 as x grows, by a logistic fit.

    The probability is 1 / (1 + exp(-b (x - m))), b >= 0; m is given with the interval of its
    profile likelihood, which is well defined where x separates the outcomes, too: the estimate is
    then the middle of the gap. Where the outcomes have no order in x it is NaN, and a limit that
    they do not set is infinite. x and outcomes (0 or 1) have one shape and are taken as
    independent; pairs with a NaN are left out.
    """
    x, outcomes = np.asarray(x, dtype=float), np.asarray(outcomes, dtype=float)
    paired = ~(np.isnan(x) | np.isnan(outcomes))
    x, outcomes = x[paired], outcomes[paired]
    if not 0 < outcomes.sum() < outcomes.size:
        return Interval(np.float64(np.nan), np.float64(-np.inf), np.float64(np.inf))
    scale = np.ptp(x) or 1.0

    def loss(m):
        """Minus the largest log likelihood of any steepness: convex in b, which may be infinite."""
        aligned = np.where(outcomes == 1, x - m, m - x) / scale

        def of(b):
            return -np.sum(special.log_expit(b * aligned))

        found = optimize.minimize_scalar(of, bounds=(0, STEEPEST), method="bounded")
        return min(of(0.0), float(found.fun), of(STEEPEST))

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
    return Interval(*map(np.float64, (estimate, *limits(stats.chi2.ppf(0.95, 1) / 2))))
