"""The figures, the table and the statistics of the page on the filters."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from iterlin_study.report import intervals, plotting, tables
from iterlin_study.runs import two_periods


def draw(ds):
    """Draw how far the filters have moved, and where K = 1 is as far as the large period ends."""
    large = float(ds.period.max())
    _, axis = plotting.panels(1, height=3.7)
    share = ds.time / ds.time[-1]
    first, second = plotting.colours_by_period([1.0, large])
    for period, colour in ((1.0, first), (large, second)):
        label = plotting.period_label(period)
        plotting.band(axis, share, ds.moved.sel(period=period), color=colour, label=label)
    level = float(ds.moved.sel(period=large).isel(evaluation=-1).mean())
    reached, lower, upper = ds.fraction_reached.values
    axis.plot([0, 1], [level, level], color=second, ls="--", lw=1)
    axis.axvline(reached, color=first, ls="--", lw=1)
    if np.isfinite(lower) and np.isfinite(upper):
        axis.axvspan(max(lower, 0), min(upper, 1), color=first, alpha=0.1, lw=0)
    cifar = ds.attrs["dataset"].startswith("cifar10")
    for value, version in ((0.2, "2025"), (0.1, "arXiv 2023")) if cifar else ():
        axis.axvline(value, color="0.4", ls=":", lw=1)
        style = {"color": "0.3", "rotation": 90, "ha": "right", "va": "top"}
        place = axis.get_xaxis_transform()
        axis.text(value, 1.0, f"the paper, {version}", transform=place, **style)
    axis.set(xlabel="fraction of training", ylabel=r"$\|W_t - W_0\| \,/\, \|W_0\|$")
    axis.set(xlim=(0, 1), ylim=(0, None))
    axis.legend(loc="lower right")
    plt.show()


def draw_filters(ds):
    """Draw the changes of three filters, a row for each filter and period."""
    large = float(ds.period.max())
    count = ds.sizes["column"]
    fig, axes = plotting.panels(6, count, height=0.85, squeeze=False)
    for row, column in np.ndindex(6, count):
        which, period = divmod(row, 2)
        axis = axes[row, column]
        image = np.clip(ds.filters.values[period, column, ..., which] + 0.5, 0, 1)
        grey = image.shape[-1] == 1
        axis.imshow(image[..., 0] if grey else image, cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        if column == 0:
            label = plotting.period_label((1.0, large)[period])
            text = f"filter {which + 1}\n{label}"
            axis.set_ylabel(text, rotation=0, ha="right", va="center")
        if row == 0:
            axis.set_title(f"{float(ds.column_time[column]):.3g}")
    fig.suptitle(r"time, $\sum\eta/(1-\mu)$")
    plt.show()


def measured(weights, times, num_columns):
    """Return how the filters change, as a data set.

    Args:
        weights: of the first convolution (2 periods, seed, evaluation, k, k, colours, filters).
        times: of the evaluations.
        num_columns: times after the start at which the picture shows the first seed's filters.

    Returns:
        "moved": the change relative to the start. "cosine": between the changes of the two periods
        at the end. "fraction": of training at which K = 1 has moved as far as the large period
        does in all of it. "filters": the changes of three filters at the times "column_time".
    """
    change = weights - weights[:, :, :1]
    moved = two_periods.moved(weights)
    last = change[:, :, -1].reshape(2, weights.shape[1], -1)
    cosine = (last[0] * last[1]).sum(-1) / np.prod(np.linalg.norm(last, axis=-1), axis=0)
    fraction = [
        two_periods.first_reached(first, large[-1], times)
        for first, large in zip(*moved, strict=True)
    ]
    columns = np.linspace(0, len(times) - 1, num_columns + 1).round().astype(int)[1:]
    shown = change[:, 0][:, columns][..., :3].astype(np.float32)
    return xr.Dataset(
        {
            "moved": (("period", "seed", "evaluation"), moved),
            "time": ("evaluation", times),
            "cosine": ("seed", cosine),
            "fraction": ("seed", fraction),
            "filters": (("period", "column", "row", "across", "colour", "filter"), shown),
            "column_time": ("column", times[columns]),
        }
    )


def add_statistics(ds):
    """Return the runs with what the claims are judged by, each with its interval over seeds."""
    first, large = (ds.moved.isel(evaluation=-1, period=place) for place in (0, -1))
    ds["change_ratio"] = intervals.over_seeds(large / first)
    ds["fraction_reached"] = intervals.over_seeds(ds.fraction)
    ds["cosine_final"] = intervals.over_seeds(ds.cosine)
    return ds


def summary(ds):
    """Return a table of the changes, their ratio and cosine, and the fraction."""
    last = ds.moved.isel(evaluation=-1)
    one, other = last.isel(period=0), last.isel(period=-1)
    rows = [
        [f"relative change at the end, {plotting.period_text(1)}", tables.interval_text(one, 3)],
        [
            f"relative change at the end, {plotting.period_text(float(ds.period[-1]))}",
            tables.interval_text(other, 3),
        ],
        ["ratio of the second to the first", tables.interval_text(other / one, 2)],
        ["cosine between the final changes", tables.interval_text(ds.cosine, 2)],
        [
            "fraction of training at which K = 1 has moved as far (1: never)",
            tables.interval_text(ds.fraction, 2),
        ],
    ]
    return tables.table(["of all filters of the first convolution", "mean over seeds"], rows)
