"""The figure, the table and the statistics of the page on exact solves."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping, merging

KEPT = ["step", "train_accuracy", "train_loss", "test_accuracy", "test_accuracy_proxy"]
KEPT += ["validation_accuracy", "validation_accuracy_proxy", "diverged_at"]


def draw(ds):
    """Draw accuracy at the end against the time of a linearisation, and accuracy on the way."""
    _, (top, bottom) = plotting.panels(2)
    first, *colours = plotting.colours_by_period([1, *ds.time.values])
    found = intervals.mean_interval(ds.sgd_accuracy)
    plotting.span(top, found, color=first, alpha=0.2, lw=0, label="SGD")
    for name, label, marker, shift in (
        ("damped", r"damped minimum, at $1/(2\lambda)$", "o", 1.08),
        ("flow", r"gradient flow, $\eta K$", "s", 1 / 1.08),
    ):
        accuracy = ds[f"{name}_accuracy"].transpose("seed", "time")
        plotting.points(top, shift * ds.time.values, accuracy, marker=marker, label=label)
    top.set(xscale="log", xlabel=r"time of a linearisation, $\eta K$ or $1/(2\lambda)$")
    top.set_ylabel("test accuracy at the end (%)")
    top.legend(loc="best")
    for time, colour in zip(ds.time.values, colours, strict=True):
        curve = 100 * ds.damped_test_accuracy.sel(time=time).transpose("seed", "look")
        label = rf"$\lambda={1 / (2 * time):.2g}$"
        plotting.band(bottom, ds.look.values, curve, color=colour, marker=".", label=label)
    bottom.set(xlabel="linearisations so far", ylabel="test accuracy (%)")
    bottom.legend(loc="lower right")
    plt.show()


def merged(grids):
    """Merge the grids "damped", "flow" and "sgd"; the first two are looked at alike, at "look"."""
    looks = {"damped": "look", "flow": "look", "sgd": "sgd_look"}
    parts = [
        merging.named(grids[name][KEPT].rename(evaluation=look), name, axes=())
        for name, look in looks.items()
    ]
    ds = xr.merge(parts)
    return ds.assign_coords(look=np.arange(ds.sizes["look"]))


def add_statistics(grids):
    """Return the merged runs with what the claims are judged by, each with its interval over seeds.

    Differences are in percentage points of test accuracy: "cost" of full solves against SGD, "gain"
    of the strongest damping over the weakest. A slope is per factor of ten in the time of a
    linearisation.
    """
    ds = merged(grids)
    for name, grid in grids.items():
        last = grid.isel(evaluation=-1)
        ds[f"{name}_accuracy"] = 100 * last.test_accuracy
        ds[f"{name}_fit"] = 100 * last.train_accuracy
        for reading, read in early_stopping.READINGS.items():
            ds[f"{name}_{reading}"] = 100 * read(grid)
    for name in ("accuracy", *early_stopping.READINGS):
        full, most = (ds[f"damped_{name}"].isel(time=place) for place in (-1, 0))
        ds[f"cost_{name}"] = intervals.over_seeds(ds[f"sgd_{name}"] - full)
        ds[f"gain_{name}"] = intervals.over_seeds(most - full)
    slopes = {
        name: intervals.slope_per_decade(ds[f"{name}_accuracy"], "time")
        for name in ("damped", "flow")
    }
    for name, slope in slopes.items():
        ds[f"{name}_slope"] = intervals.over_seeds(slope)
    ds["slope_difference"] = intervals.over_seeds(slopes["damped"] - slopes["flow"])
    apart = (ds.damped_accuracy - ds.flow_accuracy).mean("time", skipna=False)
    ds["distance"] = intervals.over_seeds(apart)
    return ds


def table(ds):
    """Return a table of how the runs end: a minimum, and below it the flow paired with it."""
    head = ["run", "fit (%)", "at the end (%)", "best on the test set (%)"]
    head += ["chosen by validation (%)"]
    columns = ("fit", "accuracy", *early_stopping.READINGS)
    cells = {
        name: [ds[f"{name}_{column}"] for column in columns] for name in ("damped", "flow", "sgd")
    }
    text = tables.interval_text
    rows = [["SGD, K = 1", *map(text, cells["sgd"])]]
    for time in ds.time.values:
        for name, label in (
            ("damped", f"λ = {1 / (2 * time):.2g}"),
            ("flow", f"ηK = {time:g}"),
        ):
            rows.append([label, *(text(cell.sel(time=time)) for cell in cells[name])])
    return tables.table(head, rows)
