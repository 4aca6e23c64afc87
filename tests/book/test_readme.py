"""The README, CONTRIBUTING and the pages name numbers, commands, files and names that exist."""

import importlib
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name

import iterlin
import pytest
import xarray as xr
from iterlin_study.records import records

from book.index_helpers import told

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf8")
API = (ROOT / "book" / "appendix" / "api.md").read_text("utf8")
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "book").rglob("*.md"))]
WORKFLOW = (ROOT / ".github" / "workflows" / "check.yml").read_text("utf8")


def test_findings_are_what_the_records_say():
    listed = README.split("## What was found")[1].split("\n## ")[0]
    assert re.findall(r"^- (.*)$", listed, re.M) == list(told("[{title}](book/{page}.md)"))


def test_finding_without_a_record_is_left_out(monkeypatch):
    older = xr.Dataset(attrs={"experiment": "trial", "tier": "laptop"})
    for record in (None, older):
        monkeypatch.setattr(records, "best", lambda experiment, found=record: found)
        assert list(told()) == []


def test_places_of_the_readme_exist():
    rows = re.findall(r"^\| (`.*?) \|", README.split("## The map")[1], re.M)
    places = re.findall(r"`([^`]+)`", " ".join(rows)) + re.findall(r"\]\((book/[^)]+)\)", README)
    for place in places:
        assert list(ROOT.glob(place.rstrip("/"))), place


def test_named_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf8"), re.M))
    for text in (WORKFLOW, *(path.read_text("utf8") for path in GUIDES)):
        assert set(re.findall(r"(?:`|^ *|run: )make ([a-z][\w-]*)", text, re.M)) <= targets


def exists(dotted):
    """Return whether a dotted name is a module or an attribute of one."""
    module, _, name = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted) is not None
    except ModuleNotFoundError:
        return bool(module) and exists(module) and hasattr(resolve_name(module), name)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_dotted_names_exist(path):
    text = path.read_text("utf8")
    named = re.findall(r"\biterlin(?:_book)?(?:\.[A-Za-z_]\w*)+", text)
    assert not [name for name in named if not exists(name)]


@pytest.mark.parametrize("name", iterlin.__all__)
def test_public_name_is_explained_and_listed(name):
    value = getattr(iterlin, name)
    assert value.__doc__
    place = value.__name__ if inspect.ismodule(value) else f"~{value.__module__}.{name}"
    assert f"`{place}`" in API


def test_example_of_the_reference_runs(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", API, re.M | re.S)
    exec(compile(code, "api.md", "exec"), {})
    accuracy, updates = capsys.readouterr().out.split()
    assert float(accuracy) > 0.5
    assert int(updates) == 9
