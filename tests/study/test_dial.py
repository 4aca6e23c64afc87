"""The dial shows what is on record and says what is not."""

import json
import re

import jax
import numpy as np
import pytest
from bs4 import BeautifulSoup
from iterlin_study.records import records
from iterlin_study.runs.features import RANDOM_ALIGNMENT
from toy_book import ROOT

from book import explore_charts as charts
from book import explore_helpers as recorded

HOSTILE = "</script><script>alert('1')</script>"


@pytest.fixture(scope="module")
def found():
    """The records that the page shows."""
    text = (ROOT / "book/explore.md").read_text("utf8")
    return {name: records.best(name) for name in json.loads(re.search(r"SHOWN = (.*)", text)[1])}


@pytest.fixture(scope="module")
def dial(found):
    record = found["xor"].assign_coords(scale=["small", HOSTILE])
    panels = [*recorded.xor(record, "period"), recorded.by_period(found["few_updates"])]
    return charts.html("Period", "Weights", panels)


def told(html):
    """What a dial says: {choice: {stop: (all results, lines above the charts)}}."""
    spec = json.loads(BeautifulSoup(html, "html.parser").find("script").string)
    (words,) = (one["value"] for one in spec["signals"] if one["name"] == "words")
    return {choice: {stop: rest for stop, *rest in stops} for choice, stops in words.items()}


def test_numbers_stand_only_at_the_stops_of_their_record(found, dial):
    record, said = found["few_updates"], told(dial)["small"]
    unit = record.attrs["step_size"] / (1 - record.attrs["momentum"])
    stops = {k: recorded.place("period", k, unit)["stop"] for k in record.period.values.tolist()}
    blank = {stop for stop, (_, lines) in said.items() if lines[3] == ["not on record"]}
    assert said.keys() - blank == {*stops.values(), recorded.NEVER}
    assert {"ηK = 5", "ηK = 5,000"} <= blank
    assert all("images: not on record" in said[stop][0] for stop in blank)
    for period, stop in stops.items():
        run = record.sel(period=period).isel(evaluation=-1)
        first, network, *_ = said[stop][1][3]
        assert first == f"K = {period:,}, {run.updates.mean():,.0f} feature updates"
        assert network.startswith(f"network {100 * run.test_accuracy.mean():.1f}")
    assert said[recorded.NEVER][1][3][0] == "K = ∞, 0 feature updates"


def test_a_dial_starts_where_all_charts_have_a_run(dial):
    spec = json.loads(BeautifulSoup(dial, "html.parser").find("script").string)
    start = next(one["value"] for one in spec["signals"] if one["name"] == "stop")
    _, lines = list(told(dial)["small"].values())[start]
    assert not any("not on record" in shown for shown in lines)
    assert 0 < start < len(told(dial)["small"]) - 1


def test_at_infinity_stand_the_features_before_training(found):
    rows = recorded.xor(found["xor"], "period")[2].rows
    row = next(row for row in rows if row["stop"] == recorded.NEVER)
    assert row["updates"] == "0 feature updates"
    assert row["words"][1] == "test accuracy not on record"
    assert row["mean"] == pytest.approx(RANDOM_ALIGNMENT, abs=0.01)
    with jax.enable_x64(True):  # as on the page on XOR
        start = recorded.before_training(0.1, 30)
    run = found["xor"].sel(scale="small", period=1e6)
    moved = np.linalg.norm(run.feature_period.values - start.feature.values)
    assert moved > 0.01  # that run is none without updates


def test_a_run_that_fits_is_shown_up_to_there(found):
    record, rows = found["converged"].isel(size=-1), recorded.converged(found["converged"]).rows
    for time, row in zip(record.time.values, rows[1:-1], strict=True):
        updates = record.flow_updates.sel(time=time).values
        last = (updates < updates[:, -1:]).any(0).sum()  # the first look at which all have ended
        step = record.flow_step.sel(time=time).mean("seed").values[last]
        asked = json.loads(record.attrs["parameters"])
        assert max(row["elapsed"]) == pytest.approx(asked["unit"] * step, rel=1e-3)


def test_no_text_of_a_record_ends_the_data_and_without_javascript_there_is_a_picture(dial):
    html = BeautifulSoup(dial, "html.parser")
    (script,) = html.find_all("script")
    assert HOSTILE in told(dial)
    assert "<" not in script.string
    picture = html.find("noscript").find("img")
    assert picture["src"].startswith("data:image/svg+xml;base64,")
    assert "feature updates): alignment" in picture["alt"]


def test_the_period_of_sums_is_measured_in_decay_times():
    record = records.best("grokking")
    rows = {row["stop"]: row for row in recorded.grokking(record).rows}
    times = {f"ηK = {time:g}" for time in (0.5, 1, 1.5, 3)}
    assert set(rows) == {recorded.EVERY_STEP, recorded.NEVER, *times}
    last = record.sel(decay=1, time=3).isel(look=-1)
    for name, words in zip(("", "_proxy"), rows["ηK = 3"]["words"], strict=True):
        assert f" {100 * last[f'main_test_accuracy{name}'].mean():.1f}" in words
    assert max(rows[recorded.EVERY_STEP]["elapsed"]) == 20
