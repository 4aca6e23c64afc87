"""The runs of Figures 2, 5 and 6: a CNN at K = 1 and at one large period.

Three pages call `run` with the same arguments. If finished runs are kept on disk (`grids.store`),
the first page trains them and the others read them.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from iterlin_study.runs.grids import grid
from iterlin_study.runs.groups import Problem, Run, steps_at
from iterlin_study.runs.problems import image_problem, restored, snapshot


def run(
    dataset: str,
    network: Mapping,
    *,
    period: int,
    linearizations: int,
    halve_after: Sequence[float],
    step_size: float,
    momentum: float,
    num_seeds: int,
    label: str = "",
    folder: Path | None = None,
    **settings,
) -> tuple[Problem, xr.Dataset]:
    """Train a CNN at K = 1 and at a larger period, from the same initial networks.

    Both take the same steps on the same batches. Runs are evaluated in the middle and at the end of
    each of the larger periods, and where the step size is halved.

    Args:
        dataset, network: As for `problems.image_problem`.
        period: The larger period K, in steps at the first step size.
        linearizations: Length of the runs, in larger periods.
        halve_after: Increasing numbers of larger periods after which the step size is halved
            (`groups.Run`); 1.5 is in the middle of the second. At K = 1 it is halved after as many
            steps.
        step_size: First step size.
        momentum: Momentum of heavy-ball SGD, in [0, 1).
        num_seeds: Number of seeds.
        label, folder: As for `grids.grid`.
        **settings: Further arguments of `problems.image_problem`.

    Returns:
        The problem and the data set of its runs, as `grids.grid` returns it, with axes "period" and
        "seed". "snapshot" (period, seed, snapshot_0, evaluation) holds the parameters as vectors
        (`problems.restored`). "time" (evaluation) is the sum of the step sizes, divided by
        1 - momentum.

    Raises:
        ValueError: If period is not finite or not larger than 1, or halve_after goes beyond the
            end of the run, and as `problems.image_problem` and `grids.grid`.
    """
    if not 1 < period < math.inf:
        raise ValueError(f"period must be larger than 1 and finite to compare, got {period}")
    if halve_after and max(halve_after) > linearizations:
        raise ValueError(f"halve_after {halve_after} goes beyond the {linearizations} periods")
    problem = image_problem(dataset, network, diagnose=64, observe=snapshot, **settings)
    places = np.union1d(np.arange(2 * linearizations + 1) / 2, halve_after)
    looks = tuple(steps_at(places, period, halve_after).tolist())
    halved = {1: steps_at(halve_after, period, halve_after).tolist(), period: halve_after}

    def make(period, seed):
        after = tuple(halved[period])
        return Run(seed, period, step_size, looks, momentum=momentum, halve_after=after)

    axes = {"period": list(halved), "seed": range(num_seeds)}
    ds = grid(problem, axes, make, label=label, folder=folder)
    ds["time"] = "evaluation", places * period * step_size / (1 - momentum)
    return problem, ds


def filters(problem: Problem, snapshots: xr.DataArray) -> np.ndarray:
    """Return the weights of the first convolution, from the variable "snapshot" of `run`.

    Filters of k x k pixels, (period, seed, evaluation, k, k, C, channels).
    """
    snapshots = snapshots.transpose("period", "seed", "evaluation", ...).values
    weights = [
        np.asarray(restored(problem, snapshots[place])["conv1"]["kernel"])
        for place in np.ndindex(snapshots.shape[:-1])
    ]
    return np.stack(weights).reshape(*snapshots.shape[:-1], *weights[0].shape)


def moved(weights: np.ndarray) -> np.ndarray:
    """Return the relative change of the weights since the start, ||w - w_0|| / ||w_0||.

    weights: as `filters` returns them. The change is over (period, seed, evaluation).
    """
    flat = weights.reshape(*weights.shape[:3], -1)
    start = np.linalg.norm(flat[:, :, :1], axis=-1)
    return np.linalg.norm(flat - flat[:, :, :1], axis=-1) / start


def first_reached(curve, level: float, times) -> float:
    """Return when a curve first reaches a level, as a fraction in [0, 1] of the last time.

    The curve is interpolated between two times. 1 if it stays below the level, NaN if the curve or
    the level is not finite.
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
