"""The figure, the tables and the statistics of the page on solving each linearisation."""

import matplotlib.pyplot as plt
import numpy as np
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import early_stopping

SGD, ADAM, FIXED, STOPPED = "SGD, K = 1", "Adam, K = 1", "solved, fixed period", "solved, stopped"


def draw(ds):
    """Draw accuracies of the four solvers against steps and against linearisations."""
    colours = dict(zip((SGD, ADAM, FIXED, STOPPED), plotting.COLOURS, strict=False))
    _, (top, middle, bottom) = plotting.panels(3)
    for solver, colour in colours.items():
        at = ds.sel(solver=solver)
        left_x = at.step.isel(seed=0)
        plotting.band(top, left_x / 1000, 100 * at.test_accuracy, color=colour, label=solver)
        for seed in at.seed.values:
            one = at.sel(seed=seed)
            middle.plot(1 + one.updates, 100 * one.test_accuracy, color=colour, lw=1)
    at = ds.sel(solver=FIXED)
    x = at.step.isel(seed=0) / 1000
    plotting.band(bottom, x, 100 * at.train_accuracy, color=colours[FIXED], label="network")
    proxy = 100 * at.train_accuracy_proxy
    plotting.band(bottom, x, proxy, color=colours[FIXED], ls="--", lw=1.2, label="proxy")
    for update in np.arange(ds.attrs["period"], float(at.step.max()), ds.attrs["period"]):
        bottom.axvline(update / 1000, color="0.85", lw=0.8, zorder=0)
    if ds.attrs["dataset"].startswith("cifar10"):
        for value, solver in ((69.4, SGD), (60.3, FIXED)):
            top.axhline(value, color=colours[solver], ls=":", lw=1)
        top.text(0, 70, "the paper, all 50,000 images", color="0.3", va="bottom")
    top.set(xlabel="steps (thousands)", ylabel="test accuracy (%)")
    middle.set(xlabel="linearisations", xscale="log", ylabel="test accuracy (%)")
    bottom.set(xlabel="steps (thousands)", ylabel="training accuracy (%)", title="fixed period")
    for axis in (top, middle, bottom):
        axis.set_ylim(0, 104)
    top.legend(loc="center right")
    bottom.legend(loc="lower right")
    plt.show()


def add_statistics(ds, readings_per_period):
    """Return the runs with what the claims are judged by, each with its interval over seeds.

    A gap is the accuracy of either optimiser at K = 1 minus that with solved linearisations, in
    percentage points.
    """
    ds = early_stopping.add_accuracies(ds)
    for reading in early_stopping.READINGS:
        accuracy = ds[f"accuracy_{reading}"]
        for name, base in (("sgd", SGD), ("adam", ADAM)):
            for rule, solver in (("fixed", FIXED), ("stopped", STOPPED)):
                gap = accuracy.sel(solver=base) - accuracy.sel(solver=solver)
                ds[f"gap_{name}_{rule}_{reading}"] = intervals.over_seeds(gap)
    # Share of the linearisations at whose end the proxy classifies all recorded training examples.
    ends = ds.train_accuracy_proxy.isel(
        evaluation=slice(readings_per_period, None, readings_per_period)
    )
    ends = ends.sel(solver=FIXED)
    share = (ends >= 1).where(np.isfinite(ends)).mean("evaluation")
    ds["solved_share"] = intervals.over_seeds(share)
    return ds


def summary(ds):
    """Return a table of how the runs end, one of what the full solve costs, and a sentence."""
    costs = []
    for name, base in (("sgd", SGD), ("adam", ADAM)):
        for rule, solver in (("fixed", FIXED), ("stopped", STOPPED)):
            cells = [
                intervals.text(ds[f"gap_{name}_{rule}_{reading}"], 1)
                for reading in early_stopping.READINGS
            ]
            costs.append([f"{base} minus {solver}", *cells])
    head = ["difference (points)", "best on the test set", "chosen by validation"]
    share = float(ds.solved_share[0])
    return (
        tables.readings(ds, axis="solver", label=str),
        tables.table(head, costs),
        tables.said(
            f"With the fixed period the proxy ended {share:.0%} of its linearisations at "
            "100 % training accuracy."
        ),
    )
