"""A page's outputs are outdated once its code, the library or what it shows has changed."""

from types import SimpleNamespace

import jupytext
import nbformat
import pytest
import toy_book
from iterlin_book import freshness, merge, pages, xla
from nbformat.v4 import new_output


@pytest.fixture
def root(tmp_path):
    return toy_book.create(tmp_path)


def digest(root, tier="quick", values=None, more=""):
    notebook = pages.read(root, "other")
    notebook.cells.append(nbformat.v4.new_code_cell(more))
    return freshness.digest(root, "other", tier, notebook, values or {})


def test_digests_follow_code_tags_parameters_tier_library_and_lock_but_not_prose(root):
    first, tier = digest(root), digest(root, "laptop")
    found = {first, tier, digest(root, "laptop", {"a": 1}), digest(root, more="1")}
    assert len(found) == 4
    toy_book.edit(root, "book/other.md", "# Second page", "# Another title\n\nProse.")
    assert digest(root) == first
    for file, old, new in (
        ("lib/iterlin/gamma.py", "-x", "-x - 1"),
        ("requirements.lock", "numpy==1", "numpy==2"),
        ("book/other.md", "ipython3\n", "ipython3\n:tags: [hide-input]\n\n"),
    ):
        toy_book.edit(root, file, old, new)
        assert digest(root) not in found
        found.add(digest(root))


def test_digests_follow_the_helpers_that_a_page_imports_and_theirs(root):
    code = "from book.one import other\nfrom book import three as x"
    paths = [root / "book" / f"{name}.py" for name in ("one", "two", "three")]
    for path in paths:
        path.write_text("from book import (\n    two as other,\n)\n" if path == paths[0] else "")
    found = {digest(root, more=code)}
    for path in paths:
        path.write_text(f"{path.read_text()}# changed\n")
        found.add(digest(root, more=code))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("records", {"other"}),
        ("records.best('named')", {"other", "named"}),
        ("openings.figure('part/named', draw)", {"other", "named"}),
        ("!ls\nfolder = 'data/results'", {"other", "named", "unrelated"}),
        ("claims.table('C1')", {"other", "named", "unrelated"}),
    ],
)
def test_digests_follow_the_records_and_claims_that_a_page_shows(root, code, shown):
    names = ("other", "named", "unrelated")
    paths = {name: root / "data" / "results" / name / "laptop.nc" for name in names}
    for path in paths.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(b"content")
    before = digest(root, more=code)
    # What a killed run left half written.
    paths["other"].with_name(".laptop-x.nc").write_bytes(b"half")
    assert digest(root, more=code) == before
    for name, path in paths.items():
        path.write_bytes(b"other content")
        assert (digest(root, more=code) != before) == (name in shown)
        path.write_bytes(b"content")
    own, alike = (root / "book" / f"{name}.laptop.yml" for name in ("other", "alike"))
    own.write_text("like: alike\n")
    changed = digest(root, more=code)
    alike.write_text("seeds: 2\n")
    assert len({before, changed, digest(root, more=code)}) == 3
    own.unlink()
    alike.unlink()
    toy_book.edit(root, "book/claims.yml", "[]\n", "[]  # none\n")
    assert digest(root, more=code) != before


def test_outputs_move_to_the_current_prose_with_words_unless_the_page_has_its_own():
    cells = "".join(f"```{{code-cell}} ipython3\n{name} = 1\n```\n\n" for name in "ab")
    text = f"# Title\n\n{cells}Text.\n"
    ran = jupytext.reads(text, fmt="md:myst")
    for cell, kind in zip(pages.code_cells(ran), ("png", "svg+xml"), strict=True):
        cell.execution_count = 1
        cell.outputs = [new_output("display_data", data={f"image/{kind}": "AAAA"})]
    current = jupytext.reads(text.replace("Text.", "Other text."), fmt="md:myst")
    current.cells[2].metadata["mystnb"] = {"image": {"alt": "Own words"}}
    merged = merge.with_outputs("page", current, ran)
    assert merged.cells[3].source == "Other text."
    assert [cell.outputs for cell in merged.cells[1:3]] == [cell.outputs for cell in ran.cells[1:3]]
    words = [cell.metadata["mystnb"]["image"]["alt"] for cell in merged.cells[1:3]]
    assert words == ["Figure computed in the section “Title”", "Own words"]
    current.cells[1].source = "a = 2"
    with pytest.raises(pages.BookError, match="page: its code"):
        merge.with_outputs("page", current, ran)


@pytest.mark.parametrize(
    ("version", "quick", "count"),
    [("0.10.1", True, len(xla.QUICKER)), ("0.10.1", False, 0), ("0.11.0", True, 0)],
)
def test_flags_depend_on_the_version_and_keep_the_caller_s(monkeypatch, version, quick, count):
    asked = "--xla_cpu_enable_concurrency_optimized_scheduler=true"
    environment = {"XLA_FLAGS": asked}
    monkeypatch.setattr(xla, "os", SimpleNamespace(environ=environment))
    monkeypatch.setattr(xla.metadata, "version", lambda name: version)
    xla.set_flags(quick)
    first, *others = environment["XLA_FLAGS"].split()
    assert (first, len(others)) == (asked, count)
