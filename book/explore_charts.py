"""Draw a dial: a slider and charts of Vega-Altair, as a piece of a page.

``book/_static/dial.js`` draws it, with Vega beside it (`iterlin_book.render`). Colours are those of
the page: of its text, and the theme's first colour for what the slider chose.
"""

import base64
import json
import math
from collections.abc import Callable
from html import escape
from typing import NamedTuple

import altair as alt
import vl_convert
from IPython.display import HTML, display
from iterlin_study.runs.features import RANDOM_ALIGNMENT

# Where the book's rendering puts Vega, seen from a page at the top of the book.
SCRIPT = "_static/vega.js"
NOW, INK = "var(--pst-color-primary)", "currentColor"
# The rows of the initialisation that is chosen, and of these the run at the slider's stop.
CHOSEN = "(!datum.choice || datum.choice == choice)"
HERE = f"{CHOSEN} && datum.at === stop"
TIME = "time between updates ηK, or c/λ"
HEIGHT, WIDTH, MARGIN = 190, 215, 82
PRINT = {"labelFontSize": 12, "titleFontSize": 12}
CONFIG = {
    "axis": PRINT
    | {"gridColor": INK, "gridOpacity": 0.12, "titleFontWeight": "normal"}
    | {"labelSeparation": 8},
    "legend": PRINT | {"title": None, "symbolSize": 400, "symbolStrokeColor": INK},
    "title": {"anchor": "start", "fontSize": 13},
    "mark": {"color": INK, "aria": False},
    "rule": {"color": INK},
    "view": {"stroke": None},
    "background": "transparent",
    "aria": False,
}


class Panel(NamedTuple):
    """A chart of a dial: a function below draws its rows (`explore_helpers`).

    A panel with a name shows the results in words, too.
    """

    draw: Callable
    title: str
    rows: list[dict]
    name: str = ""


def show(*dials: str) -> None:
    """Display dials that `html` made."""
    display(HTML(f'{"".join(dials)}<script src="{SCRIPT}"></script>'))


def html(label: str, question: str, panels: list[Panel]) -> str:
    """Return a dial. label: of its slider; question: what the rows' "choice" is, if any."""
    rows = [row for panel in panels for row in panel.rows if row.get("stop")]
    times = {row["stop"]: row["time"] for row in sorted(rows, key=lambda row: -row["time"])}
    stops = sorted(times, key=times.get)
    start = _start(panels, stops)
    choices = list(dict.fromkeys(row["choice"] for row in rows if "choice" in row)) or [""]
    words = {choice: [_words(panels, stop, choice) for stop in stops] for choice in choices}
    charts = [_chart(panel, number) for number, panel in enumerate(panels)]
    slider = alt.binding_range(min=0, max=len(stops) - 1, step=1, name=label)
    menu = alt.binding_select(options=choices, name=question) if choices[1:] else alt.Undefined
    chart = alt.concat(*charts).resolve_scale(strokeDash="independent").configure(**CONFIG)
    chart = chart.add_params(
        alt.param("stop", value=start, bind=slider),
        alt.param("choice", value=choices[0], bind=menu),
        alt.param("words", value=words),
        alt.param("told", expr="words[choice][stop]"),
    )
    # Last: Altair copies a chart, with the rows in it, at each of its methods.
    chart.datasets = {str(number): _known(panel, stops) for number, panel in enumerate(panels)}
    spec = fitted(chart.to_dict(format="vega"))
    picture = vl_convert.vega_to_svg(json.dumps(spec).replace(NOW, "#176de8")).encode()
    # No text of a record can end the script element around it.
    data = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    stop, told, _ = words[choices[0]][start]
    return f"""\
<section class="dial" aria-label="{escape(label)}">
<noscript><figure><img src="data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"
alt="{escape(told)}"><figcaption>{escape(stop)}. With JavaScript it turns.</figcaption></figure>
</noscript><div class="dial-turn"></div><div class="dial-charts" role="img"></div>
<script type="application/json">{data}</script></section>"""


def _start(panels: list[Panel], stops: list[str]) -> int:
    """Return the index of the stop at which most charts have a run, the two ends left out.

    Among several it is the one nearest to the middle.
    """
    found = [[row.get("stop") for row in panel.rows] for panel in panels]
    inner = range(1, len(stops) - 1) or range(len(stops))
    near = sorted(inner, key=lambda place: abs(place - len(stops) // 2))
    return max(near, key=lambda place: sum(stops[place] in held for held in found))


def fitted(spec: dict) -> dict:
    """Give a specification as many columns as fit into "room" (pixels), as Vega-Lite cannot."""
    columns = {"name": "columns", "update": f"max(1, floor(room / {WIDTH + MARGIN}))"}
    (width,) = (signal for signal in spec["signals"] if signal["name"] == "childWidth")
    width["update"] = f"floor(room / columns) - {MARGIN}"
    spec["signals"][:0] = [{"name": "room", "value": 960}, columns]
    spec["layout"]["columns"] = {"signal": "columns"}
    return spec


def _words(panels: list[Panel], stop: str, choice: str) -> list:
    """Return the label of a stop, the results there, and the lines above each chart."""
    said, lines = [], []
    for panel in panels:
        first, more = "not on record", []
        for row in panel.rows:
            if row.get("stop") == stop and row.get("choice", choice) == choice:
                first, more = f"{row['name']}, {row['updates']}", row["words"]
        lines.append([first, *more] if panel.name else [first])
        if panel.name:
            results = f" ({first}): {', '.join(more)}" if more else f": {first}"
            said.append(panel.name + results)
    return [stop, "; ".join(said), lines]


def _chart(panel: Panel, number: int) -> alt.LayerChart:
    lines = alt.Chart(alt.InlineData(values=[{}])).mark_text(
        text=alt.expr(f"told[2][{number}]"), align="left", fontSize=12
    )
    lines = lines.encode(x=alt.value(0), y=alt.value(-36))
    chart = alt.layer(*panel.draw(alt.NamedData(str(number)), panel.rows), lines)
    return chart.properties(title=panel.title, width=WIDTH, height=HEIGHT)


def _known(panel: Panel, stops: list[str]) -> list[dict]:
    """Return the rows, each with the place of its stop ("at"), without infinite values."""
    at = {stop: place for place, stop in enumerate(stops)}
    rows = [row | {"at": at.get(row.get("stop"))} for row in panel.rows]
    return [{key: value for key, value in row.items() if value != math.inf} for row in rows]


def _rows(data: alt.NamedData, test: str, *columns: str) -> alt.Chart:
    """Keep the rows that pass a test; lists in these columns become rows of their own."""
    chart = alt.Chart(data).transform_filter(test)
    return chart.transform_flatten(columns) if columns else chart


def _axis(kind, field: str, title: str, *domain: float, log: bool = False, form: str = ",~r"):
    scale = alt.Scale(type="log" if log else "linear", nice=False, zero=False)
    scale.domain = list(domain) or alt.Undefined
    axis = alt.Axis(title=title, tickCount=5, format=form, grid=not log)
    return kind(f"{field}:Q", scale=scale, axis=axis)


def _dash(field: str, solid: str, dashed: str, corner: str) -> alt.StrokeDash:
    scale = alt.Scale(domain=[solid, dashed], range=[[1, 0], [6, 4]])
    return alt.StrokeDash(f"{field}:N", scale=scale, legend=alt.Legend(orient=corner))


def features(data, rows):
    """Draw the directions of the features of one seed."""
    x = _axis(alt.X, "w1", "weight w₁, relative to the largest", -1.1, 1.1)
    y = _axis(alt.Y, "w2", "weight w₂", -1.1, 1.1)
    for s in (-1.1, 1.1):
        diagonal = alt.InlineData(values=[{"w1": -1.1, "w2": s}, {"w1": 1.1, "w2": -s}])
        yield alt.Chart(diagonal).mark_line(opacity=0.3, strokeWidth=1).encode(x, y)
    fill = alt.when("datum.positive").then(alt.value(NOW)).otherwise(alt.value("transparent"))
    dots = _rows(data, HERE, "w1", "w2", "positive").mark_point(stroke=NOW, size=45)
    yield dots.encode(x, y, fill=fill)


def histogram(data, rows):
    """Draw the shares of features by alignment; their mean, and that of random directions."""
    x = _axis(alt.X, "left", "alignment a", 0.7, 1, form=".2f")
    y = _axis(alt.Y, "share", "share of features (%)", 0, max(max(row["share"]) for row in rows))
    bars = _rows(data, HERE, "left", "right", "share").mark_rect(color=NOW, opacity=0.75)
    yield bars.encode(x, y, x2="right:Q", y2=alt.value(HEIGHT))
    yield _rows(data, HERE).mark_rule(size=2.5).encode(alt.X("mean:Q"))
    yield alt.Chart(data).mark_rule(strokeDash=[5, 4]).encode(x=alt.datum(RANDOM_ALIGNMENT))


def mean_alignment(data, rows):
    """Draw the mean alignment along the dial, for the period and the damping."""
    x, y = _axis(alt.X, "time", TIME, log=True), _axis(alt.Y, "mean", "mean alignment", form=".2f")
    lines = _rows(data, f"{CHOSEN} && datum.time").mark_line(strokeWidth=1.5)
    yield lines.encode(x, y, strokeDash=_dash("axis", "period", "damping", "bottom-left"))
    yield alt.Chart(data).mark_rule(strokeDash=[2, 3]).encode(y=alt.datum(RANDOM_ALIGNMENT))
    # K = infinity has no place on the axis: its dot is at the right end.
    for test, where in (("datum.time", x), ("!datum.time", alt.XValue("width"))):
        dot = _rows(data, f"{HERE} && {test}").mark_circle(color=NOW, size=150, opacity=1)
        yield dot.encode(where, y)


def functions(data, rows):
    """Draw functions of one variable, their target and the training points."""
    target = next(row["y"] for row in rows if row["part"] == "target")
    x, y = _axis(alt.X, "x", "x"), _axis(alt.Y, "y", "f(x)", 1.4 * min(target), 1.4 * max(target))
    learnt = _rows(data, HERE, "x", "y", "seed")
    yield learnt.mark_line(color=NOW, strokeWidth=1.2, clip=True).encode(x, y, detail="seed:N")
    line = _rows(data, "datum.part == 'target'", "x", "y")
    yield line.mark_line(strokeWidth=1.5, strokeDash=[6, 4]).encode(x, y)
    dots = _rows(data, "datum.part == 'examples'", "x", "y")
    yield dots.mark_circle(size=28, opacity=1).encode(x, y)


def errors(data, rows):
    """Draw the best, the median and the worst test errors along the dial."""
    x, y = _axis(alt.X, "time", TIME, log=True), _axis(alt.Y, "error", "RMSE", log=True)
    dash = _dash("axis", "damping", "period", "top-left")
    levels = _rows(data, CHOSEN).transform_fold(["worst", "median", "best"], ["level", "error"])
    yield levels.mark_line(strokeWidth=1.5).encode(x, y, detail="level:N", strokeDash=dash)
    dots = levels.transform_filter(HERE).mark_circle(color=NOW, size=120, opacity=1)
    yield dots.encode(x, y)


def curves(data, rows):
    """Draw test accuracies against time, those of other stops pale."""
    ends = [end(end(row["elapsed"]) for row in rows) for end in (min, max)]
    x = _axis(alt.X, "elapsed", "time of all steps, Σ η/(1 − μ)", *ends, log=True)
    y = _axis(alt.Y, "mean", "test accuracy (%)", 0, 1.08 * max(max(row["mean"]) for row in rows))
    dash = _dash("part", "network", "proxy", "top-left")
    columns = "part", "elapsed", "mean", "lower", "upper"
    others = _rows(data, "datum.at !== stop", *columns).mark_line(opacity=0.3, strokeWidth=1.2)
    yield others.encode(x, y, strokeDash=dash, detail="at:N")
    here = _rows(data, HERE, *columns)
    band = here.mark_area(color=NOW, opacity=0.2).encode(y="lower:Q", y2="upper:Q")
    yield band.encode(x, detail="part:N")
    yield here.mark_line(color=NOW, strokeWidth=2.8).encode(x, y, strokeDash=dash)
