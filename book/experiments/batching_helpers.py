"""The figure, the table and the statistics of the page on full batches and minibatches."""

import matplotlib.pyplot as plt
import numpy as np
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping

FULL, MINI = "full batch", "minibatch"
NAMES = ("standard", "moderate", "large")  # of the periods, in increasing order


def draw(ds):
    """Draw test accuracy against steps, full batch beside minibatch."""
    scale = int(ds.attrs["ratio"])
    colours = plotting.colours_by_period(ds.period.values)
    _, axes = plotting.panels(3, sharey=True)
    for batch, own, dashes, factor in ((FULL, axes[0], "-", 1), (MINI, axes[1], "--", scale)):
        for period, colour in zip(ds.period.values, colours, strict=True):
            at = ds.sel(batch=batch, period=period)
            steps = at.step.isel(seed=0)
            # As long as every run goes on: a mean over the others would rise where one diverges.
            known = at.test_accuracy.notnull() | at.diverged_at.isnull()
            accuracy = 100 * at.test_accuracy.where(known.all("seed"))
            label = plotting.period_label(period if period == 1 else factor * period)
            plotting.band(own, steps, accuracy, color=colour, ls=dashes, label=label)
            rescaled = {"label": plotting.period_label(period)} if batch == FULL else {}
            plotting.band(axes[2], steps / factor, accuracy, color=colour, ls=dashes, **rescaled)
    eta = ds.attrs["step_size"]
    highest = 160 * float(ds.test_accuracy.max())
    axes[0].set(title=rf"full batch, $\eta={eta:g}$", xlabel="steps")
    axes[1].set(title=rf"minibatch, $\eta={eta / scale:g}$", xlabel="steps")
    axes[2].set(title="both", xlabel=f"steps (minibatch: divided by {scale})")
    for axis in axes:
        axis.set(ylabel="test accuracy (%)", ylim=(0, highest))
        axis.legend(loc="upper left", ncols=3)
    plt.show()


def add_statistics(ds):
    """Return the runs with what the claim is judged by, each with its interval over seeds.

    Differences are full batch minus minibatch, in percentage points, at equal step size times
    steps. A diverged run counts with the accuracy that it started from.
    """
    ds = early_stopping.add_accuracies(ds)
    curve = 100 * ds.test_accuracy.fillna(ds.test_accuracy.isel(evaluation=0))
    apart = curve.sel(batch=FULL) - curve.sel(batch=MINI)
    best = ds.accuracy_oracle.sel(batch=FULL) - ds.accuracy_oracle.sel(batch=MINI)
    for name, period in zip(NAMES, ds.period.values, strict=True):
        readings = {
            "best": best.sel(period=period),
            "end": apart.sel(period=period).isel(evaluation=-1),
            "largest": np.abs(apart.sel(period=period)).max("evaluation"),
        }
        for reading, values in readings.items():
            ds[f"difference_{reading}_{name}"] = intervals.over_seeds(values)
    return ds


def summary(ds):
    """Return a table of accuracies and their differences, and a sentence on diverged runs."""
    head = [
        "K (full batch)",
        "full batch, best (%)",
        "minibatch, best (%)",
        "difference of the best (points)",
        "difference at the end (points)",
        "largest difference on the way (points)",
    ]
    rows = []
    for name, period in zip(NAMES, ds.period.values, strict=True):
        best = ds.accuracy_oracle.sel(period=period)
        differences = [
            intervals.text(ds[f"difference_{reading}_{name}"], 1)
            for reading in ("best", "end", "largest")
        ]
        accuracies = [tables.interval_text(best.sel(batch=batch)) for batch in (FULL, MINI)]
        rows.append([plotting.period_text(period), *accuracies, *differences])
    diverged = int((ds.diverged_at >= 0).sum())
    return tables.table(head, rows), tables.said(f"Diverged runs: {diverged}.")
