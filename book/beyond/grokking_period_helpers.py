"""The longest period with which a network that adds modulo p generalises, and its exponent."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import merging

from book.beyond.grokking_helpers import LEVEL

KEPT = ["step", "train_accuracy", "train_accuracy_proxy", "test_accuracy"]
KEPT += ["test_accuracy_proxy", "diverged_at"]


def periods(shortest: float, ratio: float, number: int, unit: float) -> list[int]:
    """Return periods in steps, each longer than the one before by the ratio.

    The shortest is given in decay times of `unit` steps.

    >>> periods(0.5, 2.0, 3, 100)
    [50, 100, 200]
    """
    return [max(1, round(shortest * ratio**place * unit)) for place in range(number)]


def edges(test_accuracy: xr.DataArray, period: xr.DataArray) -> xr.Dataset:
    """Return the longest period with which each run's network generalises.

    Args:
        test_accuracy: Of the network at the ends of its periods, over "place" and "look".
        period: Increasing over "place".

    Returns:
        "low", the longest period that generalises, 0 if none does; "high", the next longer one that
        was tried, infinity if the longest generalises; and "edge", where the best accuracy of a run
        crosses `LEVEL` between both, interpolated over the logarithm of the period. Outside the
        grid the edge is NaN.
    """
    best = test_accuracy.max("look")
    reached = best >= LEVEL
    low = period.where(reached).max("place").fillna(0)
    high = period.where(period > low).min("place").fillna(np.inf)
    above, below = (best.where(period == end).max("place") for end in (low, high))
    share = (above - LEVEL) / (above - below)
    inside = (low > 0) & np.isfinite(high)
    edge = low.where(inside) * (high / low.where(inside)) ** share
    return xr.Dataset({"low": low, "high": high, "edge": edge})


def exponents(found: xr.Dataset) -> tuple[xr.DataArray, np.ndarray]:
    """Return the exponent of the longest period over the weight decay.

    Args:
        found: `edges` over "decay" and "seed".

    Returns:
        The least-squares slope through the edges of each seed, NaN if one of them is outside the
        grid; and the mean slope with the limits of an interval over seeds that allows each edge to
        be anywhere between its "low" and its "high". The interval is the whole line if an edge is
        outside the grid.
    """
    slopes = intervals.slope_per_decade(np.log10(found.edge), "decay")
    if slopes.isnull().any():
        return slopes, np.array([0.0, -np.inf, np.inf])
    decades = np.log10(found.decay)
    rising = decades > decades.mean()
    steepest = np.log10(xr.where(rising, found.low, found.high))
    flattest = np.log10(xr.where(rising, found.high, found.low))
    lower, upper = (
        intervals.mean_interval(intervals.slope_per_decade(ends, "decay"))
        for ends in (steepest, flattest)
    )
    return slopes, np.array([float(slopes.mean()), float(lower.lower), float(upper.upper)])


def add_statistics(ds: xr.Dataset, step_size: float) -> xr.Dataset:
    """Return the runs with what the claims are judged by.

    Args:
        ds: Runs over (decay, place, seed, look), decays increasing, with "period" over (decay,
            place); those with scaled weights and logits as "scaled_..." over (scaled_decay, place,
            seed, look).
        step_size: Step size of the runs whose decay alone differs.
    """
    ds["decay_time"] = 1 / (step_size * ds.decay)
    scaled = merging.of(ds, "scaled")
    found, scaled_found = (edges(part.test_accuracy, part.period) for part in (ds, scaled))
    for name in found:
        ds[f"{name}_period"] = found[name]
        ds[f"scaled_{name}_period"] = scaled_found[name].rename(decay="scaled_decay")
    slopes, cells = exponents(found)
    ds["decay_off"], ds["decay_off_cells"] = over_all_seeds(slopes + 1), ("bound", cells + 1)
    (low, _), (high, _) = (exponents(found.isel(decay=two)) for two in ([0, 1], [-2, -1]))
    ds["low_off"] = over_all_seeds(low + 1)
    ds["low_minus_high"] = over_all_seeds(low - high)
    scaled_slopes, cells = exponents(scaled_found)
    ds["scaled_off"] = over_all_seeds(scaled_slopes + 1)
    ds["scaled_off_cells"] = "bound", cells + 1
    same, _ = exponents(found.sel(decay=scaled.decay))
    ds["scaled_minus_decay"] = over_all_seeds(scaled_slopes - same)
    fits = [
        100 * part.train_accuracy_proxy.max("look").min(["decay", "place"]) for part in (ds, scaled)
    ]
    ds["all_fit"] = intervals.over_seeds(np.minimum(*fits))
    return ds


def over_all_seeds(samples: xr.DataArray) -> tuple[str, np.ndarray]:
    """Return `intervals.over_seeds`; if a seed lacks a value, 0 with an interval without limits."""
    if samples.isnull().any():
        return "bound", np.array([0.0, -np.inf, np.inf])
    return intervals.over_seeds(samples)


def draw(ds: xr.Dataset) -> None:
    """Draw the longest periods over the weight decay, in steps and in decay times."""
    _, axes = plotting.panels(2, height=2.9)
    for (label, part), colour, marker in zip(arms(ds), plotting.COLOURS, "os", strict=False):
        steps = part.edge_period.transpose("seed", "decay")
        style = {"color": colour, "marker": marker, "label": label}
        for axis, values in zip(axes, (steps, steps / ds.decay_time), strict=True):
            plotting.points(axis, part.decay.values, values, **style)
    decay, at_one = ds.decay.values, float(ds.edge_period.sel(decay=1).mean())
    axes[0].plot(decay, at_one / decay, color="gray", ls=":", label=r"proportional to $1/\lambda$")
    axes[0].set(yscale="log", ylabel="longest period (steps)")
    ticks = [steps for steps in (250, 500, 1000, 2000) if steps < 1.3 * at_one / decay.min()]
    axes[0].set_yticks(ticks, map(str, ticks))
    axes[1].set(ylabel="longest period (decay times)", xlabel=r"weight decay $\lambda$")
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xticks(decay, [f"{value:g}" for value in decay])
        axis.minorticks_off()
    axes[0].legend()
    plt.show()


def arms(ds: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """Return the runs with decay alone and those with scaled weights and logits, with labels."""
    return [
        ("decay alone", ds),
        ("weights and logits scaled with it", merging.of(ds, "scaled")),
    ]


def table(ds: xr.Dataset) -> object:
    """Return a table of how many runs generalise with each period."""
    head = ["runs", "weight decay", "period (steps)", "period (decay times)", "that generalise"]
    head += ["updates until then", "best test accuracy (%)"]
    rows = []
    for label, part in arms(ds):
        for decay, place in itertools.product(part.decay.values, part.place.values):
            runs = part.sel(decay=decay, place=place)
            there = runs.test_accuracy >= LEVEL
            first = there.argmax("look").where(there.any("look"))
            times = float(runs.period / ds.decay_time.sel(decay=decay))
            count = f"{int(there.any('look').sum())} of {ds.sizes['seed']}"
            rows.append([label, f"{decay:g}", int(runs.period), f"{times:.2f}", count])
            best = 100 * runs.test_accuracy.max("look")
            rows[-1] += [tables.interval_text(first, 0), tables.interval_text(best, 0)]
    return tables.table(head, rows)
