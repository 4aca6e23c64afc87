"""The landing page: its first sentences, its figure, and the cards of findings.

The sentences are the findings of the ledger; the README tells some of them, too, and a test
compares.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable
from html import escape
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
from iterlin_study.records import records
from iterlin_study.report import claims, claims_table, intervals, plotting
from matplotlib.axes import Axes

FIRST = ("C1", "C1-width")
# By the row's id: the title of its card.
CARDS = {
    "place-late": "One period that is too long does most harm early",
    "long-further": "Updated too rarely, features move further and get worse",
    "grok-updates": "Eight feature updates are enough to grok",
    "C6-exact": "Solving each linear problem completely costs accuracy",
    "lm-same": "Long solves pay on new text, not on the same text again",
    "C1-augmented": "On all images eleven updates come close",
}
SIZE = (3.4, 2.5)  # inches, of a card's picture


def first() -> str:
    """Return the page's first sentences with their verdicts, as HTML; nothing without a record."""
    found = []
    for verdict in _verdicts(FIRST):
        if verdict.finding:
            badge = claims_table.badge(verdict.verdict)
            link = f'<a href="{escape(verdict.row["page"])}.html">{badge}</a>'
            found.append(f'<p class="answer">{escape(verdict.finding)} {link}</p>')
    return claims_table.STYLE + "\n".join(found) if found else ""


def cards() -> str:
    """Return the cards as HTML: picture, title, verdict and finding of each row that has them."""
    found = []
    for (name, title), verdict in zip(CARDS.items(), _verdicts(CARDS), strict=True):
        if not verdict.finding:
            continue
        page, alt = escape(verdict.row["page"]), escape(PICTURES[name].__doc__ or "", quote=True)
        found.append(
            f'<div class="finding"><img alt="{alt}" src="{_picture(PICTURES[name], verdict)}">'
            f'<div><p><a href="{page}.html"><b>{escape(title)}</b></a></p>'
            f"<p>{escape(verdict.finding)}</p>"
            f"<p>{claims_table.badge(verdict.verdict)}</p></div></div>"
        )
    return f'{claims_table.STYLE}<div class="findings">\n{"".join(found)}\n</div>'


def _verdicts(names: Iterable[str]) -> list[claims.Verdict]:
    ledger = {row["id"]: row for row in claims.load_claims()}
    return [claims.judge(ledger[name]) for name in names]


def _picture(draw: Callable, verdict: claims.Verdict) -> str:
    """Return a card's picture as an address that holds it."""
    figure, axis = plt.subplots(figsize=SIZE, layout="constrained")
    draw(axis, records.best(verdict.row["experiment"]))
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(figure)
    return f"data:image/svg+xml;base64,{b64encode(drawn.getvalue()).decode()}"


def draw_key(axis: Axes, record) -> None:
    """Draw accuracy against the time between updates, with their number; SGD; never updated."""
    largest = record.isel(size=-1)
    blue, _, _, red = plotting.COLOURS[:4]
    descent = intervals.mean_interval(largest.sgd_accuracy)
    plotting.span(axis, descent, color="0.3", alpha=0.15, lw=0)
    axis.axhline(float(descent.estimate), color="0.3", lw=1.2, label="updated at every step (SGD)")
    times = largest.time.values
    accuracy = largest.accuracy.transpose("seed", "time")
    plotting.points(axis, times, accuracy, color=blue, label="updated now and then, until it fits")
    for time, taken in zip(times, largest.taken.mean("seed").values, strict=True):
        lower = float(intervals.mean_interval(accuracy.sel(time=time)).lower)
        place = {"textcoords": "offset points", "xytext": (-4, -13), "ha": "right"}
        axis.annotate(f"{taken:.0f} updates", (time, lower), **place)
    never = 30 * times[-1]
    lazy = largest.lazy_accuracy.values[:, None]
    plotting.points(axis, [never], lazy, color=red, label="never updated")
    ticks = [*times, never]
    axis.set(xscale="log", xlim=(times[0] / 16, 4 * never))
    axis.set_xticks(ticks, [*(f"{time:,g}" for time in times), "never"])
    axis.minorticks_off()
    lowest = float(min(accuracy.min(), lazy.min()))
    axis.set(ylim=(lowest - 4, float(descent.upper) + 9))
    axis.set(xlabel="time between two feature updates", ylabel="test accuracy (%)")
    axis.legend(loc="upper right")


def _late(axis, record):
    """Points of test accuracy lost, falling from 8 to 0 as the long period comes later"""
    alone = record.isel(setting=np.flatnonzero(record.place > 0)).sortby("place")
    plotting.points(axis, alone.place, alone.cost, color=plotting.COLOURS[0])
    axis.axhline(0, color="0.5", lw=0.8)
    axis.set(xlabel="which period is long", ylabel="points lost", xticks=[1, 2, 4, 6, 8])


def _further(axis, record):
    """The longer between two updates, the further the first layer moves, in units of SGD's way"""
    last = record.isel(size=-1)
    ways = last.flow_moved.isel(flow_look=-1) / last.sgd_moved.isel(sgd_look=-1)
    places = np.arange(1 + ways.sizes["time"])
    plotting.points(axis, places[1:], ways.transpose("seed", "time"), color=plotting.COLOURS[0])
    axis.plot(0, 1, "o", color="0.3")
    axis.set_xticks(places, ["SGD", *(f"{time:,g}" for time in ways.time.values)])
    axis.set(xlabel="time between updates", ylabel="first layer moved")


def _grokked(axis, record):
    """Test accuracy on new sums against steps: 100 % with eight updates, 4 % (guessing) without"""
    main = record.sel(decay=1)
    for time, name in ((0, "every step"), (record.few, "8 updates"), (np.inf, "never updated")):
        at = main.sel(time=time)
        accuracy = 100 * at.main_test_accuracy.mean("seed")
        axis.plot(at.main_step.mean("seed"), accuracy, label=name)
    axis.set(xlabel="steps", ylabel="test accuracy (%)", xlim=(0, 10_000), ylim=(-3, 150))
    axis.set_xticks([0, 5_000, 10_000], ["0", "5,000", "10,000"])
    axis.set_yticks([0, 50, 100])
    axis.legend(loc="upper left", fontsize=9)


def _solved(axis, record):
    """Test accuracy of ordinary training, and lower where each linear problem is solved"""
    solved = record.damped_accuracy.sel(time=record.time.max())
    both = np.stack([record.sgd_accuracy.values, solved.values], axis=1)
    plotting.points(axis, [0, 1], both, color=plotting.COLOURS[0], ls="")
    axis.set_xticks([0, 1], ["ordinary\ntraining", "solved\ncompletely"])
    axis.set(xlim=(-0.6, 1.6), ylabel="test accuracy (%)")


def _text(axis, record):
    """Held-out loss over visits: long solves are lowest on new text, and rise on the same text"""
    for kind, style in (("the same text", "-"), ("new text", "--")):
        for arm, colour in (("10", plotting.COLOURS[0]), ("100", plotting.COLOURS[3])):
            held = record.held_loss.sel(kind=kind, arm=arm).mean("seed").dropna("visit")[1:]
            axis.plot(held.visit, held, style, color=colour, label=f"{kind}, time {arm}")
    axis.set(xlabel="visits to text", ylabel="held-out loss (nats)", ylim=(2.45, 4.25))
    axis.legend(loc="upper right", fontsize=9)


def _augmented(axis, record):
    """Test accuracy against training time: with eleven updates it lags behind one at every step"""
    for period, name in ((record.period.min(), "every step"), (record.period.max(), "11 updates")):
        accuracy = 100 * record.test_accuracy.sel(period=period)
        plotting.band(axis, record.time, accuracy.transpose("seed", "evaluation"), label=name)
    axis.set(xlabel="training time", ylabel="test accuracy (%)")
    axis.legend(loc="lower right")


PICTURES = {
    "place-late": _late,
    "long-further": _further,
    "grok-updates": _grokked,
    "C6-exact": _solved,
    "lm-same": _text,
    "C1-augmented": _augmented,
}
