"""Runs in which some layers alone are trained, or a part of each step is stale: how well they fit,
and whether and when they generalise."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import jax
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from tqdm import tqdm

from book.beyond.grokking_helpers import LEVEL, initial, table_of_sums, time_label
from book.beyond.what_goes_stale_helpers import FRESH, STALE

ALL = "all layers"
# The layers that are trained, by the name of the part.
PARTS = {
    ALL: ("left", "right", "out"),
    "embeddings": ("left", "right"),
    "readout": ("out",),
    "one embedding": ("left",),
    "one embedding and readout": ("left", "out"),
}
# Parts that the rule requires to fit the training set.
FITTING = ["embeddings", "readout"]
BOTH = "both stale"
# What a step takes from the network (fresh) or from the last linearisation: residual, Jacobian.
HALVES = {
    BOTH: (STALE, STALE),
    "stale Jacobian": (FRESH, STALE),
    "linearised residual": (STALE, FRESH),
}
KEPT = ["step", "updates", "train_accuracy", "train_accuracy_proxy", "test_accuracy"]
KEPT_OF_HALVES = ["train_accuracy", "test_accuracy"]


def seeded(modulus: int, width: int, share: float, seed: int) -> tuple[dict, tuple, tuple]:
    """Return the parameters, the training set and the test set (pairs, sums) of a seed."""
    pairs, sums = table_of_sums(modulus)
    order = np.random.default_rng(seed).permutation(modulus**2)
    seen, others = np.split(order, [round(share * modulus**2)])
    start = initial(jax.random.key(seed), modulus, width)
    return start, (pairs[seen], sums[seen]), (pairs[others], sums[others])


def grid(run: Callable[..., xr.Dataset], axes: Mapping[str, Sequence]) -> xr.Dataset:
    """Return run(*values) for every combination of the axes' values, over these axes."""
    found = []
    for values in tqdm(list(product(*axes.values())), desc="runs", disable=None):
        place = {name: [value] for name, value in zip(axes, values, strict=True)}
        found.append(run(*values).expand_dims(place))
    return xr.combine_by_coords(found).reindex(axes)


def add_statistics(ds: xr.Dataset) -> xr.Dataset:
    """Return the runs with their best looks, and with what the claims need.

    ds: runs over (part, time, seed, look), and, with the prefix "half_", over (half, half_time,
    seed, look).
    """
    ds["best"] = 100 * ds.test_accuracy.max("look")
    ds["fit"] = 100 * ds.train_accuracy_proxy.max("look")
    apart = ds.best.drop_sel(part=ALL)
    ds["all_best"] = intervals.over_seeds(ds.best.sel(part=ALL).min("time"))
    ds["part_best"] = intervals.over_seeds(apart.max(["part", "time"]))
    ds["alone_fit"] = intervals.over_seeds(ds.fit.sel(part=FITTING).min(["part", "time"]))
    ds["half_best"] = 100 * ds.half_test_accuracy.max("look")
    steps = ds.step.isel(part=0, time=0, seed=0, drop=True)
    # A run that never gets there counts with its length.
    there = steps.where(ds.half_test_accuracy >= LEVEL).min("look").fillna(steps.max())
    ds["half_steps"] = there
    single, shortest = list(HALVES)[1:], {"half_time": ds.half_time.min()}
    ds["single_best"] = intervals.over_seeds(ds.half_best.sel(half=single, **shortest).min("half"))
    later = there.sel(half=single).min("half") - there.sel(half=BOTH)
    ds["single_later"] = intervals.over_seeds(later.sel(shortest))
    return ds


def draw(ds: xr.Dataset) -> None:
    """Draw test accuracy against steps: a panel for each period with a line for each part, and one
    of the stale halves at their shortest period."""
    fig, (*axes, last) = plotting.panels(ds.sizes["time"] + 1, height=2.7)
    for axis, time in zip(axes, ds.time.values, strict=True):
        for part, colour in zip(ds.part.values, plotting.COLOURS, strict=False):
            at = ds.sel(part=part, time=time)
            accuracy = 100 * at.test_accuracy.transpose("seed", "look")
            plotting.band(axis, at.step.isel(seed=0), accuracy, color=colour, label=part)
        axis.set(title=f"parts trained, features updated {time_label(time)}")
    shortest = float(ds.half_time.min())
    for half, colour in zip(ds.half.values, plotting.COLOURS, strict=False):
        at = ds.sel(half=half, half_time=shortest)
        accuracy = 100 * at.half_test_accuracy.transpose("seed", "look")
        steps = ds.step.isel(part=0, time=0, seed=0)
        plotting.band(last, steps, accuracy, color=colour, label=half)
    last.set(title=f"stale halves of a step, features updated {time_label(shortest)}")
    last.legend(loc="lower right")
    for axis in (*axes, last):
        axis.set(ylim=(-3, 103), ylabel="test accuracy (%)", xlabel="steps")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    plt.show()


def table(ds: xr.Dataset) -> object:
    """Return a table of the best looks of each part and period, and of the steps until then."""
    head = ["trained", "features are updated", "best training accuracy (%)", "steps until 99 %"]
    head += ["best test accuracy (%)", "steps until 95 %"]
    rows = []
    for part in ds.part.values:
        for time in ds.time.values:
            at = ds.sel(part=part, time=time)
            row = [part, time_label(time)]
            for best, accuracy, level in (
                (at.fit, at.train_accuracy_proxy, 0.99),
                (at.best, at.test_accuracy, LEVEL),
            ):
                first = at.step.where(accuracy >= level).min("look")
                reached = f"{float(first.mean()):,.0f}" if first.notnull().all() else "–"
                row += [tables.interval_text(best), reached]
            rows.append(row)
    return tables.table(head, rows)


def table_of_halves(ds: xr.Dataset) -> object:
    """Return a table of the best look of runs with stale halves, and of the steps until 95 %."""
    head = ["a step's Jacobian and residual", "features are updated", "best test accuracy (%)"]
    head += [f"steps until {100 * LEVEL:.0f} %", "runs that get there"]
    rows = []
    for half in ds.half.values:
        for time in ds.half_time.values:
            at = ds.sel(half=half, half_time=time)
            row = [half, time_label(time), tables.interval_text(at.half_best)]
            there = int((at.half_best >= 100 * LEVEL).sum())
            steps = tables.interval_text(at.half_steps, 0) if there == at.sizes["seed"] else "–"
            rows.append([*row, steps, f"{there} of {at.sizes['seed']}"])
    return tables.table(head, rows)
