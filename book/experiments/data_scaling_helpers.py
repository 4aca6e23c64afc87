"""The figure, the table and the statistics of the page on scaling with data."""

import matplotlib.pyplot as plt
import numpy as np
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping, merging

KEPT = ["updates", "test_accuracy", "test_accuracy_proxy", "diverged_at"]


def draw(ds):
    """Draw test accuracy against the size of the training set, at either reading."""
    small_eta, large_eta = ds.attrs["step_size"], ds.attrs["large_step_size"]
    every_period = ds.period.values
    with_infinity = [*every_period, np.inf]
    colours = dict(zip(with_infinity, plotting.colours_by_period(with_infinity), strict=True))
    _, (top, bottom) = plotting.panels(2, sharey=True)

    def readings(axis, prefix, select, colour, label, marker="o"):
        for name, line, face in (("oracle", "-", colour), ("validated", "--", "white")):
            accuracy = ds[f"{prefix}accuracy_{name}"].sel(select).transpose("seed", "size")
            plotting.points(
                axis,
                ds["size"].values,
                accuracy,
                color=colour,
                ls=line,
                marker=marker,
                markerfacecolor=face,
                label=label if name == "oracle" else None,
                lw=1.8 if name == "oracle" else 1.0,
            )

    label = rf"$K=\infty$, $\eta={large_eta:g}$"
    readings(top, "large_", {"large_period": np.inf}, colours[np.inf], label)
    label = rf"$K=1$, $\eta={large_eta:g}$"
    readings(top, "large_", {"large_period": 1}, plotting.COLOURS[1], label, "s")
    readings(top, "", {"period": 1}, colours[1], rf"$K=1$, $\eta={small_eta:g}$")
    for period in every_period:
        label = rf"{plotting.period_label(period)}, $\eta={small_eta:g}$"
        readings(bottom, "", {"period": period}, colours[period], label)
    for axis in (top, bottom):
        axis.set(xscale="log", xlabel="training examples")
        axis.set_xticks(ds["size"].values, [f"{size:,}" for size in ds["size"].values])
        axis.minorticks_off()
        axis.set_ylabel("test accuracy (%)")
        axis.legend(loc="best")
    plt.show()


def merged(small, large):
    """Return the runs at both step sizes in one data set, with their test accuracies in percent."""
    ds, at_large = small[KEPT].copy(), large[KEPT].copy()
    for name, read in early_stopping.READINGS.items():
        ds[f"accuracy_{name}"] = 100 * read(small)
        at_large[f"accuracy_{name}"] = 100 * read(large)
    return ds.merge(merging.named(at_large, "large", ["period"]))


def add_statistics(ds):
    """Return the runs with what the claims are judged by, with intervals.

    A slope is in percentage points of test accuracy per factor of ten in data: at the larger step
    size that of K = infinity minus that of K = 1, at the smaller that of the finite period which
    differs most from K = 1, minus that of K = 1.
    """
    for name in early_stopping.READINGS:
        finite = intervals.slope_per_decade(ds[f"accuracy_{name}"], "size")
        steep = intervals.slope_per_decade(ds[f"large_accuracy_{name}"], "size")
        ds[f"slope_{name}"], ds[f"large_slope_{name}"] = finite, steep
        lazy = steep.sel(large_period=np.inf) - steep.sel(large_period=1)
        ds[f"lazy_slope_{name}"] = intervals.over_seeds(lazy)
        apart = (finite - finite.sel(period=1)).isel(period=slice(1, None))
        worst = int(abs(apart.mean("seed")).fillna(-1).argmax("period"))
        ds[f"finite_slope_{name}"] = intervals.over_seeds(apart.isel(period=worst))
    return ds


def slopes(ds):
    """Return a table of the slopes, and of the accuracies on the largest training set."""
    head = ["run", "step size", "slope, best on the test set (points per decade)"]
    head += ["slope, chosen by validation", "accuracy, best on the test set (%)"]
    head += ["chosen by validation (%)", "feature updates", "diverged, all sizes"]
    rows, names = [], list(early_stopping.READINGS)
    largest = ds["size"].values.max()
    for prefix, axis, eta in (
        ("", "period", ds.attrs["step_size"]),
        ("large_", "large_period", ds.attrs["large_step_size"]),
    ):
        for period in ds[axis].values:
            at = ds.sel({axis: period})
            end = at.sel(size=largest)
            row = [plotting.period_text(period), f"{eta:g}"]
            row += [tables.interval_text(at[f"{prefix}slope_{name}"]) for name in names]
            row += [tables.interval_text(end[f"{prefix}accuracy_{name}"]) for name in names]
            updates = float(end[f"{prefix}updates"].isel(evaluation=-1).mean())
            row += [f"{updates:.0f}" if np.isfinite(updates) else "–"]
            rows.append([*row, int((at[f"{prefix}diverged_at"] >= 0).sum())])
    return tables.table(head, rows)
