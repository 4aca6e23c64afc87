"""Tables say what the samples say, and a dash where there are none."""

import numpy as np
from bs4 import BeautifulSoup
from iterlin_study.report import tables
from test_early_stopping import curves


def pair(mean, half):
    """Held together, so that a table does not break it."""
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half}"


def read(shown):
    return BeautifulSoup(shown.data, "html.parser")


def cells(shown):
    return [[cell.get_text() for cell in row.select("td")] for row in read(shown).select("tr")]


def test_intervals_in_words():
    assert tables.interval_text([1.0, 2.0, 3.0, 4.0]) == pair("2.5", "2.1")
    assert tables.interval_text([1.0, 2.0, 3.0, np.nan]) == "2.0"
    assert tables.interval_text([np.nan, np.nan]) == "–"
    assert tables.interval_text(4 * [0.123], digits=2) == pair("0.12", "0.00")


def test_a_table_has_titled_columns_and_a_caption():
    shown = tables.table(["", "b"], [[1, 500 * "x"], [2, ""]], "Two rows")
    assert [th["scope"] for th in read(shown).select("thead th")] == ["col"]
    assert cells(shown) == [[""], ["1", 500 * "x"], ["2", ""]]
    assert read(shown).caption.get_text() == "Two rows"
    assert tables.FOOT not in shown.data
    assert tables.FOOT in tables.table(["a"], [[pair(1, 2)]]).data


def test_readings_of_runs():
    ds = curves().isel(seed=[0, 1, 0, 1])
    ds["updates"] = ds.step // 10
    ds["diverged_at"] = (("period", "seed"), [4 * [-1], [50, -1, -1, -1]])
    ds["accuracy_oracle"] = 100 * ds.test_accuracy.max("evaluation")
    ds["accuracy_validated"] = ds.accuracy_oracle - 1
    _, first, second = cells(tables.readings(ds, title="All runs"))
    assert first[:2] == ["K = 1", "100"]
    assert first[-2:] == [pair("1.0", "0.0"), "0"]
    assert (second[0], second[-1]) == ("K = ∞", "1")
