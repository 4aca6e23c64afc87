"""The scale of the dial, and what is shown along it.

The scale is the time eta K from one feature update to the next: 0 stands for K = 1, where features
are updated at every step, infinity for K = infinity, where they never are. A damping lambda lies at
the time c / lambda, c being the rate at which the two exchange. At each stop of the dial an
experiment shows the run that was recorded nearest to it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Track(NamedTuple):
    """Runs along the dial: the time of each, in any order, and a sentence on it.

    briefs: the same in three words, where the view is one to sum up by. stops: those of the times
    at which the dial has to stop. first: whether the shortest of the times is that of K = 1.
    """

    times: Sequence[float]
    words: Sequence[str]
    briefs: Sequence[str] = ()
    stops: Sequence[float] = ()
    first: bool = False

    def nearest(self, stop: float) -> tuple[int, bool]:
        """The place whose time is nearest to a stop by their ratio, the first of equals, and
        whether it is what the stop asks for, within a factor of two.

        At the stops 0 and infinity the shortest and the longest.
        """
        times = np.asarray(self.times, dtype=float)
        if stop == 0:
            return int(times.argmin()), self.first
        if math.isinf(stop):
            return int(times.argmax()), math.isinf(times.max())
        apart = np.abs(np.log(times) - math.log(stop))
        return int(apart.argmin()), bool(apart.min() <= math.log(2))


@dataclass(frozen=True)
class View:
    """What a chart shows.

    controls: those that it follows besides the dial; their values, joined by "|", name the track
    that is shown. Each row of the chart's data has its "track" and its place there, "at". key: what
    its marks mean, in words; kind: which chart it is; extra: what that one needs besides.
    """

    name: str
    title: str
    key: str
    kind: str
    controls: tuple[str, ...]
    tracks: dict[str, Track] = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)
    extra: dict = field(default_factory=dict)


def stops(views: Iterable[View]) -> list[float]:
    """The places of the dial: 0, the times at which tracks want a stop, infinity."""
    wanted = {time for view in views for track in view.tracks.values() for time in track.stops}
    found = sorted(time for time in wanted if 0 < time < math.inf)
    # Times that differ by rounding, of experiments with other step sizes, are one stop.
    apart = [t for t, last in zip(found, [0.0, *found], strict=False) if t > 1.02 * last]
    return [0.0, *apart, math.inf]


def quantity(value: float) -> str:
    """A number for reading: '0.012', '50', '5,000', '10⁶', '2·10⁻⁵', '∞'."""
    if math.isinf(value):
        return "∞"
    if 0 < abs(value) < 1e-3 or abs(value) >= 1e5:
        digits, power = f"{value:.1e}".split("e")
        exponent = f"10{str(int(power)).translate(SUPERSCRIPTS)}"
        digits = digits.removesuffix(".0")
        return exponent if digits == "1" else f"{digits}·{exponent}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:,.0f}"


def run_name(axis: str, value: float, time: float) -> str:
    """'K = 1,000 (ηK = 50)', 'λ = 0.02', or 'ηK = 50' of a time whose steps do not matter."""
    if axis == "damping":
        return f"λ = {quantity(value)}"
    if axis == "time":
        return f"ηK = {quantity(value)}"
    return f"K = {quantity(value)}" + (f" (ηK = {quantity(time)})" if math.isfinite(value) else "")


def bounds(interval) -> dict[str, float | None]:
    """An interval as a part of a row; limits that are not known are the estimate."""
    middle, *limits = (float(value) for value in interval)
    limits = [limit if math.isfinite(limit) else middle for limit in limits]
    return {
        name: number(value)
        for name, value in zip(("mean", "lower", "upper"), (middle, *limits), strict=True)
    }


def number(value: float) -> float | None:
    """Five digits of a number; None where it is not finite, as JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def short(values, digits: int = 3) -> list[float]:
    """Numbers to so many decimal places: a page is not to carry more than can be seen."""
    return np.round(np.asarray(values, dtype=float), digits).tolist()
