"""Runs whose first full solves are damped: what they lose against runs of short periods."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables


def add_statistics(ds: xr.Dataset) -> xr.Dataset:
    """Return the runs with what the claims are judged by.

    Args:
        ds: Accuracies and training loss of the network over (damped, seed, look), looks being ends
            of periods from 1 on; with the prefix "short_", those of runs of short periods over
            (seed, look).
    """
    for prefix in ("", "short_"):
        for name, of in (("fit", "train_accuracy"), ("accuracy", "test_accuracy")):
            ds[prefix + name] = 100 * ds[prefix + of].isel(look=-1)
    ds["cost"] = ds.short_accuracy - ds.accuracy
    for count in ds.damped.values:
        cost = ds.cost.sel(damped=count)
        ds[f"cost_{count}"] = intervals.over_seeds(cost)
        ds[f"half_minus_{count}"] = intervals.over_seeds(ds.cost.sel(damped=0) / 2 - cost)
    ds["lowest_fit"] = intervals.over_seeds(np.minimum(ds.fit.min("damped"), ds.short_fit))
    return ds


def draw(ds: xr.Dataset) -> None:
    """Draw test accuracy at the end, and the loss after each period, by the number of solves that
    are damped."""
    _, (top, bottom) = plotting.panels(2)
    short = intervals.mean_interval(ds.short_accuracy)
    plotting.span(top, short, color="0.5", alpha=0.25, lw=0, label="short periods")
    top.axhline(short.estimate, color="0.5", lw=1)
    places, shades = np.arange(ds.sizes["damped"]), plotting.colours_by_period(ds.damped.values + 1)
    samples = ds.accuracy.transpose("seed", "damped")
    plotting.points(top, places, samples, ls="", color=plotting.COLOURS[3])
    top.set_xticks(places, ds.damped.values)
    top.set(xlabel="solves that are damped, from the first on", ylabel="test accuracy (%)")
    top.legend(loc="lower right")
    looks = ds.look.values
    for count, colour in zip(ds.damped.values, shades, strict=True):
        losses = ds.train_loss.sel(damped=count).transpose("seed", "look")
        plotting.band(bottom, looks, losses, geometric=True, color=colour, label=f"{count}")
    losses = ds.short_train_loss.transpose("seed", "look")
    style = {"color": "0.5", "ls": "--", "label": "short periods"}
    plotting.band(bottom, looks, losses, geometric=True, **style)
    bottom.set(yscale="log", xlabel="period", ylabel="training loss after the period")
    bottom.set_xticks(looks)
    bottom.legend(title="damped", ncols=2)
    plt.show()


def table(ds: xr.Dataset) -> object:
    """Return a table of what each run ends with, and what it loses against short periods."""
    text = tables.interval_text
    head = [
        "solves that are damped",
        "fit (%)",
        "test (%)",
        "lost (points)",
        "loss after the first",
    ]
    rows = [["short periods", text(ds.short_fit), text(ds.short_accuracy), "–"]]
    rows[0].append(text(ds.short_train_loss.isel(look=0)))
    for count in ds.damped.values:
        at = ds.sel(damped=count)
        first = at.train_loss.isel(look=0)
        rows.append([f"{count}", text(at.fit), text(at.accuracy), text(at.cost), text(first)])
    return tables.table(head, rows)
