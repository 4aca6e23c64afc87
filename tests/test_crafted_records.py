"""What a record says, whoever wrote it, is text on a page: it copies no file, links nowhere and
runs nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import toy_pages
import xarray as xr
import yaml
from bs4 import BeautifulSoup
from IPython.core.formatters import DisplayFormatter
from iterlin.study import claims_table, comparison, openings, records, tables
from iterlin.study import page as page_module
from iterlin_book import build_facts
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from bench import report
from book.index_helpers import told

ROOT = Path(__file__).resolve().parents[1]
SECRET = "what only this machine knows"
CLAIM = {
    "id": "C1",
    "version": "v1",
    "place": "section 1",
    "page": "experiments/trial",
    "experiment": "trial",
    "claim": "It falls.",
    "paper": "from 3 to 1",
    "expected": "reproduced",
    "statements": [{"says": "by", "statistic": "gain", "above": 0.5}],
}


def crafted(place):
    """What Markdown, HTML or MathJax would act on; `place` is a file."""
    return (
        f"[60]({place}) ![x]({place}.png) {{download}}`x <{place}>` <file://{place}> "
        f'<img src="{place}.png" onerror="alert(1)"> <script>alert(1)</script> </script> '
        r"<!-- | \(\href{javascript:alert(1)}{x}\) $\href{javascript:alert(1)}{x}$ &lt; "
        f"\n\n```{{include}} {place}\n```\n\n```{{eval-rst}}\n.. include:: {place}\n```\n"
        f"\n```{{image}} {place}.png\n```\n\n# Heading\n"
    )


def poisoned(value, text, *, names=False):
    """The same with the text after every text in it, with names after those as well."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, dict):
        return {name + names * text: poisoned(part, text) for name, part in value.items()}
    return [poisoned(part, text) for part in value] if isinstance(value, list) else value


def poisoned_record(record, text, *, kept=()):
    """A record whose every text has that text at its end, names of variables included."""
    attributes = {}
    for name, value in record.attrs.items():
        if name in kept or not isinstance(value, str):
            attributes[name] = value
        elif value.startswith(("[", "{")):
            names = name in ("parameters", "peers", "versions")
            attributes[name] = json.dumps(poisoned(json.loads(value), text, names=names))
        else:
            attributes[name] = value + text
    coords = {
        name: (variable.dims, np.array(poisoned(variable.values.tolist(), text), object))
        for name, variable in record.variables.items()
        if variable.dtype.kind in "UOT"
    }
    found = record.assign_coords(coords).assign_attrs(attributes | {f"attribute{text}": 1})
    return found.assign({f"variable{text}": (f"dimension{text}", [1.0])})


def notebook(*shown, prose=""):
    """A page of prose and one cell that displayed these objects."""
    formatted = (DisplayFormatter().format(one) for one in shown)
    outputs = [new_output("display_data", data, metadata=about) for data, about in formatted]
    cells = [new_markdown_cell(f"# A page\n\n{prose}"), new_code_cell("show()", outputs=outputs)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def rendered(folder, **notebooks):
    """The pages as soup, after Sphinx has made them with the book's settings of MyST."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    source = folder / "source"
    source.mkdir()
    for name, one in notebooks.items():
        nbformat.write(one, source / f"{name}.ipynb")
    settings = {
        "extensions": ["myst_nb", "sphinx.ext.mathjax"],
        "root_doc": next(iter(notebooks)),
        "nb_execution_mode": "off",
        "nb_render_markdown_format": config["sphinx"]["config"]["nb_render_markdown_format"],
        "myst_enable_extensions": config["parse"]["myst_enable_extensions"],
    }
    (source / "conf.py").write_text(f"globals().update({settings!r})\n")
    command = [sys.executable, "-m", "sphinx", "-q", source, folder / "html"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    texts = {name: (folder / "html" / f"{name}.html").read_text() for name in notebooks}
    return {name: BeautifulSoup(text, "html.parser") for name, text in texts.items()}


def published(folder):
    """What of the secret files is among the pages."""
    files = (path for path in (folder / "html").rglob("*") if path.is_file())
    return {path.suffix for path in files if SECRET.encode() in path.read_bytes()}


@pytest.fixture
def place(tmp_path):
    """A readable file outside of the book, and a picture of the same name beside it."""
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    for path in (secret, secret.with_suffix(".png")):
        path.write_text(SECRET)
    return os.path.relpath(secret, tmp_path / "source")


@pytest.fixture
def displayed(monkeypatch):
    found = []
    for module in (page_module, openings, report):
        monkeypatch.setattr(module, "display", lambda *shown: found.extend(shown))
    return found


def test_no_text_of_a_record_acts_on_a_page(tmp_path, monkeypatch, place, displayed):
    text = crafted(place)
    project = toy_pages.write(tmp_path / "project")
    (project / "book" / "claims.yml").write_text(yaml.safe_dump([CLAIM]))
    monkeypatch.chdir(project)
    values = {"tier": "laptop", "num_seeds": 3, "periods": (5, 20)}
    page = page_module.Page("trial", values)
    live = toy_pages.results().assign(gain=("bound", [1.0, 0.9, 1.1]))
    live = page.save(live.assign_coords(kind=("period", ["a", "b"])))
    live.attrs["parts"] = json.dumps([{"device": "d", "date": "2031-01-01", "commit": "0"}])
    record = poisoned_record(live, text, kept=("experiment", "tier"))
    monkeypatch.setattr(records, "best", lambda experiment: record)
    page.shown(live)
    page.shown(live.assign({f"more{text}": 1.0}))
    openings.show("experiments/trial")
    openings.figure("experiments/trial", lambda record: record[f"more{text}"])
    displayed.append(tables.table([*record.attrs], [list(record.attrs.values())]))
    displayed.append(tables.table([*record.dims, *record.variables], [], text))
    displayed.append(tables.said(text))
    readings = poisoned_record(run_ends(), text)
    displayed.append(tables.readings(readings, "solver", str))
    displayed.append(claims_table.HTML(claims_table.table()))
    measured = poisoned_record(xr.load_dataset(ROOT / "data/results/performance/laptop.nc"), text)
    shown = report.Report(measured)
    for part in (shown.show_all, shown.show_origin, shown.show_missed, shown.show_commands):
        part()
    assert len(displayed) > 12

    monkeypatch.setattr(comparison, "experiments", lambda: ["trial"])
    filled = build_facts.fill(build_facts.QUICK_RUNS, {})
    assert "Heading" in filled
    one = rendered(tmp_path, index=notebook(*displayed, prose=filled))["index"]
    assert published(tmp_path) == set()
    output = one.select_one("section")
    output.h1.extract()
    assert len(output.select("table")) > 6
    assert " ".join(text.split()) in " ".join(output.get_text().split())
    links = {link["href"] for link in output.select("a")}
    assert links == {"experiments/trial.html"}
    assert output.select("img, script, iframe, object, h1, h2") == []
    assert [name for tag in output.find_all(True) for name in tag.attrs if name[:2] == "on"] == []
    # MathJax leaves a page's text alone but for what is marked as mathematics.
    assert "mathjax_ignore" in output["class"]
    assert output.select(".math, .output_area, .tex2jax_process, .mathjax_process") == []


def run_ends():
    """The variables that `tables.readings` shows, by solver."""
    dims = ("solver", "seed", "evaluation")
    curve = (dims, np.full((2, 2, 3), 0.5))
    names = ("updates", "test_accuracy", "test_accuracy_proxy")
    read = {
        f"accuracy_{name}": (dims[:2], np.full((2, 2), 50.0)) for name in ("oracle", "validated")
    }
    ended = {"diverged_at": (dims[:2], np.full((2, 2), -1))}
    return xr.Dataset(dict.fromkeys(names, curve) | read | ended, {"solver": ["SGD", "Adam"]})


def test_the_findings_hold_nothing_of_a_record_but_numbers(monkeypatch, place):
    """They alone are shown as Markdown, because the README tells them too."""
    text = crafted(place)
    best = records.best
    monkeypatch.setattr(records, "best", lambda name: in_place_of_numbers(best(name), text))
    with pytest.raises((ValueError, TypeError)):
        list(told())


def in_place_of_numbers(record, text):
    values = {name: text for name, value in record.attrs.items() if not isinstance(value, str)}
    data = {
        name: (variable.dims, np.full(variable.shape, text, object))
        for name, variable in record.data_vars.items()
    }
    return record.assign(data).assign_attrs(values)
