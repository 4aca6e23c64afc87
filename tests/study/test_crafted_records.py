"""What a record says, whoever wrote it, is plain text on a page."""

import json

import numpy as np
import pytest
import toy_pages
import xarray as xr
import yaml
from bs4 import BeautifulSoup
from crafted import TEXT
from iterlin_book import merge
from iterlin_study.records import comparison, records
from iterlin_study.report import claims, claims_table, openings, tables
from iterlin_study.report import page as page_module
from toy_book import ROOT

from bench import report


def poisoned(value, *, names=False):
    """Append TEXT to every text in a value of JSON; names: to the names of mappings, too."""
    if isinstance(value, str):
        return value + TEXT
    if isinstance(value, dict):
        return {name + names * TEXT: poisoned(part) for name, part in value.items()}
    return [poisoned(part) for part in value] if isinstance(value, list) else value


def poisoned_record(record, *, kept=()):
    """Append TEXT to every text of a record, names of variables included."""
    attributes = {}
    for name, value in record.attrs.items():
        if name in kept or not isinstance(value, str):
            attributes[name] = value
        elif value.startswith(("[", "{")):
            names = name in ("parameters", "peers", "versions")
            attributes[name] = json.dumps(poisoned(json.loads(value), names=names))
        else:
            attributes[name] = value + TEXT
    coords = {
        name: (variable.dims, np.array(poisoned(variable.values.tolist()), object))
        for name, variable in record.variables.items()
        if variable.dtype.kind in "UOT"
    }
    found = record.assign_coords(coords).assign_attrs(attributes | {f"attribute{TEXT}": 1})
    return found.assign({f"variable{TEXT}": (f"dimension{TEXT}", [1.0])})


def test_no_text_of_a_record_acts_on_a_page(root, monkeypatch, displayed):
    (root / "book" / "claims.yml").write_text(yaml.safe_dump([toy_pages.CLAIM]))
    monkeypatch.setattr(report, "display", displayed.append)
    page = page_module.Page("trial", toy_pages.VALUES)
    live = toy_pages.results().assign(drop=("bound", [1.0, 0.9, 1.1]))
    live = page.save(live.assign_coords(kind=("period", ["a", "b"])))
    part = {"device": "d", "date": "2031-01-01", "commit": "0123456+changes"}
    live.attrs["parts"] = json.dumps([part])
    record = poisoned_record(live, kept=("experiment", "tier"))
    monkeypatch.setattr(records, "best", lambda experiment: record)
    page.shown(live)
    page.shown(live.assign({f"more{TEXT}": 1.0}))
    openings.show("experiments/trial")
    openings.figure("experiments/trial", lambda record: record[f"more{TEXT}"])
    displayed.append(tables.table([*record.attrs], [list(record.attrs.values())]))
    displayed.append(tables.table([*record.dims, *record.variables], [], TEXT))
    displayed.append(tables.said(TEXT))
    displayed.append(claims_table.HTML(claims_table.lines(ours=False)))
    measured = poisoned_record(xr.load_dataset(ROOT / "data/results/performance/laptop.nc"))
    shown = report.Report(measured)
    for part in (shown.show_ratios, shown.show_times):
        part(set(shown.rows["case"]))
    for part in (shown.show_origin, shown.show_missed, shown.show_slopes, shown.show_conditions):
        part()
    monkeypatch.setattr(comparison, "experiments", lambda: ["trial"])
    filled = merge.fill(merge.QUICK_RUNS, {})
    assert "Heading" in filled
    assert "\n\n" not in filled  # a blank line would end the HTML within the page's Markdown
    html = BeautifulSoup("\n".join([filled, *(shown.data for shown in displayed)]), "html.parser")
    for style in html.select("style"):
        style.extract()
    assert len(html.select("table")) > 6
    assert " ".join(TEXT.split()) in " ".join(html.get_text().split())
    file = "../_static/records/trial-laptop.csv"
    assert {link["href"] for link in html.select("a")} == {"experiments/trial.html", file}
    assert html.select("img, script, iframe, object, h1, h2") == []
    assert [name for tag in html.find_all(True) for name in tag.attrs if name[:2] == "on"] == []


def test_the_findings_hold_nothing_of_a_record_but_numbers(monkeypatch):
    """They alone are shown as Markdown, because the README tells them too."""
    best = records.best

    def with_texts(name):
        record = best(name)
        numbers = [name for name, value in record.attrs.items() if not isinstance(value, str)]
        texts = record.map(lambda variable: xr.full_like(variable, TEXT, object))
        return texts.assign_attrs(record.attrs | dict.fromkeys(numbers, TEXT))

    monkeypatch.setattr(records, "best", with_texts)
    with pytest.raises((ValueError, TypeError)):
        [claims.judge(row).finding for row in claims.load_claims()]
