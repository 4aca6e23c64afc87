"""The dial shows what is on record: nearest runs, their numbers in words, charts that draw them."""

import json
import math
import re
from pathlib import Path

import chromium
import numpy as np
import pytest
import vl_convert
import xarray as xr
from bs4 import BeautifulSoup
from iterlin.study import records
from iterlin.study.dial import charts, images, page, scale, toys
from iterlin.study.dial.scale import Track, View
from iterlin_book import offline, render

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ["xor", "few_updates", "converged", "period_sweep", "damping_quintic"]
# Of the page with its data and Vega.
MOST_BYTES = 2_000_000


def xor_record():
    """Three seeds of four features: all point at clusters at the first period, none at the last."""
    periods, dampings = [1.0, 10.0, 1000.0], [2.0, 0.02]
    variables = {}
    for axis, values in (("period", periods), ("damping", dampings)):
        shape = (1, len(values), 3)
        level = np.linspace(0.99, 0.9, len(values))[None, :, None, None]
        variables |= {
            f"alignment_{axis}": (("scale", axis, "seed", "unit"), np.ones((*shape, 4)) * level),
            f"feature_{axis}": (
                ("scale", axis, "unit", "coordinate"),
                np.tile([[1.0, 2.0], [1, -1], [-1, 1], [0, 1]], (1, len(values), 1, 1)),
            ),
            f"output_weight_{axis}": (("scale", axis, "unit"), np.ones((1, len(values), 4))),
            f"train_mse_{axis}": (("scale", axis, "seed"), np.full(shape, 1e-3)),
            f"test_accuracy_{axis}": (("scale", axis, "seed"), np.full(shape, 0.875)),
        }
    coordinates = {"scale": ["small"], "period": periods, "damping": dampings, "seed": [0, 1, 2]}
    record = xr.Dataset(variables, coordinates)
    record["exchange_rate"] = "bound", [0.5, 0.4, 0.6]
    return record


def quintic_record(times=True):
    """Two seeds; at the least damping the training error of one is above the cut."""
    shape = (1, 1, 2, 2)
    train = np.ones(shape)
    train[0, 0, 0, 0] = 3.0
    test = np.array([[8.0, 4.0], [2.0, 2.0]]).reshape(shape)
    dims = ("range", "bias", "damping", "seed")
    variables = {
        "train_rmse": (dims, train),
        "test_rmse": (dims, test),
        "function": (
            ("range", "bias", "function_damping", "shown_seed", "point"),
            np.zeros((1, 1, 2, 2, 250)),
        ),
    }
    coordinates = {"range": ["[-4, 4]"], "bias": ["zero"], "damping": [0.01, 1.0], "seed": [0, 1]}
    coordinates["function_damping"] = [0.01, 1.0]
    if times:
        variables["train_rmse_time"] = ("bias", "time", "seed"), np.ones((1, 1, 2))
        variables["test_rmse_time"] = ("bias", "time", "seed"), np.full((1, 1, 2), 7.0)
        coordinates["time"] = [1000.0]
    return xr.Dataset(variables, coordinates)


def sweep_record():
    """K = 1, 100 and infinity for 200 steps; network and proxy end 10 points apart."""
    periods, steps = [1.0, 100.0, math.inf], [0, 100, 200]
    end = np.array([0.6, 0.5, 0.4])[:, None, None] * np.array([0.2, 0.8, 1.0])
    dims = ("period", "seed", "evaluation")
    network = np.repeat(end, 2, axis=1)
    variables = {
        "test_accuracy": (dims, network),
        "test_accuracy_proxy": (dims, network + 0.1),
        "step": (dims, np.broadcast_to(steps, (3, 2, 3))),
        "updates": (dims, np.broadcast_to([0, 1, 2], (3, 2, 3))),
    }
    parameters = json.dumps({"train_size": 3000})
    attributes = {"step_size": 0.01, "momentum": 0.9, "parameters": parameters}
    attributes["data"] = "CIFAR-10, 3000 to train"
    return xr.Dataset(variables, {"period": periods, "seed": [0, 1]}, attributes)


@pytest.fixture(scope="module")
def views():
    found = {
        "xor": xor_record(),
        "damping_quintic": quintic_record(),
        "period_sweep": sweep_record(),
    }
    return page.gather(found, step_size=0.05)[0]


def of(views, name):
    (view,) = [view for view in views if view.name == name]
    return view


def track(times, **settings):
    return Track(times, [""] * len(times), **settings)


def test_the_dial_stops_at_the_recorded_periods_and_at_both_ends(views):
    # XOR's 10 and 1000 at 0.05; the sweep's 100 at 0.01 with momentum 0.9.
    np.testing.assert_allclose(scale.stops(views), [0, 0.5, 10, 50, math.inf])


def test_times_that_differ_by_rounding_are_one_stop():
    tracks = {"": track([], stops=[5.0, 0.5, 5.000001, 0.0, math.inf])}
    assert scale.stops([View("v", "", "", "curves", (), tracks)]) == [0, 0.5, 5, math.inf]


@pytest.mark.parametrize(
    ("stop", "at", "exact"),
    [(0, 2, True), (1, 2, False), (4, 0, False), (49, 0, True), (1e6, 1, False)],
)
def test_the_nearest_run_is_that_by_ratio(stop, at, exact):
    assert track([50.0, 1000.0, 0.05], first=True).nearest(stop) == (at, exact)


def test_the_ends_are_exact_where_the_record_has_them():
    assert track([0.1, math.inf]).nearest(math.inf) == (1, True)
    assert track([0.1, 3.0]).nearest(math.inf) == (1, False)
    assert track([0.1, 3.0]).nearest(0) == (0, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.012, "0.012"), (2, "2"), (50, "50"), (5e3, "5,000"), (1e6, "10⁶"), (2e-5, "2·10⁻⁵")],
)
def test_numbers_read_well(value, text):
    assert scale.quantity(value) == text
    assert scale.quantity(math.inf) == "∞"


def test_words_on_xor_name_the_numbers_of_the_record(views):
    first, *_, last = of(views, "xor-alignment").tracks["period|small"].words
    assert first.startswith("K = 1 (ηK = 0.05): mean alignment 0.990\N{NO-BREAK SPACE}±")
    assert "test accuracy 87.5\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.0 %" in first
    assert "mean alignment 0.900\N{NO-BREAK SPACE}±" in last
    features = of(views, "xor-features").tracks["damping|small"].words
    assert features[0].startswith("λ = 2: 4 of the 4 features of one seed point at a cluster")
    assert features[1].startswith("λ = 0.02: 0 of the 4 ")
    shares = of(views, "xor-histogram").tracks["period|small"].words
    assert [re.search(r"(\d+) %", words)[1] for words in shares] == ["100", "0", "0"]


def test_a_damping_lies_at_the_exchanged_time(views):
    for name in ("xor-features", "quintic-errors"):
        tracks = of(views, name).tracks
        damped = next(tracks[key] for key in tracks if key.startswith("damping"))
        np.testing.assert_allclose(sorted(damped.times)[0], 0.5 / (2 if "xor" in name else 1))


def test_runs_on_xor_that_diverged_are_left_out_and_counted():
    record = xor_record()
    record["alignment_period"][0, 2, 0] = 0.5
    record["train_mse_period"][0, 2, 0] = 7.0
    _, histogram, alignment = toys.xor(record, 0.5, 0.05)
    assert "1 of 3 runs diverged" in histogram.tracks["period|small"].words[2]
    assert "mean alignment 0.900" in alignment.tracks["period|small"].words[2]
    assert "diverged" not in histogram.tracks["period|small"].words[1]


def test_the_quintic_counts_runs_that_are_kept(views):
    errors = of(views, "quintic-errors")
    assert "median 4.00" in errors.tracks["damping|zero"].words[0]
    assert "the 1 of 2 seeds" in errors.tracks["damping|zero"].words[0]
    assert errors.tracks["period|zero"].words[0].startswith("ηK = 1,000: test error median 7.00")
    examples = of(views, "quintic-functions").extra["examples"]
    assert (len(examples), examples[0]["x"], examples[-1]["x"]) == (20, -4, 4)


def test_a_record_without_periods_shows_dampings_for_them():
    _, errors = toys.quintic(quintic_record(times=False), 0.5, 0.05)
    assert errors.tracks["period|zero"] == errors.tracks["damping|zero"]


def test_a_damping_whose_runs_are_all_dropped_has_no_numbers():
    record = quintic_record()
    record["train_rmse"][:] = 9.0
    _, errors = toys.quintic(record, 0.5, 0.05)
    track = errors.tracks["damping|zero"]
    assert "test error unknown, over the 0 of 2 seeds" in track.words[0]
    assert track.briefs == ["", ""]
    json.dumps(charts.vega(errors), allow_nan=False)


def test_curves_are_of_network_and_proxy_where_these_differ(views):
    sweep = of(views, "period-sweep")
    parts = [(row["at"], row["part"]) for row in sweep.rows]
    assert parts == [(0, "network"), (1, "network"), (1, "proxy"), (2, "proxy")]
    # A step takes the time 0.01 / (1 - 0.9); the start has no place on a log axis.
    assert sweep.rows[0]["time"] == [10, 20]
    words = sweep.tracks[""].words
    assert "K = 100 (ηK = 10): test accuracy at the end, after 2 feature updates" in words[1]
    read = words[1].replace("\N{NO-BREAK SPACE}", " ")
    assert "the network 50.0 ± 0.0 %, the proxy 60.0 ± 0.0 %" in read
    assert "Ordinary training, K = 1: 60.0 ± 0.0 %" in read
    assert "Ordinary training" not in words[0]
    assert sweep.title.startswith("CIFAR-10: 3,000 images")


def test_a_run_that_fits_is_shown_up_to_there():
    looks, one = ("seed", "flow_look"), ("size", "time", "seed", "flow_look")
    record = sweep_record()
    accuracy = np.array([[0.1, 0.3, 0.5, 0.5, 0.5]] * 2)
    record = xr.Dataset(
        {
            "flow_step": (one, np.broadcast_to(np.arange(5) * 100, (1, 1, 2, 5))),
            "flow_updates": (one, np.array([[0, 1, 2, 2, 2], [0, 1, 1, 1, 1]])[None, None]),
            "flow_test_accuracy": (one, accuracy[None, None]),
            "flow_test_accuracy_proxy": (one, accuracy[None, None]),
        }
        | {
            f"{kind}_{name}": (("size", *looks[:1], f"{kind}_look"), np.array([[[0, 1]] * 2]) * by)
            for kind in ("sgd", "lazy")
            for name, by in (("step", 50), ("test_accuracy", 0.4), ("test_accuracy_proxy", 0.3))
        },
        {"time": [5], "size": [700], "seed": [0, 1]},
        record.attrs | {"parameters": json.dumps({"unit": 0.1, "sgd_step_size": 0.02})},
    )
    (view,) = images.converged(record, 1.0, 0.05)
    flow = [row for row in view.rows if row["at"] == 1]
    assert [row["time"] for row in flow] == [[10, 20], [10, 20]]
    assert "after 2 feature updates: the network 50.0" in view.tracks[""].words[1]
    assert view.tracks[""].times == [0.02, 5.0, math.inf]


def test_each_chart_compiles_and_draws_what_the_dial_chose(views):
    for view in views:
        spec = charts.vega(view)
        assert spec["$schema"].endswith("v6.json")
        name = next(iter(view.tracks))
        drawn = set()
        for at in range(len(view.tracks[name].times)):
            chosen = {"track": name, "at": at}
            for signal in spec["signals"]:
                signal["value"] = chosen.get(signal["name"], signal.get("value"))
            drawn.add(re.sub(r"clip\d+", "clip", vl_convert.vega_to_svg(spec)))
        assert all("<path" in svg and charts.NOW in svg for svg in drawn), view.name
        alike = view.kind in ("features", "functions")  # the same at all places, in these records
        assert len(drawn) == (1 if alike else len(view.tracks[name].times)), view.name


def test_a_chart_of_another_kind_is_refused(views):
    with pytest.raises(ValueError, match="v: no chart 'pie' among features, "):
        charts.vega(View("v", "", "", "pie", (), {"": track([1.0])}))


@pytest.fixture(scope="module")
def built(views, tmp_path_factory):
    """The dial as a page on its own, with what the book's rendering adds."""
    html = page.html(views, ["Of one there is no record."], 0.5)
    folder = tmp_path_factory.mktemp("html")
    text = f"<html><body><article>{html}</article></body></html>"
    (folder / "explore.html").write_text(text, "utf8")
    render.add_vega(folder)
    return folder


def test_the_dial_needs_nothing_from_elsewhere(built):
    assert list(offline.check(built)) == []
    script = (built / page.SCRIPT).read_text("utf8")
    assert "window.vegaEmbed=" in script
    assert not re.search(r"(?:fetch|import)\(['\"]https?:", script)


def test_vega_is_put_beside_pages_that_ask_for_it(tmp_path):
    (tmp_path / "index.html").write_text("<p>no dial</p>")
    render.add_vega(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert render.VEGA == page.SCRIPT


def test_all_controls_have_labels_and_charts_descriptions(built):
    soup = BeautifulSoup((built / "explore.html").read_text("utf8"), "html.parser")
    dial = soup.find("input", type="range")
    assert soup.find("label", attrs={"for": dial["id"]}).get_text(strip=True)
    assert (dial["min"], dial["max"], dial["step"]) == ("0", "4", "1")
    for choice in soup.find_all("select"):
        assert choice.find_parent("label").get_text(strip=True)
    assert {choice["name"] for choice in soup.find_all("select")} == {"axis", "scale", "bias"}
    told = json.loads(soup.find(class_="dial-told").string)
    values = {
        choice["name"]: [option["value"] for option in choice.find_all("option")]
        for choice in soup.find_all("select")
    }
    for view in told["views"]:
        chart = soup.find(id=f"dial-{view['name']}").find(class_="dial-chart")
        assert chart["role"] == "img"
        assert chart["aria-label"] == view["title"]
        keys = [""]
        for control in view["controls"]:
            keys = [f"{key}|{value}".lstrip("|") for key in keys for value in values[control]]
        assert set(keys) == set(view["tracks"])
        for shown in view["tracks"].values():
            assert len(shown["at"]) == len(told["places"]) == 5
            assert all(shown["words"][at] for at in shown["at"])
    assert told["places"][0]["said"]["period"] == "K = 1: new features at every step"
    assert told["places"][3]["said"] == {
        "period": "ηK = 50, as λ = 0.01",
        "damping": "λ = 0.01, as ηK = 50",
    }
    assert "Of one there is no record." in soup.get_text()


def test_without_a_script_there_is_a_picture_with_words(built):
    soup = BeautifulSoup((built / "explore.html").read_text("utf8"), "html.parser")
    picture = soup.find("noscript").find("img")
    assert picture["src"].startswith("data:image/png;base64,")
    assert "mean alignment 0.990" in picture["alt"]
    hidden = [soup.find(class_=name) for name in ("dial-turn", "dial-more", "dial-views")]
    assert all(part.has_attr("hidden") for part in hidden)


def contrast(colour, ground):
    def luminance(text):
        parts = np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    bright, dim = sorted((luminance(colour), luminance(ground)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_colours_order_the_period_and_can_be_told_from_the_ground():
    places = page._places([0.0, *np.geomspace(0.1, 1e5, 12), math.inf], 0.5)
    for theme, ground in (("light", "#ffffff"), ("dark", "#121212")):
        colours = [place[theme] for place in places]
        assert min(contrast(colour, ground) for colour in colours) > 3, theme
        brightness = [contrast(colour, "#000000") for colour in colours[:-1]]
        assert brightness == sorted(brightness)
        assert len(set(colours)) == len(colours)
        assert len({colours[-1][i : i + 2] for i in (1, 3, 5)}) == 1, "infinity is grey"


def test_text_cannot_end_the_data():
    assert "</script" not in charts.embedded({"words": "</script><b>"})
    assert json.loads(charts.embedded({"words": "</script>"})) == {"words": "</script>"}


def test_a_stale_record_that_lacks_something_is_left_out_with_a_sentence(monkeypatch):
    found = {"xor": None, "period_sweep": sweep_record(), "damping_quintic": xr.Dataset()}
    monkeypatch.setattr(records, "is_stale", lambda record: True)
    views, left_out, rate = page.gather(found, 0.05)
    assert [view.name for view in views] == ["period-sweep"]
    assert rate == 1
    assert left_out[0] == "Of xor there is no record yet."
    assert left_out[1].startswith("The record of damping_quintic is older than this page")
    monkeypatch.setattr(records, "is_stale", lambda record: False)
    with pytest.raises((KeyError, ValueError)):
        page.gather(found, 0.05)


def test_wrong_calls_are_refused():
    with pytest.raises(ValueError, match="the dial does not show filters, but xor, "):
        page.gather({"filters": None}, 0.05)
    with pytest.raises(ValueError, match="nothing to show: no views"):
        page.html([], [], 1.0)


def test_the_page_with_its_data_and_script_is_small(built):
    html = page.html(*page.gather({name: records.best(name) for name in SHOWN}, 0.05))
    sizes = len(html.encode()), (built / page.SCRIPT).stat().st_size
    assert sum(sizes) < MOST_BYTES, sizes


def test_the_page_shows_these_records_and_the_first_page_leads_to_it():
    text = (ROOT / "book" / "explore.md").read_text("utf8")
    assert all(f'"{name}"' in text for name in SHOWN)
    assert set(SHOWN) == set(page.VIEWS)
    assert "<explore>" in (ROOT / "book" / "index.md").read_text("utf8")


@pytest.mark.skipif(chromium.COMMAND is None, reason="there is no chromium")
def test_the_dial_turns_by_keyboard_and_says_where_it_is(built, tmp_path):
    script = (ROOT / "book" / "_static" / "dial.js").read_text("utf8")
    text = (built / "explore.html").read_text("utf8")
    live = built / "live.html"
    live.write_text(text.replace("</body>", f"<script>{script}</script></body>"), "utf8")
    told = 'document.querySelector("#dial-xor-alignment .dial-words")?.textContent'
    chart = 'document.querySelector("#dial-xor-alignment .dial-chart")'
    dial = 'document.querySelector("#dial-stop")'
    try:
        with chromium.Page(live.as_uri(), tmp_path) as browser:
            browser.wait(f"!!{told}")
            assert browser.ask("document.querySelectorAll('.dial-chart svg').length") == 6
            browser.press("Tab")
            assert browser.ask("document.activeElement.id") == "dial-stop"
            browser.press("Home")
            assert browser.ask(told).startswith("K = 1 (ηK = 0.05): mean alignment 0.990")
            drawn = browser.ask(f"{chart}.innerHTML")
            browser.press("ArrowRight")
            assert browser.ask(f'{dial}.getAttribute("aria-valuetext")') == "ηK = 0.5, as λ = 1"
            assert browser.ask(told).startswith("K = 10 (ηK = 0.5): mean alignment 0.945")
            label = f'{chart}.getAttribute("aria-label")'
            assert browser.ask(label) == f"XOR: mean alignment. {browser.ask(told)}"
            browser.wait(f"{chart}.innerHTML !== {json.dumps(drawn)}")
            browser.press("End")
            assert browser.ask(told).startswith("Nearest on record, K = 1,000 (ηK = 50)")
            choose = 'document.querySelector("select[name=axis]")'
            browser.ask(f"{choose}.value = 'damping'; {choose}.dispatchEvent(new Event('change'))")
            assert browser.ask(told).startswith("Nearest on record, λ = 0.02")
    finally:
        live.unlink()
