"""The runs that Figures 2, 5 and 6 look at: a CNN at K = 1 and at one large period.

Three pages make them by one call. Where runs are kept (`grids.store`) the first of the pages makes
them, and the others find them there.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from iterlin_study.runs.grids import grid
from iterlin_study.runs.groups import Problem, Run, ends_of_problems
from iterlin_study.runs.problems import image_problem, restored, snapshot


def run(
    dataset: str,
    network: Mapping,
    *,
    period: int,
    linearizations: int,
    halve_after: Sequence[int],
    step_size: float,
    momentum: float,
    num_seeds: int,
    label: str = "",
    folder: Path | None = None,
    **settings,
) -> tuple[Problem, xr.Dataset]:
    """The problem, and its runs by "period" (1 and `period`) and "seed", from each seed's network.

    Both take the same steps on the same batches, for the time of `linearizations` periods. The
    step size is halved after those linear problems of the larger period that `halve_after` numbers
    (`groups.Run`), and at K = 1 after as many steps. Runs are looked at twice a period, so that the
    proxy is seen both half trained and as it is left behind. `settings` are those of
    `problems.image_problem`.

    The data set is that of `grids.grid`, with the params at every evaluation as vectors "snapshot"
    (period, seed, snapshot_0, evaluation), which `problems.restored` makes params again, and "time"
    (evaluation): the sum of the step sizes over 1 - momentum.

    Raises ValueError unless period is finite and larger than 1, and for a halve_after beyond the
    run; else as those functions do.
    """
    if not 1 < period < math.inf:
        raise ValueError(f"period must be larger than 1 and finite to compare, got {period}")
    if halve_after and max(halve_after) > linearizations:
        raise ValueError(f"halve_after {halve_after} goes beyond the {linearizations} periods")
    problem = image_problem(dataset, network, diagnose=64, observe=snapshot, **settings)
    ends = ends_of_problems(period, linearizations, halve_after)
    lengths = np.diff(ends, prepend=0)
    middles = ends - lengths + lengths // 2
    looks = (0, *np.stack([middles, ends], 1).ravel().tolist())
    halved = {1: ends[np.asarray(halve_after, int) - 1].tolist(), period: halve_after}

    def make(period, seed):
        after = tuple(halved[period])
        return Run(seed, period, step_size, looks, momentum=momentum, halve_after=after)

    axes = {"period": list(halved), "seed": range(num_seeds)}
    ds = grid(problem, axes, make, label=label, folder=folder)
    halves = np.arange(len(looks)) / 2
    ds["time"] = "evaluation", halves * period * step_size / (1 - momentum)
    return problem, ds


def filters(problem: Problem, snapshots: xr.DataArray) -> np.ndarray:
    """Weights (period, seed, evaluation, k, k, C, channels) of the first convolution."""
    snapshots = snapshots.transpose("period", "seed", "evaluation", ...).values
    weights = [
        np.asarray(restored(problem, snapshots[place])["conv1"]["kernel"])
        for place in np.ndindex(snapshots.shape[:-1])
    ]
    return np.stack(weights).reshape(*snapshots.shape[:-1], *weights[0].shape)


def moved(weights: np.ndarray) -> np.ndarray:
    """Change (period, seed, evaluation) of these since the start, relative to them then."""
    flat = weights.reshape(*weights.shape[:3], -1)
    start = np.linalg.norm(flat[:, :, :1], axis=-1)
    return np.linalg.norm(flat - flat[:, :, :1], axis=-1) / start


def first_reached(curve, level: float, times) -> float:
    """Return the fraction of the last time at which a curve (T,) first is at the level.

    By interpolation; 1 if it never is, NaN where the curve or the level is not finite.
    """
    curve, times = np.asarray(curve, dtype=float), np.asarray(times, dtype=float)
    if not (np.isfinite(curve).all() and np.isfinite(level)):
        return np.nan
    above = np.flatnonzero(curve >= level)
    if len(above) == 0:
        return 1.0
    i = above[0]
    time = times[i] if i == 0 else np.interp(level, curve[i - 1 : i + 1], times[i - 1 : i + 1])
    return float(time / times[-1])
