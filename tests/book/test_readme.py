"""The README, CONTRIBUTING and the pages name numbers, commands, files and names that exist."""

import importlib
import inspect
import re
from pkgutil import resolve_name

import iterlin
import pytest
from iterlin_study.report import claims
from toy_book import ROOT

from book.index_helpers import CARDS, FIRST

README = (ROOT / "README.md").read_text("utf8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf8")
API = (ROOT / "book" / "appendix" / "api.md").read_text("utf8")
MEMBERS = [path.read_text("utf8") for path in (ROOT / "book" / "appendix").glob("api_*.md")]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "book").rglob("*.md"))]


def told(names, link=""):
    """The findings of rows, each behind a link to its page."""
    rows = {row["id"]: row for row in claims.load_claims()}
    links = [link.format(title=CARDS.get(name, ""), page=rows[name]["page"]) for name in names]
    found = [claims.judge(rows[name]).finding for name in names]
    return [link + finding for link, finding in zip(links, found, strict=True)]


def test_findings_are_what_the_records_say():
    listed = README.split("## What was found")[1].split("\n## ")[0]
    link = "**[{title}](book/{page}.md).** "
    assert re.findall(r"^- (.*)$", listed, re.M) == told(list(CARDS)[:5], link)
    for sentence in (*told([*FIRST, "C1-augmented"]), claims.summary()):
        assert sentence in README


def test_places_that_are_named_exist():
    rows = re.findall(r"^\| (`.*?) \|", CONTRIBUTING, re.M)
    places = re.findall(r"`([^`]+)`", " ".join(rows)) + re.findall(r"\]\((book/[^)]+)\)", README)
    assert places
    for place in places:
        assert list(ROOT.glob(place.rstrip("/"))), place


def test_named_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf8"), re.M))
    for path in GUIDES:
        named = re.findall(r"(?:`|^ *)make ([a-z][\w-]*)", path.read_text("utf8"), re.M)
        assert set(named) <= targets


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
    module = value.__name__ if inspect.ismodule(value) else value.__module__
    place = module if inspect.ismodule(value) else f"~{module}.{name}"
    assert f"`{place}`" in API
    assert any(f".. automodule:: {module}\n" in text for text in MEMBERS)


def test_example_of_the_reference_runs(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", API, re.M | re.S)
    exec(compile(code, "api.md", "exec"), {})
    accuracy, updates = capsys.readouterr().out.split()
    assert float(accuracy) > 0.5
    assert int(updates) == 9
