"""The runs that Figures 2, 5 and 6 look at: a CNN at K = 1 and at one large period.

Three pages make them by one call. Where runs are kept (`runs.store`) the first of the pages makes
them, and the others find them there.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from iterlin.study.groups import Problem, Run
from iterlin.study.problems import image_problem, snapshot
from iterlin.study.runs import grid


def run(
    dataset: str,
    network: Mapping,
    *,
    periods: Sequence[int],
    num_seeds: int,
    num_steps: int,
    step_size: float,
    label: str = "",
    folder: Path | None = None,
    **settings,
) -> tuple[Problem, xr.Dataset]:
    """The problem, and its runs by "period" and "seed", each followed from its seed's network.

    `settings` are those of `problems.image_problem`. The data set is that of `runs.grid`, with the
    params at every evaluation as vectors "snapshot" (period, seed, snapshot_0, evaluation), which
    `problems.restored` makes params again.

    Raises ValueError unless periods are 1 and a larger finite one, else as those functions do.
    """
    if len(periods) != 2 or periods[0] != 1 or not 1 < periods[1] < math.inf:
        raise ValueError(f"periods must be 1 and a larger, finite one to compare, got {periods}")
    problem = image_problem(dataset, network, diagnose=64, observe=snapshot, **settings)
    # Twice a period, so that the proxy is seen both half trained and as it is left behind.
    eval_steps = tuple(np.unique(np.r_[0, np.arange(0, num_steps + 1, periods[1] // 2)]).tolist())

    def make(period, seed):
        return Run(seed, period, step_size, eval_steps)

    axes = {"period": periods, "seed": range(num_seeds)}
    return problem, grid(problem, axes, make, label=label, folder=folder)
