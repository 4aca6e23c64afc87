"""The runs that Figures 2, 5 and 6 look at: a CNN at K = 1 and at one large period.

Three pages make them by one call. Where runs are kept (`runs.store`) the first of the pages makes
them, and the others find them there.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from iterlin.study.groups import Problem, Run, ends_of_problems
from iterlin.study.problems import image_problem, restored, snapshot
from iterlin.study.runs import grid


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

    Both take the time of `linearizations` periods, K = 1 in steps of one size, the other in steps
    that are halved after as many linear problems as `halve_after` says (`groups.Run`). `settings`
    are those of `problems.image_problem`. The data set is that of `runs.grid`, with the params at
    every evaluation as vectors "snapshot" (period, seed, snapshot_0, evaluation), which
    `problems.restored` makes params again, and "time" (evaluation): the sum of the step sizes over
    1 - momentum.

    Raises ValueError unless period is finite and larger than 1, else as those functions do.
    """
    if not 1 < period < math.inf:
        raise ValueError(f"period must be larger than 1 and finite to compare, got {period}")
    problem = image_problem(dataset, network, diagnose=64, observe=snapshot, **settings)
    looks = {
        1: _looks(period, linearizations),
        period: _looks(period, linearizations, halve_after),
    }

    def make(period, seed):
        halved = tuple(halve_after) if period > 1 else ()
        return Run(seed, period, step_size, looks[period], momentum=momentum, halve_after=halved)

    axes = {"period": list(looks), "seed": range(num_seeds)}
    ds = grid(problem, axes, make, label=label, folder=folder)
    ds["time"] = "evaluation", np.asarray(looks[1]) * step_size / (1 - momentum)
    return problem, ds


def _looks(period, linearizations, halve_after=()) -> tuple[int, ...]:
    """Twice a period, so that the proxy is seen both half trained and as it is left behind."""
    ends = ends_of_problems(period, linearizations, halve_after)
    lengths = np.diff(ends, prepend=0)
    return (0, *np.stack([ends - lengths + lengths // 2, ends], 1).ravel().tolist())


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
