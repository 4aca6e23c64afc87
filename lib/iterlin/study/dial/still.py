"""The dial's runs in one picture, for pages that are read without a script."""

from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from iterlin.study import plotting
from iterlin.study.dial.scale import Track, View, quantity

# What can be drawn for all places of the dial at once.
ALONG = {"alignment": ("mean", "mean alignment"), "errors": ("median", "test error (RMSE)")}


def shown(views: Sequence[View]) -> Iterator[tuple[View, Track]]:
    """The views that the picture has a panel for, with the track that it shows."""
    for view in views:
        if view.kind in ALONG or view.kind == "curves":
            yield view, next(iter(view.tracks.values()))


def draw(views: Sequence[View]) -> Figure:
    """A panel for each of the views that have one."""
    plotting.use_style()
    panels = list(shown(views))
    columns = min(3, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    size = (3.7 * columns, 3.2 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (view, track) in zip(axes.flat, panels, strict=False):
        axis.set_title(view.title, fontsize="x-small")
        (_curves if view.kind == "curves" else _along)(axis, view, track)
    return figure


def close(figure: Figure) -> None:
    """Forget a picture: the notebook is not to show it by itself."""
    plt.close(figure)


def _along(axis, view: View, track: Track) -> None:
    field, label = ALONG[view.kind]
    for key in view.tracks:
        points = [row for row in view.rows if row["track"] == key]
        points = sorted(points, key=lambda row: row["time"])
        values = [np.nan if row[field] is None else row[field] for row in points]
        axis.plot([row["time"] for row in points], values, ".-", label=key.replace("|", ", "))
    axis.set(xscale="log", xlabel=r"$\eta K$ or $c/\lambda$", ylabel=label)
    if view.kind == "errors":
        axis.set_yscale("log")
    axis.legend(fontsize="xx-small")


def _curves(axis, view: View, track: Track) -> None:
    order = sorted(range(len(track.times)), key=lambda at: track.times[at])
    colours = plotting.colours_by_period([track.times[at] for at in order])
    for at, colour in zip(order, colours, strict=True):
        name = rf"$\eta K={quantity(track.times[at]).replace('∞', chr(92) + 'infty')}$"
        for row in (row for row in view.rows if row["at"] == at):
            style = "-" if row["part"] == "network" else "--"
            axis.plot(row["time"], row["mean"], style, color=colour, lw=1.2, label=name)
            name = None
    axis.set(xlabel=r"time of all steps", ylabel="test accuracy (%)")
    if view.extra["log"]:
        axis.set_xscale("log")
    axis.legend(fontsize="xx-small")
