"""Runs with one long period, of several lengths at several places: what it costs, and what its
place alone costs."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables

# What is seen right after a long period, and might tell what it costs.
SEEN = ("loss", "moved")


def add_statistics(ds: xr.Dataset) -> xr.Dataset:
    """Return the runs with what the claims are judged by.

    Args:
        ds: Accuracies, training loss of the network, and how far the filters have moved since the
            look before ("moved"), over (place, length, seed, look), looks being ends of periods
            from 0 on; with the prefix "short_", those of runs of short periods over (seed, look).
    """
    for prefix in ("", "short_"):
        for name, of in (("fit", "train_accuracy"), ("accuracy", "test_accuracy")):
            ds[prefix + name] = 100 * ds[prefix + of].isel(look=-1)
    ds["cost"] = ds.short_accuracy - ds.accuracy
    ds["loss_after"] = ds.train_loss.sel(look=ds.place)
    ds["moved_after"] = ds.moved.sel(look=ds.place)
    for place in ds.place.values:
        for length in ds.length.values:
            cost = ds.cost.sel(place=place, length=length)
            ds[f"cost_{place}_{length}"] = intervals.over_seeds(cost)
    for name in SEEN:
        excess = cost_of_place(ds.cost, ds[f"{name}_after"])
        ds[f"place_at_equal_{name}"] = intervals.over_seeds(excess)
    lowest = ds.fit.where(~(ds.diverged_at >= 0), 0).min(["place", "length"], skipna=False)
    ds["lowest_fit"] = intervals.over_seeds(np.minimum(lowest, ds.short_fit))
    return ds


def cost_of_place(cost: xr.DataArray, seen: xr.DataArray) -> np.ndarray:
    """Return how much more a long period costs at the first place than at the second, for each
    seed, where the same was seen right after it.

    The cost at the first place is interpolated linearly in the logarithm of what was seen, from its
    lengths to what was seen at the second place. The result is the mean over the lengths at the
    second place for which it lies between those of the first; NaN if there is none.
    """
    found = []
    costs, values = (each.transpose("seed", "place", "length").values for each in (cost, seen))
    for (first, second, *_), (here, there, *_) in zip(costs, np.log(values), strict=True):
        order = np.argsort(here)
        at_first = np.interp(there, here[order], first[order], left=np.nan, right=np.nan)
        excess = at_first - second
        known = excess[np.isfinite(excess)]
        found.append(known.mean() if known.size else np.nan)
    return np.array(found)


def draw(ds: xr.Dataset) -> None:
    """Draw what a long period costs by its length, and by the loss right after it."""
    _, (top, bottom) = plotting.panels(2)
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.8, ds.sizes["place"]))
    for place, colour, marker in zip(ds.place.values, shades, "osD^v", strict=False):
        at, style = ds.sel(place=place), {"color": colour, "marker": marker}
        samples = at.cost.transpose("seed", "length")
        plotting.points(top, ds.length.values, samples, label=f"{place}", **style)
        seen = at.loss_after.transpose("seed", "length")
        bottom.plot(np.ravel(seen), np.ravel(samples), ls="", ms=5, label=f"{place}", **style)
    for axis in (top, bottom):
        axis.axhline(0, color="0.6", lw=0.8, ls=":")
        axis.set(xscale="log", ylabel="test accuracy lost (points)")
        axis.legend(title="place", loc="upper left")
    top.set_xlabel(r"length of the long period ($\tau=\eta K$)")
    bottom.set_xlabel("training loss right after the long period")
    plt.show()


def table(ds: xr.Dataset) -> object:
    """Return a table of what a long period costs, and of what is seen right after it."""
    head = ["place", "length", "fit (%)", "test (%)", "lost (points)"]
    head += ["loss right after", "filters moved within it"]
    text = tables.interval_text
    rows = [["none", "–", text(ds.short_fit), text(ds.short_accuracy), "–", "–", "–"]]
    for place in ds.place.values:
        for length in ds.length.values:
            at = ds.sel(place=place, length=length)
            known = at.loss_after.values[np.isfinite(at.loss_after.values)]
            loss = f"{np.exp(np.log(known).mean()):.2g}" if known.size else "–"
            row = [f"{place}", f"{length:,}", text(at.fit), text(at.accuracy), text(at.cost), loss]
            rows.append([*row, text(at.moved_after, 2)])
    return tables.table(head, rows)
