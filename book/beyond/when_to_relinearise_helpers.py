"""Accuracy against the number of feature updates, for families of schedules.

A family is a list of settings (periods, factors, thresholds), each with the number of updates that
its runs took and what they reached. Between settings a family is read by interpolation in the
logarithm of updates.
"""

import jax.numpy as jnp
import numpy as np
from iterlin.training.schedules import NEVER, Schedule

# What `fewest_updates` gives where a family does not get there: beyond any that is counted.
OUT_OF_REACH = 1000.0


def growing(first: int, factor: float) -> Schedule:
    """Return the schedule with periods of `first`, `factor` first, factor^2 first, ... steps."""
    if not factor > 1:
        raise ValueError(f"factor must be above 1, got {factor!r}")
    ends = [first]
    while (end := ends[-1] + round(first * factor ** len(ends))) < NEVER:
        ends.append(end)
    ends = jnp.asarray(ends, jnp.int32)

    return Schedule(lambda step, state: jnp.any(step == ends))


def at_updates(updates, values, wanted: float) -> np.ndarray | float:
    """The values of a family, (..., setting), at `wanted` updates: linear in the logarithm of
    `updates`, (setting,), and beyond the settings that of the nearest.

    Settings with as many updates count as their mean. NaN (a missing run) among the updates gives
    NaN.
    """
    updates, values = np.asarray(updates, float), np.asarray(values, float)
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
    """
    updates, values = np.asarray(updates, float), np.asarray(values, float)
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
