"""The figure and the statistics of the page on few updates."""

import math

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.report.derived import problems_of
from iterlin_study.runs import early_stopping


def sharpness(ds, at):
    """Return step size times curvature over 1 + momentum, of the runs at one period."""
    halvings = np.searchsorted(np.round(np.atleast_1d(ds.attrs["halve_after"]), 6), problems_of(ds))
    step = ds.attrs["step_size"] * 0.5**halvings / (1 + ds.attrs["momentum"])
    return at.curvature * xr.DataArray(step, dims="evaluation")


def draw(ds):
    """Draw accuracy against time and fit, and the sharpness against its stability boundary."""
    large = float(ds.period.max())
    first, second, third = plotting.colours_by_period([1.0, large, math.inf])
    _, (top, middle, bottom) = plotting.panels(3)
    for value, colour in ((1.0, first), (large, second)):
        at = ds.sel(period=value)
        label = plotting.period_label(value)
        accuracy = 100 * at.test_accuracy
        plotting.band(top, at.time, accuracy, color=colour, label=f"{label}, network")
        for seed in at.seed.values:
            one = at.sel(seed=seed)
            middle.plot(
                100 * one.train_accuracy, 100 * one.test_accuracy, ".-", color=colour, lw=0.8
            )
        if value > 1:
            proxy = 100 * at.test_accuracy_proxy
            plotting.band(
                top, at.time, proxy, color=colour, ls="--", lw=1.2, label=f"{label}, proxy"
            )
            done = problems_of(ds)
            for update in at.time.values[(done % 1 == 0) & (done > 0)][:-1]:
                top.axvline(update, color="0.85", lw=0.8, zorder=0)
        plotting.band(bottom, at.time, sharpness(ds, at), geometric=True, color=colour, label=label)
    never = 100 * ds.lazy_test_accuracy_proxy
    plotting.band(top, ds.lazy_time, never, color=third, label=plotting.period_label(math.inf))
    fits = 100 * ds.lazy_train_accuracy_proxy
    middle.plot(fits.values.T, never.values.T, ".-", color=third, lw=0.8)
    if ds.attrs["dataset"].startswith("cifar10"):
        for value, colour in ((82.3, first), (81.4, second)):
            top.axhline(value, color=colour, ls=":", lw=1)
        top.text(0, 82.6, "the paper, 50 channels", color="0.3", va="bottom")
    bottom.axhline(2, color="0.4", ls=":", lw=1.2, label="stability boundary")
    time_label = r"time, $\sum\eta/(1-\mu)$"
    top.set(xlabel=time_label, ylabel="test accuracy (%)")
    middle.set(xlabel="training accuracy (%)", ylabel="test accuracy (%)")
    bottom.set(
        xlabel=time_label, ylabel=r"$\eta\,\lambda_{\max}(J^\top H J)/(1+\mu)$", yscale="log"
    )
    top.legend(loc="lower right")
    bottom.legend(loc="best")
    plt.show()


def add_statistics(ds):
    """Return the runs with what the claims are judged by, each with its interval over seeds.

    A gap is K = 1 minus the large period, in percentage points: at the end, at the training loss
    that the large period ends with, and at either reading. The share is that of the way from
    K = infinity to K = 1.
    """
    first, large = ds.isel(period=0), ds.isel(period=-1)
    few, every = (100 * each.test_accuracy.isel(evaluation=-1) for each in (large, first))
    none = 100 * ds.lazy_test_accuracy_proxy.isel(lazy_evaluation=-1)
    ds["gap_end"] = intervals.over_seeds(every - few)
    matched = 100 * early_stopping.at_loss(first, large.train_loss.isel(evaluation=-1))
    ds["gap_matched"] = intervals.over_seeds(matched - few)
    ds = early_stopping.add_accuracies(ds)
    for name in early_stopping.READINGS:
        accuracy = ds[f"accuracy_{name}"]
        gap = accuracy.isel(period=0) - accuracy.isel(period=-1)
        ds[f"gap_{name}"] = intervals.over_seeds(gap)
    ds["share"] = intervals.over_seeds((few - none) / (every - none))
    ds["final_updates"] = intervals.over_seeds(large.updates.isel(evaluation=-1))
    return ds


def halvings_table(ds):
    """Return a table of how loss and accuracy change around each halving of the step."""
    head = ["halving after problem", "run", "loss, two problems before"]
    head += ["loss, to the next look", "test accuracy, to the next look (points)"]
    done, rows = problems_of(ds), []
    for problems in np.atleast_1d(ds.attrs["halve_after"]):
        before, at = (int(np.argmin(abs(done - place))) for place in (problems - 2, problems))
        for value in ds.period.values[::-1]:
            one = ds.sel(period=value)
            loss, accuracy = one.train_loss, 100 * one.test_accuracy
            changes = [loss[:, at] - loss[:, before], loss[:, at + 1] - loss[:, at]]
            changes.append(accuracy[:, at + 1] - accuracy[:, at])
            texts = [intervals.text(intervals.mean_interval(change)) for change in changes]
            rows.append([f"{problems:g}", plotting.period_text(value), *texts])
    return tables.table(head, rows)
