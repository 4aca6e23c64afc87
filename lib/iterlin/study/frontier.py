"""Accuracy against the number of feature updates, for families of schedules.

A family is a list of settings (periods, factors, thresholds), each with the number of updates that
its runs took and what they reached. Between settings a family is read by interpolation in the
logarithm of updates.
"""

import jax.numpy as jnp
import numpy as np

from iterlin.schedules import NEVER, Schedule
from iterlin.validation import positive, positive_integer

# What `fewest_updates` gives where a family does not get there: beyond any that is counted.
OUT_OF_REACH = 1000.0


def growing(first: int, factor: float) -> Schedule:
    """Periods of `first`, `factor` first, factor^2 first, ... steps, known ahead.

    Raises ValueError for a first that is not a positive integer, or a factor that is not above 1.

    >>> schedule = growing(2, 3)
    >>> [step for step in range(1, 100) if schedule(step, None)]
    [2, 8, 26, 80]
    """
    positive_integer("first", first)
    positive("factor", factor)
    if factor <= 1:
        raise ValueError(f"factor must be above 1, got {factor!r}")
    ends = [first]
    while (end := ends[-1] + round(first * factor ** len(ends))) < NEVER:
        ends.append(end)
    ends = jnp.asarray(ends, jnp.int32)

    return Schedule(lambda step, state: jnp.any(step == ends))


def at_updates(updates, values, wanted: float) -> np.ndarray | float:
    """The values of a family, (..., setting), at `wanted` updates: linear in the logarithm of
    `updates`, (setting,), and beyond the settings that of the nearest.

    Settings with as many updates count as their mean. Values of one seed stay those of that seed:
    the weights depend on the updates alone. NaN (a missing run) among the updates gives NaN.

    Raises ValueError for updates that are not positive, or not one for each setting.
    """
    updates, values = _checked(updates, values)
    if np.isnan([*updates, wanted]).any():
        return np.nan * values[..., 0]
    places, which = np.unique(updates, return_inverse=True)
    merged = [values[..., which == i].mean(-1) for i in range(len(places))]
    weights = [np.interp(np.log(wanted), np.log(places), unit) for unit in np.eye(len(places))]
    return np.sum([w * v for w, v in zip(weights, merged, strict=True) if w > 0], axis=0)


def fewest_updates(updates, values, least: float) -> float:
    """The updates from which on a family reaches `least`, by interpolation in their logarithm.

    updates, values: (setting,). From the setting with the most updates downwards, to the first that
    falls short: so a lucky setting of few updates below one that falls short does not count.
    `OUT_OF_REACH` where that with the most updates falls short, or a number is NaN; where all
    reach it, the fewest that a setting took.

    Raises ValueError as `at_updates`.

    >>> print(fewest_updates([1, 4, 16], [0.0, 1.0, 2.0], 0.5))
    2.0
    """
    updates, values = _checked(updates, values)
    if np.isnan(updates).any():
        return OUT_OF_REACH
    order = np.argsort(updates)
    updates, values = updates[order], values[order]
    short = np.flatnonzero(~(values >= least))
    if not short.size:
        return float(updates[0])
    last = short[-1]
    if last == len(values) - 1 or np.isnan(values[last]):
        return OUT_OF_REACH
    share = (least - values[last]) / (values[last + 1] - values[last])
    return float(updates[last] * (updates[last + 1] / updates[last]) ** share)


def _checked(updates, values):
    updates, values = np.asarray(updates, float), np.asarray(values, float)
    if updates.ndim != 1 or values.shape[-1:] != updates.shape:
        raise ValueError(
            f"updates {updates.shape} must be one for each setting of values {values.shape}"
        )
    if (updates <= 0).any() or np.isinf(updates).any():
        raise ValueError(f"updates must be positive, got {updates.tolist()}")
    return updates, values
