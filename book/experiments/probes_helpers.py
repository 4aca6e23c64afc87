"""The figure, the table and the statistics of the page on linear probes."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import two_periods


def draw(ds):
    """Draw the probes' accuracy in both layers against time."""
    large = float(ds.period.max())
    colours = plotting.colours_by_period([1.0, large])
    _, axes = plotting.panels(2, sharex=True, sharey=True)
    for axis, layer, words in zip(axes, ds.layer.values, ("first", "second"), strict=True):
        for period, colour in zip((1.0, large), colours, strict=True):
            at = ds.probe_accuracy.sel(period=period, layer=layer)
            label = plotting.period_label(period)
            plotting.band(axis, ds.time, at, color=colour, label=label, marker="o", ms=4)
        axis.set(title=f"{words} layer ({layer})", ylabel="test accuracy of the probe (%)")
    axes[1].set(xlabel=r"time, $\sum\eta/(1-\mu)$")
    axes[1].legend(loc="lower right")
    plt.show()


def where_the_filters_are(ds):
    """Return where in training the filters at K = 1 have moved as far as the large period's.

    Returns:
        The fraction of training (seed), and the probe accuracy (seed, layer) of K = 1 there.
    """
    moved, times = ds.filters_moved, ds.time.values
    levels = moved.isel(period=-1, snapshot=-1)

    def reached(curve, level):
        return two_periods.first_reached(curve, level, times)

    def read(fraction, accuracies):
        return np.interp(fraction * times[-1], times, accuracies)

    fraction = xr.apply_ufunc(
        reached, moved.isel(period=0), levels, input_core_dims=[["snapshot"], []], vectorize=True
    )
    accuracies = ds.probe_accuracy.isel(period=0)
    along = [[], ["snapshot"]]
    return fraction, xr.apply_ufunc(
        read, fraction, accuracies, input_core_dims=along, vectorize=True
    )


def add_statistics(ds):
    """Return the probes with what the claims are judged by, each with its interval over seeds.

    Gaps are K = 1 minus the large period, in percentage points: at the end, averaged over training,
    and, as "match", where the filters of K = 1 have moved as far as the large period's at its end.
    """
    gap = ds.probe_accuracy.isel(period=0) - ds.probe_accuracy.isel(period=-1)
    over = gap.assign_coords(snapshot=ds.time.values / ds.time.values[-1])
    large = ds.probe_accuracy.isel(period=-1, snapshot=-1)
    fraction, there = where_the_filters_are(ds)
    ds["fraction_reached"] = intervals.over_seeds(fraction)
    for layer in ds.layer.values:
        final = gap.sel(layer=layer).isel(snapshot=-1)
        area = over.sel(layer=layer).integrate("snapshot")
        ds[f"final_gap_{layer}"] = intervals.over_seeds(final)
        ds[f"area_gap_{layer}"] = intervals.over_seeds(area)
        ds[f"match_{layer}"] = intervals.over_seeds((there - large).sel(layer=layer))
    return ds


def summary(ds):
    """Return a table of the accuracies and gaps of each layer."""
    rows = []
    for layer in ds.layer.values:
        accuracy = ds.probe_accuracy.sel(layer=layer)
        gap = accuracy.sel(period=1) - accuracy.isel(period=-1)
        share = gap.assign_coords(snapshot=ds.time.values / ds.time.values[-1])
        last = accuracy.isel(snapshot=-1)
        rows.append(
            [
                layer,
                tables.interval_text(accuracy.isel(period=0, snapshot=0)),
                tables.interval_text(last.isel(period=0)),
                tables.interval_text(last.isel(period=-1)),
                tables.interval_text(gap.isel(snapshot=-1)),
                tables.interval_text(share.integrate("snapshot")),
            ]
        )
    head = ["layer", "before training (%)", plotting.period_text(1) + " at the end (%)"]
    head += [plotting.period_text(float(ds.period[-1])) + " at the end (%)"]
    return tables.table([*head, "gap at the end (points)", "mean gap (points)"], rows)
