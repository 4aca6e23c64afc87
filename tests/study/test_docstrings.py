"""The examples in docstrings of the study and of the pages' helpers print what they say."""

import doctest
from importlib import import_module

import pytest
from toy_book import ROOT

FILES = [*(ROOT / "book").rglob("*.py"), *(ROOT / "lib" / "iterlin_study").rglob("*.py")]
NAMES = [path.relative_to(ROOT) for path in sorted(FILES) if ">>>" in path.read_text("utf8")]


@pytest.mark.parametrize("path", NAMES, ids=str)
def test_examples_print_what_they_say(path):
    module = import_module(".".join(path.with_suffix("").parts).removeprefix("lib."))
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed
