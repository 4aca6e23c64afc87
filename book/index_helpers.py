"""What the book found, a sentence each, computed from its records.

The landing page and the README tell the same sentences; a test compares them.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import xarray as xr
from iterlin_study.records import records
from iterlin_study.report import intervals


class Finding(NamedTuple):
    """The page (its path without extension) and the experiment that it is of; words(record) says
    it in Markdown."""

    page: str
    experiment: str
    title: str
    words: Callable[[xr.Dataset], str]


def told(link: str = "[{title}]({page}.md)") -> Iterator[str]:
    """The findings that there are records of, in Markdown, each with a link to its page.

    link: how a finding begins, with its page's path for "{page}". A record that is older than what
    is told of it, and lacks a variable, is left out.
    """
    for page, experiment, title, words in FINDINGS:
        record = records.best(experiment)
        if record is None:
            continue
        try:
            text = words(record)
        except (KeyError, AttributeError):
            continue
        yield f"{link.format(title=title, page=page)} {text}"


def _few_updates(ds: xr.Dataset) -> str:
    updates = round(float(ds.final_updates[0]))
    images = ds.attrs["data"].partition(" to train")[0].split()[-1]
    return (
        f"On {int(images):,} images of CIFAR-10, augmented, {updates} updates end "
        f"{_text(ds.gap_end)} points of test accuracy below ordinary training, and "
        f"{_text(ds.gap_matched)} where that has come to the same training loss."
    )


def _converged(ds: xr.Dataset) -> str:
    updates, fit = float(ds.few_taken[0]), float(ds.few_fit[0])
    return (
        f"On {int(ds['size'].max()):,} images of CIFAR-10 a network that takes a new expansion "
        f"after each time $\\eta K = {ds.attrs['few']:g}$, {updates:.0f} times until it fits "
        f"{fit:.0f} % of them, ends {_text(ds.few_gap_end)} points of test accuracy below ordinary "
        "training."
    )


def _too_few(ds: xr.Dataset) -> str:
    grows = all(float(ds[f"{which}_slope"][2]) < 0 for which in ("long", "lazy"))
    return (
        f"After {float(ds.long_taken[0]):.0f} updates, $\\eta K = {ds.attrs['long']:g}$, it ends "
        f"{_text(ds.long_gap_end)} points below, without any update {_text(ds.lazy_gap)}"
        + ("; the more images, the further." if grows else ".")
    )


def _regimes(ds: xr.Dataset) -> str:
    return (
        f"At $K = 10$ a network's outputs are within {_text(100 * ds.small_period_distance)} % of "
        f"gradient descent's, at $K = 10^8$ within {_power(ds.large_period_distance[2])} of "
        "Gauss-Newton's."
    )


def _xor(ds: xr.Dataset) -> str:
    alignment = ds.alignment_period.sel(scale="small").mean("unit")
    short, long = (_text(intervals.mean_interval(alignment.sel(period=k)), 3) for k in (10, 1e5))
    return (
        f"On XOR the alignment of features with the data falls from {short} at $K = 10$ to {long} "
        "at $K = 10^5$; less damping $\\lambda$ does the same, with $\\lambda\\eta K$ = "
        f"{_text(ds.exchange_rate, 2)}."
    )


def _quintic(ds: xr.Dataset) -> str:
    worst, best = (
        [10 ** float(v) for v in ds[f"{which}_ratio_zero"]] for which in ("worst", "best")
    )
    return (
        "From damping $10^{-3}$ to 1 the worst 5 % of test errors on a quintic fall by a factor of "
        f"{_text(worst, 0)}, the best 5 % by {_text(best)}."
    )


def _exact(ds: xr.Dataset) -> str:
    products = intervals.mean_interval(ds.products.isel(period=-1))
    return (
        f"{_power(ds.period[-1])} steps between two expansions take {products.estimate:,.0f} "
        "products with the kernel: gradient flow is integrated, no step is taken."
    )


def _exact_solves(ds: xr.Dataset) -> str:
    return (
        "Solving each linear problem to its minimum, with the least damping, costs "
        f"{_text(ds.cost_accuracy)} points of test accuracy against ordinary training; the most "
        f"gains {_text(ds.gain_accuracy)} over it."
    )


def _stale(ds: xr.Dataset) -> str:
    last = ds.fit.isel(time=-1)
    both, jacobian, residual = (
        int((last.sel(corner=corner) > 95).sum()) for corner in ("both", "jacobian", "residual")
    )
    return (
        f"With periods of a time of {float(ds.time[-1]):g}, between which Jacobian and residual "
        f"both go stale, {both} of {ds.sizes['seed']} networks fit; with a stale "
        f"Jacobian alone {jacobian}, with a stale residual alone {residual}."
    )


def _lazy_to_rich(ds: xr.Dataset) -> str:
    return (
        "On XOR how far the kernel comes from first to last explains "
        f"{_text(100 * ds.xor_r2_total_grid_accuracy, 0)} % of the variance of test accuracy over "
        "output scales and periods; its drift between expansions "
        f"{_text(100 * ds.xor_r2_drift_grid_accuracy, 0)} %."
    )


def _text(bounds, digits: int = 1) -> str:
    estimate, lower, upper = (float(v) for v in bounds)
    return f"{estimate:.{digits}f} [{lower:.{digits}f}, {upper:.{digits}f}]"


def _power(number) -> str:
    """The power of ten that is next above."""
    return f"$10^{{{np.ceil(np.log10(float(number)) - 1e-9):.0f}}}$"


FINDINGS = (
    Finding("experiments/converged", "converged", "Few updates.", _converged),
    Finding("experiments/few_updates", "few_updates", "All images.", _few_updates),
    Finding("experiments/converged", "converged", "Fewer still.", _too_few),
    Finding("algorithm/regimes", "regimes", "Two algorithms.", _regimes),
    Finding("experiments/xor", "xor", "Features on XOR.", _xor),
    Finding("experiments/damping_quintic", "damping_quintic", "Damping.", _quintic),
    Finding("experiments/exact_solves", "exact_solves", "Full solves.", _exact_solves),
    Finding("beyond/what_goes_stale", "what_goes_stale", "Stale, but of one piece.", _stale),
    Finding("beyond/lazy_to_rich", "lazy_to_rich", "How far, not how fast.", _lazy_to_rich),
    Finding("beyond/exact_integration", "exact_integration", "Long periods.", _exact),
)
