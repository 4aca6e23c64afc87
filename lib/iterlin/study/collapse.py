"""Do runs with several dials depend on one variable alone? And where does a curve pass a level?"""

import numpy as np
from scipy.stats import linregress

from iterlin.validation import positive


def variance_explained(x, y) -> float:
    """R^2 of the best monotone function of x, rising or falling: 1 if y is one, 0 if none helps.

    The share of y's variance that isotonic regression on x takes away; x, y of one shape, pairs
    with a NaN left out. It is never negative, and positive by chance: the function is fitted to
    these very points. NaN where y does not vary. Raises ValueError for shapes that differ.

    >>> print(variance_explained([1, 2, 3], [5, 4, 3]), variance_explained([1, 1], [0, 1]))
    1.0 0.0
    """
    from sklearn.isotonic import IsotonicRegression

    x, y = (np.asarray(v, dtype=float) for v in (x, y))
    if x.shape != y.shape:
        raise ValueError(f"x {x.shape} and y {y.shape} must have one shape")
    paired = ~(np.isnan(x) | np.isnan(y))
    x, y = x[paired], y[paired]
    total = np.sum((y - y.mean()) ** 2) if y.size else 0.0
    if total == 0:
        return np.nan
    left = [
        np.sum((y - IsotonicRegression(increasing=rising).fit_transform(x, y)) ** 2)
        for rising in (True, False)
    ]
    return float(1 - min(left) / total)


def crossing(x, y, level: float) -> float:
    """Where y (M,), positive and over increasing positive x (M,), first passes the level.

    From below, and linear in both logarithms between its points. NaN if it never does, or lies
    above the level from the first.

    Raises ValueError for an axis that is not positive and increasing, or values that are not
    positive and of its length.

    >>> print(crossing([1, 10, 100], [0.01, 0.1, 1.0], 0.5).round(3))
    50.0
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    for name, values in (("x", x), ("y", y), ("level", level)):
        positive(name, values)
    if x.shape != y.shape or x.ndim != 1 or np.any(np.diff(x) <= 0):
        raise ValueError(f"y must be one number for each of the increasing x, got {x} and {y}")
    above = np.flatnonzero(y >= level)
    if len(above) == 0 or above[0] == 0:
        return np.float64(np.nan)
    pair = slice(above[0] - 1, above[0] + 1)
    return np.exp(np.interp(np.log(level), np.log(y[pair]), np.log(x[pair])))


def power(x, y) -> float:
    """The p of y ~ x^p, by least squares in the logarithms of x and y (M,).

    NaNs are left out; NaN for fewer than two points.

    >>> print(round(power([1, 2, 4], [3, 12, 48]), 6))
    2.0
    """
    x, y = (np.log(np.asarray(v, dtype=float)) for v in (x, y))
    paired = ~(np.isnan(x) | np.isnan(y))
    if paired.sum() < 2:
        return np.nan
    return float(linregress(x[paired], y[paired]).slope)
