"""The figure, the table and the statistics of the page on the width of the network."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping, merging
from matplotlib.ticker import MaxNLocator

KEPT = ["step", "updates", "train_accuracy", "train_loss", "test_accuracy", "test_accuracy_proxy"]
KEPT += ["diverged_at"]


def merged(flows, frozen, descent):
    """Return what is kept of the three grids in one data set, for one size of the training set."""
    grids = {"flow": flows, "lazy": frozen, "sgd": descent}
    kept = {name: ds.isel(size=0, drop=True)[KEPT] for name, ds in grids.items()}
    return xr.merge([merging.named(ds, name, ["evaluation"]) for name, ds in kept.items()])


def add_statistics(ds, few, long):
    """Return the runs with how they end and with the statistics of the claims.

    Gaps are SGD minus the others, in percentage points of test accuracy. few and long: the times of
    a period that the claims are about.
    """
    flows, frozen, descent = (merging.of(ds, name) for name in ("flow", "lazy", "sgd"))
    last = {"evaluation": -1}
    ds["accuracy"] = 100 * flows.test_accuracy.isel(last)
    ds["sgd_accuracy"] = 100 * descent.test_accuracy.isel(last)
    ds["lazy_accuracy"] = 100 * frozen.test_accuracy_proxy.isel(last)
    ds["fit"] = 100 * flows.train_accuracy.isel(last)
    ds["sgd_fit"] = 100 * descent.train_accuracy.isel(last)
    ds["taken"] = flows.updates.isel(last)
    matched = 100 * early_stopping.at_loss(descent, flows.train_loss.isel(last))
    for name, time in (("few", few), ("long", long)):
        at = {"time": time}
        ds[f"{name}_gap"] = intervals.over_seeds(ds.sgd_accuracy - ds.accuracy.sel(at))
        ds[f"{name}_gap_matched"] = intervals.over_seeds(matched.sel(at) - ds.accuracy.sel(at))
        ds[f"{name}_fit"] = intervals.over_seeds(ds.fit.sel(at))
        ds[f"{name}_taken"] = intervals.over_seeds(ds.taken.sel(at))
    ds["lazy_gap"] = intervals.over_seeds(ds.sgd_accuracy - ds.lazy_accuracy)
    ds["first_fit"] = intervals.over_seeds(ds.sgd_fit)
    return ds


def draw(ds):
    """Draw test accuracy against feature updates, with SGD and one linearisation at their ends."""
    first, *colours = plotting.colours_by_period([1, *ds.time.values])
    _, axis = plotting.panels(1)
    for name, label, colour in (
        ("sgd", "SGD, at its end", first),
        ("lazy", r"$K=\infty$, at its end", "0.5"),
    ):
        found = intervals.mean_interval(ds[f"{name}_accuracy"])
        plotting.span(axis, found, color=colour, alpha=0.25, lw=0, label=label)
    for time, colour in zip(ds.time.values, colours, strict=True):
        at = ds.sel(time=time)
        curve = 100 * at.flow_test_accuracy.transpose("seed", "flow_evaluation")[:, 1:]
        style = {"color": colour, "marker": ".", "label": rf"$\tau={time:g}$"}
        plotting.band(axis, at.flow_updates.mean("seed")[1:], curve, **style)
    axis.set(xlabel="feature updates", ylabel="test accuracy (%)")
    highest = float(ds.sgd_accuracy.mean())
    if np.isfinite(highest):  # a partial record may have no run of SGD
        axis.set_ylim(0, 1.3 * highest)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="lower right", ncols=2)
    plt.show()


def table(ds, narrow=None):
    """Return a table of how the runs end, beside the same runs of the narrow network if given."""
    head = ["network", "run", "updates", "fit (%)", "test (%)", "below SGD"]
    rows, text = [], tables.interval_text
    for label, runs in (("this one", ds), ("8 channels", narrow)):
        if runs is None:
            continue
        rows.append([label, "K = 1 (SGD)", "–", text(runs.sgd_fit), text(runs.sgd_accuracy), "–"])
        for time in ds.time.values:
            at = runs.sel(time=time)
            row = [label, f"τ = {time:g}", text(at.taken), text(at.fit), text(at.accuracy)]
            rows.append([*row, text(runs.sgd_accuracy - at.accuracy)])
        row = [label, "K = ∞ (proxy)", 0, "–", text(runs.lazy_accuracy)]
        rows.append([*row, text(runs.sgd_accuracy - runs.lazy_accuracy)])
    return tables.table(head, rows)
