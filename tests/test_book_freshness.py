"""A page's outputs are outdated once its code, or what it reaches in the library, has changed."""

import nbformat
import pytest
import toy_book
from iterlin.study import origins, record_file
from iterlin_book import freshness, pages


@pytest.fixture
def root(tmp_path):
    return toy_book.create(tmp_path)


BASE = "import iterlin as il\nil.quadruple(3)"


def test_a_page_reaches_what_its_cells_use(root):
    def reached(*cells):
        return freshness.reached(root, cells)

    assert reached("import numpy as np\nnp.exp(1)") == ([], False)
    found, judges = reached(BASE)
    assert (len(found), judges) == (2, False)
    for same in (
        ("from iterlin.beta import quadruple as four", "four(3)"),
        ("import iterlin.beta", "iterlin.beta.quadruple(3)"),
        ("from iterlin import beta", "%matplotlib inline\n!ls\nprint(beta.quadruple)"),
        ("def f():\n    from iterlin import quadruple\n    return quadruple",),
    ):
        assert reached(*same) == (found, False)
    assert reached("from iterlin import quadruple") == ([], False)
    assert set(reached(BASE, "from iterlin import double\ndouble(1)")[0]) == set(found)
    assert reached("from iterlin import negate", "negate(1)")[0] != found
    assert reached("from iterlin import claims", "claims.TEXT")[1]


@pytest.mark.parametrize(
    "source",
    [
        "from iterlin import *",
        "import iterlin as il\nil.not_yet_known",
        "this is (no Python",
    ],
)
def test_everything_counts_where_it_cannot_be_told(root, source):
    before = freshness.reached(root, [source])
    assert before[1]
    toy_book.edit(root, "lib/iterlin/gamma.py", "return -x", "return -x - 1")
    assert freshness.reached(root, [source]) != before


def test_digests_follow_tags_parameters_and_tier_but_not_prose(root):
    def digest(tier="quick", values=None):
        notebook = pages.read(root, "other")
        return freshness.digest(root, "other", tier, notebook, values or {})

    first = digest()
    assert (
        len({first, digest("laptop"), digest("laptop", {"a": 1}), digest("laptop", {"a": 2})}) == 4
    )
    toy_book.edit(root, "book/other.md", "# Second page", "# Another title\n\nProse.")
    toy_book.edit(root, "lib/iterlin/alpha.py", "2 * x", "3 * x")
    assert digest() == first
    toy_book.edit(root, "lib/iterlin/gamma.py", "return -x", "return -x - 1")
    assert (second := digest()) != first
    toy_book.edit(root, "book/other.md", "ipython3\n", "ipython3\n:tags: [hide-input]\n\n")
    assert digest() not in (first, second)


def test_staleness_of_a_shown_record_is_part_of_the_digest(root, monkeypatch):
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
    monkeypatch.setattr(record_file, "texts", lambda path: {})
    monkeypatch.setattr(origins, "changes", lambda *found: looked.append(found) or ["changed"])
    assert [freshness._is_stale(record) for _ in range(3)] == [True] * 3
    assert len(looked) == 1
    record.write_bytes(b"other content")
    assert freshness._is_stale(record)
    assert len(looked) == 2


def test_pages_with_claims_show_the_records_that_claims_judge_and_no_others(root):
    rows = "[{id: C1, experiment: judged, page: experiments/judging}, {id: C2}]"
    toy_book.edit(root, "book/claims.yml", "[]", rows)
    files = {}
    for name in ("judged", "judging", "own", "named", "unrelated"):
        files[name] = root / "data" / "results" / name / "laptop.nc"
        files[name].parent.mkdir(parents=True)
        files[name].write_bytes(b"content")

    def shown(judges, tier="quick", page="experiments/own"):
        source = "records.best('named')"
        if page != "experiments/own":
            source += f"\nopenings.show({page!r})"
        cells = [nbformat.v4.new_code_cell(source)]
        found = freshness.shown_records(root, page, tier, cells, judges)
        return {path.parent.name for path in found}

    # A page that does not ask for its own, as the landing page, shows all of them.
    assert shown(True) == {"judged", "own", "named"}
    assert shown(True, page="experiments/judging") == {"judged", "judging", "named"}
    assert shown(True, page="experiments/no_claims") == {"named"}
    toy_book.edit(root, "book/claims.yml", "{id: C2}", "{id: C2, experiment: unrelated}")
    assert shown(True) == {"judged", "own", "named", "unrelated"}
    assert shown(True, page="experiments/judging") == {"judged", "judging", "named"}
    assert shown(False) == {"own", "named"}
    assert shown(True, "laptop") == set()


def test_a_page_that_names_their_folder_shows_all_records_and_the_lists_that_it_names(root):
    folder = root / "data" / "results"
    for name in ("one/laptop.nc", "two/gpu.nc"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"content")
    (folder / "renewal.yml").write_text("- one\n")
    named = nbformat.v4.new_code_cell("root / 'data/results/renewal.yml'")
    folders = nbformat.v4.new_code_cell("(root / 'data/results').glob('*/*.nc')")
    assert freshness.named_lists(root, [folders]) == []
    assert freshness.named_lists(root, [named]) == [folder / "renewal.yml"]
    assert freshness.shown_records(root, "other", "quick", [named], False) == []
    shown = freshness.shown_records(root, "other", "quick", [folders], False)
    assert shown == [folder / "one" / "laptop.nc", folder / "two" / "gpu.nc"]
    notebook = pages.read(root, "other")
    notebook.cells.append(named)
    before = freshness.digest(root, "other", "quick", notebook, {})
    (folder / "renewal.yml").write_text("- two\n")
    assert freshness.digest(root, "other", "quick", notebook, {}) != before


def test_digests_follow_the_claims_of_the_page(root):
    rows = "[{id: C1, page: other}, {id: C2, page: experiments/xor}]"
    toy_book.edit(root, "book/claims.yml", "[]", rows)
    notebook = pages.read(root, "other")
    own = "from iterlin import claims\nclaims.TEXT, 'other'"
    notebook.cells.append(nbformat.v4.new_code_cell(own))
    first = freshness.digest(root, "other", "quick", notebook, {})
    toy_book.edit(root, "book/claims.yml", "C2", "C3")
    assert freshness.digest(root, "other", "quick", notebook, {}) == first
    toy_book.edit(root, "book/claims.yml", "C1", "C4")
    assert freshness.digest(root, "other", "quick", notebook, {}) != first
