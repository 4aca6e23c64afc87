"""Networks of several widths with one long first period: what it costs, and at what loss."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import merging

from book.beyond.how_long_helpers import cost_of_place


def add_statistics(ds: xr.Dataset) -> xr.Dataset:
    """Return the runs with what the claims are judged by.

    Args:
        ds: Accuracies and training loss of the network over (channels, length, seed, look), looks
            being ends of periods from 0 on and length that of the first period, of which the first
            is that of all others. With the prefix "other_", those of the narrowest network with
            first periods of other lengths, over (other_length, seed, look).
    """
    widths = ds.channels.values
    for prefix in ("", "other_"):
        ds[f"{prefix}fit"] = 100 * ds[f"{prefix}train_accuracy"].isel(look=-1)
        ds[f"{prefix}accuracy"] = 100 * ds[f"{prefix}test_accuracy"].isel(look=-1)
    without = ds.accuracy.isel(length=0, drop=True)
    ds["cost"] = without - ds.accuracy.isel(length=-1, drop=True)
    ds["loss_after"] = ds.train_loss.isel(length=-1, look=1, drop=True)
    ds["other_cost"] = without.isel(channels=0, drop=True) - ds.other_accuracy
    ds["other_loss_after"] = ds.other_train_loss.isel(look=1, drop=True)
    for width in widths:
        ds[f"cost_{width}"] = intervals.over_seeds(ds.cost.sel(channels=width))
    wider = ds.cost.isel(channels=0) - ds.cost.isel(channels=-1)
    ds["wider_costs_less"] = intervals.over_seeds(wider)
    excess = cost_of_place(*(narrow_and_wide(ds, name) for name in ("cost", "loss_after")))
    ds["narrow_at_equal_loss"] = intervals.over_seeds(excess)
    dead = (ds.diverged_at >= 0).any(["channels", "length"])
    dead = dead | (ds.other_diverged_at >= 0).any("other_length")
    lowest = ds.fit.min(["channels", "length"], skipna=False)
    lowest = np.minimum(lowest, ds.other_fit.min("other_length", skipna=False))
    ds["lowest_fit"] = intervals.over_seeds(lowest.where(~dead, 0))
    return ds


def narrow_and_wide(ds: xr.Dataset, name: str) -> xr.DataArray:
    """Return what was seen with all lengths in the narrowest network, then with the long period in
    the widest one, over (place, length, seed) as `cost_of_place` takes them; NaN elsewhere."""
    long = ds[name].isel(channels=[0, -1], drop=True).rename(channels="place")
    other = ds[f"other_{name}"].rename(other_length="length").expand_dims(place=1)
    long = long.expand_dims(length=[ds.length.values[-1]]).drop_vars("place")
    return xr.concat([other.pad(place=(0, 1)), long], "length")


def draw(ds: xr.Dataset) -> None:
    """Draw what a long first period costs by the width, and by the loss right after it."""
    _, (top, bottom) = plotting.panels(2)
    samples = ds.cost.transpose("seed", "channels")
    plotting.points(top, ds.channels.values, samples, ls="", color=plotting.COLOURS[3])
    top.set(xscale="log", xlabel="channels of each convolution")
    top.set_xticks(ds.channels.values, [f"{width}" for width in ds.channels.values], minor=False)
    top.minorticks_off()
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.8, ds.sizes["channels"]))
    for width, colour, marker in zip(ds.channels.values, shades, "osD^v", strict=False):
        at = ds.sel(channels=width)
        style = {"ls": "", "marker": marker, "ms": 5, "color": colour}
        bottom.plot(at.loss_after, at.cost, label=f"{width}", **style)
    seen = [np.ravel(ds[f"other_{name}"]) for name in ("loss_after", "cost")]
    style = {"ls": "", "marker": "o", "ms": 5, "mfc": "none", "mec": shades[0]}
    label = f"{ds.channels.values[0]}, other lengths"
    bottom.plot(*seen, label=label, **style)
    bottom.set(xscale="log", xlabel="training loss right after the first period")
    for axis in (top, bottom):
        axis.axhline(0, color="0.6", lw=0.8, ls=":")
        axis.set_ylabel("test accuracy lost (points)")
    bottom.legend(title="channels", loc="upper left")
    plt.show()


def table(ds: xr.Dataset) -> object:
    """Return a table of what a long first period costs, and of the loss right after it."""
    head = ["channels", "first period", "fit (%)", "test (%)", "lost (points)", "loss right after"]
    text, rows = tables.interval_text, []
    for width in ds.channels.values:
        at = ds.sel(channels=width)
        for length in ds.length.values:
            here = at.sel(length=length)
            lost = text(at.cost) if length == ds.length.values[-1] else "–"
            rows.append([f"{width}", f"{length:,}", text(here.fit), text(here.accuracy), lost])
            rows[-1].append(mean_of(here.train_loss.isel(look=1)))
    other = merging.of(ds, "other")
    for length in other.length.values:
        here = other.sel(length=length)
        row = [f"{ds.channels.values[0]}", f"{length:,}", text(here.fit), text(here.accuracy)]
        rows.append([*row, text(here.cost), mean_of(here.loss_after)])
    return tables.table(head, rows)


def mean_of(losses: xr.DataArray) -> str:
    """Return the geometric mean of those that are known, to two digits; a dash if none is."""
    known = losses.values[np.isfinite(losses.values)]
    return f"{np.exp(np.log(known).mean()):.2g}" if known.size else "–"
