"""By what factor two curves are apart along their axes, and where one reaches a level."""

import numpy as np

from iterlin.validation import positive

WIDEST, STEPS, POINTS = 100.0, 401, 101


def stretch(x, a, u, b) -> float:
    """The factor c for which the curve b over c u lies nearest to the curve a over x.

    x, a (M,), u, b (L,): two curves over positive axes, in increasing order. Nearest is where the
    mean square of a(x) - b(x / c), over x spread evenly in log x between its ends, is least. Both
    curves are linear in the logarithm of their axis between its points, and keep their last values
    beyond its ends. c is one of 401 values from 1/100 to 100, 2.3 % apart; the least if several do.

    Raises ValueError for axes that are not positive and increasing, of one point, or not of the
    length of their values, and for values that are not finite.
    """
    (x, a), (u, b) = _curve("x", x, a), _curve("u", u, b)
    places = np.linspace(x[0], x[-1], POINTS)
    shifts = np.linspace(-np.log(WIDEST), np.log(WIDEST), STEPS)
    apart = np.interp(places, x, a) - np.interp(places - shifts[:, None], u, b)
    return float(np.exp(shifts[np.argmin(np.mean(apart**2, axis=1))]))


def first_reached(curve, level: float, times) -> float:
    """The fraction of the last time at which a curve (T,) first is at the level, by interpolation;
    1 if it never is, NaN where it or the level is not finite."""
    curve, times = np.asarray(curve, dtype=float), np.asarray(times, dtype=float)
    if not (np.isfinite(curve).all() and np.isfinite(level)):
        return np.nan
    above = np.flatnonzero(curve >= level)
    if len(above) == 0:
        return 1.0
    i = above[0]
    time = times[i] if i == 0 else np.interp(level, curve[i - 1 : i + 1], times[i - 1 : i + 1])
    return float(time / times[-1])


def _curve(name, axis, values):
    """Logarithm of the axis, and the values, once they are known to be a curve."""
    axis, values = (np.asarray(part, dtype=float) for part in (axis, values))
    positive(name, axis)
    if axis.ndim != 1 or len(axis) < 2 or np.any(np.diff(axis) <= 0):
        raise ValueError(f"{name} must be two or more increasing numbers, got {axis}")
    if values.shape != axis.shape or not np.all(np.isfinite(values)):
        raise ValueError(f"the values over {name} must be {len(axis)} finite numbers, got {values}")
    return np.log(axis), values
