"""Which modules of the library a page's code reaches, read off its import statements."""

import nbformat
import pytest
import toy_book
from iterlin.study import records
from iterlin_book import freshness, pages


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import numpy as np\nnp.exp(1)", []),
        ("import iterlin as il\nil.linearize(f, p)", ["linearization"]),
        ("import iterlin\niterlin.every(3)", ["schedules"]),
        ("import iterlin as il\nil.ntk.empirical_ntk", ["ntk"]),
        ("from iterlin import never, models", ["models", "schedules"]),
        ("from iterlin.ntk import empirical_ntk as k", ["ntk"]),
        ("import iterlin.study.data as d", ["data"]),
        ("import iterlin.study.data", ["data"]),
        ("def f():\n    from iterlin import losses", ["losses"]),
        ("%matplotlib inline\n!ls\nfrom iterlin import losses", ["losses"]),
        ("import iterlin as il\nil.__version__", []),
    ],
)
def test_modules_follow_from_the_names_used(source, modules):
    assert freshness.library_modules([source]) == modules


@pytest.mark.parametrize(
    "source",
    [
        "from iterlin import *",
        "import iterlin as il\ngetattr(il, name)",
        "import iterlin as il\nil.not_yet_known",
        "this is (no Python",
    ],
)
def test_everything_counts_where_it_cannot_be_told(source):
    assert freshness.library_modules([source]) == freshness.all_modules()


def test_an_import_in_one_cell_serves_the_next():
    assert freshness.library_modules(["import iterlin as il", "il.every(2)"]) == ["schedules"]


def test_digests_follow_tags_parameters_and_tier_but_not_prose(tmp_path):
    root = toy_book.create(tmp_path)

    def digest(tier="quick", values=None):
        notebook = pages.read(root, "other")
        # The toy library is for other processes: in this one `negate` would not resolve.
        for cell in pages.code_cells(notebook):
            cell.source = cell.source.replace("from iterlin import negate", "")
        return freshness.digest(root, "other", tier, notebook, values or {})

    first = digest()
    assert (
        len({first, digest("laptop"), digest("laptop", {"a": 1}), digest("laptop", {"a": 2})}) == 4
    )
    toy_book.edit(root, "book/other.md", "# Second page", "# Another title\n\nProse.")
    assert digest() == first
    toy_book.edit(root, "book/other.md", "ipython3\n", "ipython3\n:tags: [hide-input]\n\n")
    assert digest() != first


def test_staleness_of_a_shown_record_is_part_of_the_digest(tmp_path, monkeypatch):
    root = toy_book.create(tmp_path)
    record = root / "data" / "results" / "other" / "gpu.nc"
    record.parent.mkdir(parents=True)
    record.write_bytes(b"content")
    notebook = pages.read(root, "index") or pages.read(root, "experiments/xor")
    notebook.cells = []
    digests = set()
    for stale in (True, False):
        monkeypatch.setattr(freshness, "_is_stale", lambda path, stale=stale: stale)
        digests.add(freshness.digest(root, "other", "quick", notebook, {}))
    assert len(digests) == 2


def test_staleness_is_looked_up_once_for_a_state(tmp_path, monkeypatch):
    record, looked = tmp_path / "xor" / "laptop.nc", []
    record.parent.mkdir()
    record.write_bytes(b"content")
    monkeypatch.setattr(records, "load", lambda *arguments: None)
    monkeypatch.setattr(records, "is_stale", lambda found: looked.append(found) or True)
    assert [freshness._is_stale(record) for _ in range(3)] == [True] * 3
    assert len(looked) == 1
    record.write_bytes(b"other content")
    assert freshness._is_stale(record)
    assert len(looked) == 2


def test_pages_with_claims_show_the_records_that_claims_judge_and_no_others(tmp_path):
    root = toy_book.create(tmp_path)
    toy_book.edit(root, "book/claims.yml", "[]", "[{id: C1, experiment: judged}, {id: C2}]")
    files = {}
    for name in ("judged", "own", "named", "unrelated"):
        files[name] = root / "data" / "results" / name / "laptop.nc"
        files[name].parent.mkdir(parents=True)
        files[name].write_bytes(b"content")
    cells = [nbformat.v4.new_code_cell("records.best('named')")]

    def shown(closure, tier="quick"):
        found = freshness.shown_records(root, "experiments/own", tier, cells, closure)
        return {path.parent.name for path in found}

    assert shown({"claims"}) == {"judged", "own", "named"}
    assert shown(set()) == {"own", "named"}
    assert shown({"claims"}, "laptop") == set()
