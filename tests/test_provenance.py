"""The checkout is the one around the working directory; its commit says if it was changed."""

import pytest
import toy_sources
from iterlin.study import provenance


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(toy_sources.write(tmp_path))
    return tmp_path


def test_the_checkout_is_at_or_above_the_working_directory(root, monkeypatch):
    assert provenance.project_root() == root
    monkeypatch.chdir(root / "book" / "experiments")
    assert provenance.project_root() == root


def test_elsewhere_it_is_that_of_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (provenance.project_root() / "lib" / "iterlin").samefile(provenance.PACKAGE)
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "site-packages" / "iterlin")
    with pytest.raises(FileNotFoundError, match="belong to a checkout of the book"):
        provenance.project_root()


def test_a_commit_says_whether_the_library_or_the_book_differ_from_it(root):
    assert provenance.commit() == "unknown"
    head = toy_sources.commit(root)
    assert provenance.commit() == head
    (root / "notes.txt").write_text("beside them")
    (root / "_toc.yml").write_text("root: other\n")
    assert provenance.commit() == head
    for path in ("lib/iterlin/steps.py", "book/index.md"):
        text = (root / path).read_text()
        (root / path).write_text(text + "\n")
        assert provenance.commit() == f"{head}+changes"
        (root / path).write_text(text)
    assert provenance.commit() == head


def test_versions_and_device_are_words():
    assert provenance.versions().keys() >= {"python", "jax", "numpy"}
    assert provenance.device()
