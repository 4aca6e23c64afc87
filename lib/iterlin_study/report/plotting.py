"""Figures from records: one style, the K axis with its infinity, means with intervals.

Nothing here computes results; it sees arrays that others made.
"""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from IPython import get_ipython
from matplotlib_inline.backend_inline import set_matplotlib_formats

from iterlin_study.report.intervals import mean_interval

COLOURS = sns.color_palette("colorblind")
SMALL = ("font.size", "xtick.labelsize", "ytick.labelsize", "legend.fontsize", "figure.titlesize")
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
# Inches. A phone shows a figure some 350 pixels wide: print of SIZE points is then 9 pixels high.
WIDTH, SIZE = 6.0, 11.2


def use_style() -> None:
    """Set fonts, sizes and colour-blind-safe colours for every figure, drawn as SVG."""
    sns.set_theme(context="notebook", style="ticks", palette="colorblind")
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.figsize": (WIDTH, 3.6),
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 12,
            "axes.labelsize": 12,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "svg.hashsalt": "iterlin",
        }
        | dict.fromkeys(SMALL, SIZE)
    )
    if get_ipython() is not None:  # what a script shows is its own affair
        set_matplotlib_formats("svg", metadata={"Date": None})


def panels(rows: int, columns: int = 1, *, height: float = 3.2, **settings):
    """Return figure and axes, as `matplotlib.pyplot.subplots`, of the width of all figures.

    Panels stand below each other, so that their print stays legible on a phone; several columns are
    for small multiples that share their axes. height: of a row, in inches.
    """
    return plt.subplots(rows, columns, figsize=(WIDTH, height * rows), **settings)


def period_positions(periods: Sequence[float]) -> np.ndarray:
    """Place periods on a log axis; infinity goes one decade beyond the largest finite."""
    periods = np.asarray(periods, dtype=float)
    finite = periods[np.isfinite(periods)]
    beyond = 10 ** (math.ceil(math.log10(finite.max())) + 1) if finite.size else 10.0
    return np.where(np.isfinite(periods), periods, beyond)


def period_axis(axis, periods: Sequence[float], label: str = "period $K$ (steps)") -> np.ndarray:
    """Make the x axis a log axis of K with a tick for infinity; returns the places of the periods.

    A dotted line separates infinity (one linearisation, ever) from the finite periods.
    """
    places, known = period_positions(periods), np.isfinite(periods)
    axis.set_xscale("log")
    finite = places[known] if known.any() else np.ones(1)
    low, high = math.floor(math.log10(finite.min())), math.ceil(math.log10(finite.max()))
    step = max(1, (high - low) // 6 + ((high - low) > 6))
    ticks = [10.0**k for k in range(low, high + 1, step)]
    labels = [rf"$10^{{{k}}}$" if k else "1" for k in range(low, high + 1, step)]
    if not known.all():
        axis.axvline(places.max() / 10**0.5, color="0.6", lw=0.8, ls=":")
        ticks, labels = [*ticks, places.max()], [*labels, r"$\infty$"]
    axis.set_xticks(ticks, labels)
    axis.set_xlabel(label)
    return places


def colours_by_period(periods: Sequence[float]) -> list:
    """Colours that order K and are colour-blind safe: dark is K = 1, in every figure the same, then
    lighter as K grows; infinity is grey."""
    finite = sorted({p for p in periods if math.isfinite(p) and p != 1})
    places = [0.08, *np.linspace(0.45, 0.85, len(finite))]
    shades = dict(zip([1, *finite], plt.get_cmap("viridis")(places)[:, :3], strict=True))
    return [tuple(shades[p]) if math.isfinite(p) else (0.5, 0.5, 0.5) for p in periods]


def period_label(period: float) -> str:
    """Write 'K = 1000' in mathematics: powers of ten as such, infinity as its sign."""
    if math.isinf(period):
        return r"$K=\infty$"
    power = math.log10(period)
    if period >= 1000 and power == round(power):
        return rf"$K=10^{{{round(power)}}}$"
    return rf"$K={period:g}$"


def period_text(period: float) -> str:
    """Write 'K = 10⁴' in plain text."""
    if math.isinf(period):
        return "K = ∞"
    power = math.log10(period)
    if period >= 1000 and power == round(power):
        return f"K = 10{str(round(power)).translate(SUPERSCRIPTS)}"
    return f"K = {period:g}"


def band(axis, x, samples, *, geometric: bool = False, **style) -> None:
    """Draw the mean over the first axis as a line, its 95 % interval as a band.

    geometric: mean and interval of the logarithm, for positive samples on a log axis.
    """
    samples = np.asarray(samples, dtype=float)
    interval = mean_interval(np.log(samples) if geometric else samples)
    middle, lower, upper = (np.exp(v) if geometric else v for v in interval)
    (line,) = axis.plot(x, middle, **style)
    finite = np.isfinite(lower) & np.isfinite(upper)
    axis.fill_between(x, lower, upper, where=finite, color=line.get_color(), alpha=0.2, lw=0)


def span(axis, interval, **style) -> None:
    """Draw an interval as a horizontal band, of no height where it has no bounds."""
    bounds = np.array([interval.lower, interval.upper])
    bounds = bounds if np.isfinite(bounds).all() else np.full(2, interval.estimate)
    axis.axhspan(*bounds, **style)


def points(axis, x, samples, **style) -> None:
    """Draw means over the first axis with 95 % intervals as error bars."""
    interval = mean_interval(samples)
    errors = np.stack([interval.estimate - interval.lower, interval.upper - interval.estimate])
    style = {"marker": "o", "capsize": 3, **style}
    axis.errorbar(x, interval.estimate, yerr=np.where(np.isfinite(errors), errors, 0), **style)
