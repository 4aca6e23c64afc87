"""The dial as a piece of a page: native controls, charts with words, a still without script.

The page's script, ``book/_static/dial.js``, reads what is here and Vega's bundle, which the book's
rendering puts beside it (`iterlin_book.render`).
"""

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO

import seaborn as sns
import xarray as xr
from IPython.display import HTML, display
from matplotlib.colors import to_hex

from iterlin.study import records
from iterlin.study.dial import charts, images, still, toys
from iterlin.study.dial.scale import View, quantity, stops

# Where the book's rendering puts Vega, seen from a page at the top of the book.
SCRIPT = "_static/vega.js"
VIEWS = {
    "xor": toys.xor,
    "damping_quintic": toys.quintic,
    "few_updates": images.few_updates,
    "converged": images.converged,
    "period_sweep": images.period_sweep,
}
CONTROLS = {
    "axis": ("What is turned", {"period": "the period K", "damping": "the damping λ"}),
    "scale": ("Initialisation on XOR", {}),
    "bias": ("Biases on the quintic", {}),
}
# Shares of viridis in which small K is dark, and all K can be told from a white, or dark, ground.
SHADES = {"light": (0.0, 0.55), "dark": (0.4, 1.0)}
NEVER = {"light": "#666666", "dark": "#aaaaaa"}


def show(found: Mapping[str, xr.Dataset | None], step_size: float) -> None:
    """Display the dial for the records of these experiments; step_size: of the runs on XOR."""
    views, left_out, rate = gather(found, step_size)
    display(HTML(html(views, left_out, rate)))


def gather(
    found: Mapping[str, xr.Dataset | None], step_size: float
) -> tuple[list[View], list[str], float]:
    """The views of the records, sentences on what is left out, and the exchange rate of damping.

    found: the records by the names of their experiments, None where there is none. A stale record
    that lacks what is to be shown leaves its views out; what fails with a fresh one is raised.
    Without a rate on record it is 1, as in theory. Raises ValueError for an unknown experiment.
    """
    if unknown := found.keys() - VIEWS.keys():
        known = ", ".join(VIEWS)
        raise ValueError(f"the dial does not show {', '.join(sorted(unknown))}, but {known}")
    xor, views, left_out = found.get("xor"), [], []
    rate = 1.0 if xor is None or "exchange_rate" not in xor else float(xor.exchange_rate[0])
    for name, record in found.items():
        if record is None:
            left_out.append(f"Of {name} there is no record yet.")
            continue
        try:
            views += VIEWS[name](record, rate, step_size)
        except Exception as error:
            if not records.is_stale(record):
                raise
            left_out.append(f"The record of {name} is older than this page and lacks {error}.")
    return views, left_out, rate


def html(views: Sequence[View], left_out: Sequence[str], rate: float) -> str:
    """The dial with its views; raises ValueError without any."""
    if not views:
        raise ValueError(f"nothing to show: {' '.join(left_out) or 'no views'}")
    places = stops(views)
    told = {"places": _places(places, rate), "views": [_told(view, places) for view in views]}
    figures = "\n".join(map(_figure, views))
    missing = "".join(f"<p><em>{escape(sentence)}</em></p>" for sentence in left_out)
    return f"""\
<div class="dial">
<noscript>{_still(views)}</noscript>
<div class="dial-turn" hidden>
<label for="dial-stop">Period ηK, or damping λ:</label>
<span class="dial-value"></span>
<input type="range" id="dial-stop" min="0" max="{len(places) - 1}" step="1" \
value="{len(places) // 2}">
<div class="dial-ends" aria-hidden="true"><span>every step</span><span>never</span></div>
<output for="dial-stop"></output>
</div>
<div class="dial-more" hidden>{_controls(views)}</div>
<div class="dial-views" hidden>
{figures}
</div>
{missing}
<script type="application/json" class="dial-told">{charts.embedded(told)}</script>
<script src="{SCRIPT}"></script>
</div>"""


def _places(places: Sequence[float], rate: float) -> list[dict]:
    """What the dial says at each stop, and its colours."""
    colours = {}
    for theme, (low, high) in SHADES.items():
        viridis = sns.color_palette("viridis", as_cmap=True)
        shades = [low + (high - low) * i / max(len(places) - 2, 1) for i in range(len(places) - 1)]
        colours[theme] = [*(to_hex(viridis(shade)) for shade in shades), NEVER[theme]]
    said = []
    for time in places:
        period, damping = quantity(time), quantity(rate / time if time else math.inf)
        if 0 < time < math.inf:
            both = f"ηK = {period}, as λ = {damping}", f"λ = {damping}, as ηK = {period}"
        elif time:
            both = "K = ∞: features are never updated", "least damping"
        else:
            both = "K = 1: new features at every step", "most damping"
        said.append(dict(zip(CONTROLS["axis"][1], both, strict=True)))
    rows = zip(said, colours["light"], colours["dark"], strict=True)
    return [dict(zip(("said", "light", "dark"), row, strict=True)) for row in rows]


def _told(view: View, places: Sequence[float]) -> dict:
    """What the script has to know of a view: its chart, and for each stop what to show and say."""
    tracks = {}
    for key, track in view.tracks.items():
        near = [track.nearest(place) for place in places]
        tracks[key] = {"at": [at for at, _ in near], "exact": [exact for _, exact in near]}
        tracks[key] |= {"words": track.words, "briefs": track.briefs}
    return {
        "name": view.name,
        "title": view.title,
        "controls": view.controls,
        "tracks": tracks,
        "chart": charts.vega(view),
    }


def _figure(view: View) -> str:
    title, key = escape(view.title), escape(view.key)
    return f"""\
<figure id="dial-{view.name}">
<div class="dial-title" aria-hidden="true">{title}</div>
<div class="dial-chart" role="img" aria-label="{title}"></div>
<figcaption><span class="dial-words"></span> <span class="dial-key">{key}</span></figcaption>
</figure>"""


def _controls(views: Sequence[View]) -> str:
    """A choice for each control that views follow."""
    found = []
    for name, (label, names) in CONTROLS.items():
        values: dict[str, None] = {}
        for view in (view for view in views if name in view.controls):
            values |= {key.split("|")[view.controls.index(name)]: None for key in view.tracks}
        options = "".join(
            f'<option value="{escape(value)}">{escape(names.get(value, value))}</option>'
            for value in values
        )
        if values:
            found.append(f'<label>{label} <select name="{name}">{options}</select></label>')
    return "".join(found)


def _still(views: Sequence[View]) -> str:
    """A picture of all runs at once, for readers without the script."""
    buffer = BytesIO()
    figure = still.draw(views)
    figure.savefig(buffer, format="png", dpi=90)
    still.close(figure)
    picture = base64.b64encode(buffer.getvalue()).decode()
    words = " ".join(f"{view.title}: {t.words[0]} {t.words[-1]}" for view, t in still.shown(views))
    return (
        f'<figure><img src="data:image/png;base64,{picture}" alt="{escape(words)}"><figcaption>'
        "All recorded runs; with JavaScript a dial chooses among them.</figcaption></figure>"
    )
