"""A page's outputs are outdated once its code, the library or what it shows has changed."""

import nbformat
import pytest
import toy_book
from iterlin_book import freshness, pages


@pytest.fixture
def root(tmp_path):
    return toy_book.create(tmp_path)


def digest(root, tier="quick", values=None, more=""):
    notebook = pages.read(root, "other")
    notebook.cells.append(nbformat.v4.new_code_cell(more))
    return freshness.digest(root, "other", tier, notebook, values or {})


def test_digests_follow_code_tags_parameters_tier_and_library_but_not_prose(root):
    first = digest(root)
    others = [digest(root, "laptop"), digest(root, "laptop", {"a": 1}), digest(root, more="1")]
    assert len({first, *others}) == 4
    toy_book.edit(root, "book/other.md", "# Second page", "# Another title\n\nProse.")
    assert digest(root) == first
    toy_book.edit(root, "lib/iterlin/gamma.py", "return -x", "return -x - 1")
    assert (second := digest(root)) != first
    toy_book.edit(root, "book/other.md", "ipython3\n", "ipython3\n:tags: [hide-input]\n\n")
    assert digest(root) not in (first, second)


def add(root, *names):
    for name in names:
        path = root / "data" / "results" / name / "laptop.nc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")


ROW = """\
- {id: C1, experiment: judged, page: other, version: v3, claim: a, place: b, paper: c,
   expected: reproduced}
"""


def test_a_page_shows_its_own_record_those_it_names_and_those_that_its_claims_judge(root):
    toy_book.edit(root, "book/claims.yml", "[]\n", ROW)
    add(root, "other", "judged", "named", "unrelated")

    def shown(*words):
        found = freshness.shown_records(root, "other", {"other", *words})
        return {path.parent.name for path in found}

    assert shown() == {"other", "judged"}
    assert shown("named") == {"other", "judged", "named"}
    assert shown("claims") == shown("data/results") == {"other", "judged", "named", "unrelated"}


@pytest.mark.parametrize("code", ["records.best('named')", "!ls\nfolder = 'data/results'"])
def test_digests_follow_the_records_that_a_page_names_in_its_code(root, code):
    add(root, "named", "unrelated")
    first = digest(root, more=code)
    (root / "data" / "results" / "named" / "laptop.nc").write_bytes(b"other content")
    assert digest(root, more=code) != first


def test_digests_follow_the_claims_where_a_page_shows_some(root):
    code = "from iterlin.study import claims"
    before, without = digest(root, more=code), digest(root)
    toy_book.edit(root, "book/claims.yml", "[]\n", ROW)
    assert digest(root, more=code) != before
    assert digest(root) == without


def test_a_damaged_ledger_is_named(root):
    toy_book.edit(root, "book/claims.yml", "[]\n", "{")
    with pytest.raises(pages.BookError, match=r"claims\.yml"):
        freshness.rows(root)
