"""What tests of records and pages share: a small book to run in, and what pages display."""

import pytest
import toy_pages
from iterlin_study.report import openings, page


@pytest.fixture
def root(monkeypatch, tmp_path):
    """A small book, around the working directory: records belong to it."""
    monkeypatch.chdir(toy_pages.write(tmp_path))
    return tmp_path


@pytest.fixture
def displayed(monkeypatch):
    """What pages display."""
    found = []
    for module in (openings, page):
        monkeypatch.setattr(module, "display", found.append)
    return found
