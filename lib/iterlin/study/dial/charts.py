"""The charts of the dial's views, made with Vega-Altair and compiled to Vega.

Every chart has two parameters, ``track`` and ``at``, which say what of its data is shown; whoever
embeds it sets them. Colours are the page's: its text's, and ``--dial-now`` of what the dial chose.
"""

import json
import math
from collections.abc import Callable, Sequence

import altair as alt

from iterlin.study.dial.scale import View

NOW, INK = "var(--dial-now)", "currentColor"
CHOSEN, OTHERS = "datum.track == track && datum.at == at", "datum.track == track && datum.at != at"
TIME = "time between updates ηK, or c/λ"
LABELS = (
    "datum.value >= 0.001 && datum.value < 1e4 ? format(datum.value, ',~r')"
    " : replace(format(datum.value, '.0e'), '+', '')"
)
PALE = {"color": INK, "opacity": 0.3}
HEIGHT = 200
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif'


def vega(view: View) -> dict:
    """A view's chart as a Vega specification as wide as the element that it is put into.

    Raises ValueError for a kind of chart that there is not.
    """
    if view.kind not in KINDS:
        raise ValueError(f"{view.name}: no chart {view.kind!r} among {', '.join(KINDS)}")
    layers = KINDS[view.kind](view, _rows(view.rows))
    track = next(iter(view.tracks))
    axis = {"domainColor": INK, "tickColor": INK, "labelColor": INK, "titleColor": INK}
    axis |= {"gridColor": INK, "gridOpacity": 0.12, "titleFontWeight": "normal"}
    axis |= {"labelFontSize": 12, "titleFontSize": 12.5, "labelFont": FONT, "titleFont": FONT}
    legend = {"labelColor": INK, "titleColor": INK, "symbolStrokeColor": INK, "labelFont": FONT}
    legend |= {"orient": "top", "labelFontSize": 12, "symbolSize": 400, "offset": 4}
    chart = alt.layer(*layers).add_params(
        alt.param(name="track", value=track), alt.param(name="at", value=0)
    )
    chart = chart.properties(width="container", height=HEIGHT, background="transparent")
    chart = chart.configure(
        axis=axis, legend=legend | {"aria": False}, aria=False, mark={"aria": False}, padding=4
    )
    return chart.configure_view(stroke=None).to_dict(format="vega")


def _rows(rows: Sequence[dict]) -> alt.InlineData:
    return alt.InlineData(values=list(rows))


def _at_dial(data: alt.InlineData, test: str = CHOSEN, columns: Sequence[str] = ()) -> alt.Chart:
    """The rows that the dial chose, or the others; lists in them become rows of their own."""
    chart = alt.Chart(data).transform_filter(test)
    return chart.transform_flatten(list(columns)) if columns else chart


def _linear(field: str, title: str, domain: Sequence[float], kind=alt.Y, **axis):
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    return kind(f"{field}:Q", scale=scale, axis=alt.Axis(title=title, tickCount=5, **axis))


def _log(field: str, title: str, domain: Sequence[float], kind=alt.X):
    scale = alt.Scale(type="log", domain=list(domain), nice=False)
    axis = alt.Axis(title=title, values=_powers(*domain), labelExpr=LABELS)
    return kind(f"{field}:Q", scale=scale, axis=axis)


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten on a log axis, at most six or so; halves and doubles of a short one."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    if last - first < 2:
        steps = [s * 10.0**k for k in range(first - 1, last + 1) for s in (1, 2, 5)]
        return [step for step in steps if low <= step <= high]
    return [10.0**k for k in range(first, last + 1, 1 + (last - first) // 6)]


def _range(rows: Sequence[dict], *fields: str) -> tuple[float, float]:
    values = [row[name] for row in rows for name in fields if row[name] is not None]
    flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
    return (min(flat), max(flat)) if flat else (0.1, 1.0)


def _times(view: View) -> tuple[float, float]:
    """The domain of an axis of times."""
    low, high = _range(view.rows, "time")
    return low / 1.6, high * 1.6


def _features(view, data):
    x = _linear("w1", "weight w₁, relative to the largest", (-1.1, 1.1), alt.X)
    y = _linear("w2", "weight w₂, likewise", (-1.1, 1.1))
    ends = [{"w1": -1.1, "w2": s, "e1": 1.1, "e2": -s} for s in (-1.1, 1.1)]
    yield alt.Chart(_rows(ends)).mark_rule(**PALE).encode(x, y, x2="e1:Q", y2="e2:Q")
    filled = alt.when("datum.sign == 'positive'").then(alt.value(NOW))
    dots = _at_dial(data, CHOSEN, ("w1", "w2", "sign"))
    yield dots.mark_point(size=45, stroke=NOW, strokeWidth=1.5, fillOpacity=0.75).encode(
        x, y, fill=filled.otherwise(alt.value("transparent"))
    )


def _histogram(view, data):
    low, high = (_range(view.rows, name)[end] for end, name in enumerate(("left", "right")))
    x = _linear("left", "alignment a", (low, high), alt.X, format=".2f")
    top = 1.05 * _range(view.rows, "share")[1]
    y = _linear("share", "share of features (%)", (0, top))
    bars = _at_dial(data, CHOSEN, ("left", "right", "share"))
    yield bars.mark_rect(color=NOW, opacity=0.75).encode(x, y, x2="right:Q", y2=alt.value(HEIGHT))
    rule = _at_dial(data).mark_rule(color=INK)
    yield rule.encode(x=alt.X("mean:Q"), size=alt.value(2.5))
    yield rule.encode(x=alt.X("random:Q"), size=alt.value(1.5), strokeDash=alt.value([5, 4]))


def _alignment(view, data):
    x = _log("time", TIME, _times(view))
    low, high = _range(view.rows, "lower", "upper", "random")
    y = _linear("mean", "mean alignment", (low - 0.01, min(high + 0.01, 1)), format=".2f")
    lines = alt.Chart(data).transform_filter("datum.scale == split(track, '|')[1]")
    dash = alt.StrokeDash(
        "axis:N",
        scale=alt.Scale(domain=["period", "damping"], range=[[1, 0], [6, 4]]),
        legend=alt.Legend(title=None),
    )
    yield lines.mark_line(color=INK, opacity=0.65, strokeWidth=1.5).encode(x, y, strokeDash=dash)
    yield (
        _at_dial(data)
        .mark_rule(**PALE)
        .encode(y=alt.Y("random:Q"), strokeDash=alt.value([2, 3]), size=alt.value(2))
    )
    chosen = _at_dial(data)
    yield chosen.mark_rule(color=NOW, strokeWidth=2.5).encode(x, alt.Y("lower:Q"), y2="upper:Q")
    yield chosen.mark_circle(color=NOW, size=150, opacity=1).encode(x, y)


def _functions(view, data):
    target, examples = (_rows(view.extra[name]) for name in ("target", "examples"))
    x = _linear("x", "x", _range(view.extra["examples"], "x"), alt.X)
    y = _linear("y", "f(x)", view.extra["frame"])
    learnt = _at_dial(data, CHOSEN, ("x", "y"))
    yield learnt.mark_line(color=NOW, strokeWidth=1.2, opacity=0.8, clip=True).encode(
        x, y, detail="seed:N"
    )
    yield alt.Chart(target).mark_line(color=INK, strokeWidth=1.5, strokeDash=[6, 4]).encode(x, y)
    yield alt.Chart(examples).mark_circle(color=INK, size=28, opacity=1).encode(x, y)


def _errors(view, data):
    x = _log("time", TIME, _times(view))
    low, high = _range(view.rows, "best", "worst")
    y = _log("error", "test error (RMSE)", (low / 2, 2 * high), alt.Y)
    levels = alt.Chart(data).transform_filter("datum.track == track")
    levels = levels.transform_fold(["worst", "median", "best"], as_=["level", "error"])
    style = {"color": INK, "opacity": 0.65, "strokeWidth": 1.5}
    yield levels.mark_line(**style).encode(x, y, detail="level:N")
    runs = _at_dial(data, CHOSEN, ("runs",)).transform_calculate(error="datum.runs")
    yield runs.mark_tick(color=NOW, orient="horizontal", width=16, opacity=0.5, clip=True).encode(
        x, y
    )
    chosen = levels.transform_filter(CHOSEN)
    yield chosen.mark_circle(color=NOW, size=90, opacity=1).encode(x, y)


def _curves(view, data):
    title = "time of all steps, Σ η/(1 − μ)"
    low, high = _range(view.rows, "time")
    scale = _log("time", title, (low, high)) if view.extra["log"] else None
    x = scale or _linear("time", title, (low, high), alt.X)
    y = _linear("mean", "test accuracy (%)", (0, 1.08 * _range(view.rows, "mean")[1]))
    dash = alt.StrokeDash(
        "part:N",
        scale=alt.Scale(domain=["network", "proxy"], range=[[1, 0], [6, 4]]),
        legend=alt.Legend(title=None),
    )
    columns = ("time", "mean", "lower", "upper")
    others, chosen = _at_dial(data, OTHERS, columns), _at_dial(data, CHOSEN, columns)
    yield others.mark_line(strokeWidth=1.2, **PALE).encode(x, y, strokeDash=dash, detail="at:N")
    yield chosen.mark_area(color=NOW, opacity=0.2, clip=True).encode(
        x, alt.Y("lower:Q"), y2="upper:Q", detail="part:N"
    )
    yield chosen.mark_line(color=NOW, strokeWidth=2.8).encode(x, y, strokeDash=dash)


KINDS: dict[str, Callable] = {
    "features": _features,
    "histogram": _histogram,
    "alignment": _alignment,
    "functions": _functions,
    "errors": _errors,
    "curves": _curves,
}


def embedded(spec: dict) -> str:
    """A specification as JSON for a script element, which no text in it can end."""
    return json.dumps(spec, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
