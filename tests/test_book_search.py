"""The search of the built book knows the words that a reader would try, on the pages that tell."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from iterlin_book import theme

INDEX = Path(__file__).resolve().parents[1] / "_build" / "html" / "searchindex.js"


@pytest.fixture(scope="module")
def index():
    if not INDEX.is_file():
        pytest.fail("the book is not built: make book first", pytrace=False)
    text = INDEX.read_text("utf8").strip()
    return json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))


def found(index, stem):
    """The pages with a word of that stem, in their text or a title."""
    numbers = set()
    for kind in ("terms", "titleterms"):
        places = index[kind].get(stem, [])
        numbers |= set(places) if isinstance(places, list) else {places}
    return {index["docnames"][number] for number in numbers}


@pytest.mark.parametrize(
    ("stems", "page"),
    [  # as Sphinx stems the words of a question, all of which a page must have
        (["lemma"], "convergence/closed_form"),
        (["learn", "rate"], "background/ntk"),
        (["learn", "rate"], "appendix/glossary"),
        (["entk"], "background/ntk"),
        (["entk"], "appendix/glossary"),
        (["truncat", "gauss", "newton"], "background/gauss_newton"),
        (["stale"], "appendix/status"),
    ],
)
def test_a_question_leads_to_the_page_that_answers_it(index, stems, page):
    assert page in set.intersection(*(found(index, stem) for stem in stems))


def test_a_word_that_is_nowhere_is_not_found(index):
    assert found(index, "nowherewritten") == set()


@pytest.mark.parametrize("term", ["eNTK", "period", "proxy", "feature alignment", "stale"])
def test_the_glossary_answers_under_its_terms(index, term):
    places = index["indexentries"][term.lower()]
    assert "appendix/glossary" in {index["docnames"][place[0]] for place in places}


def test_a_build_of_few_pages_keeps_the_entries_of_the_others():
    """As Sphinx 7 comes to it: the environment has all entries, the search those it has written."""
    entries = {
        "written": [("single", "old", "term-old", "", None)],
        "unwritten": [
            ("single", "period", "term-period", "main", None),
            ("odd", "x", "y", "", None),
        ],
    }
    known = {"written": [("new", "term-new", "")]}
    index = SimpleNamespace(entries=entries)
    app = SimpleNamespace(
        builder=SimpleNamespace(indexer=SimpleNamespace(_index_entries=known)),
        env=SimpleNamespace(get_domain={"index": index}.get),
    )
    assert theme._keep_index_entries(app) == []
    assert known == {
        "written": [("new", "term-new", "")],
        "unwritten": [("period", "term-period", "main")],
    }
