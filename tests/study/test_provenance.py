"""The checkout is the one around the working directory; its commit says if it was changed."""

import subprocess

import pytest
from iterlin_study.records import provenance


def test_the_checkout_is_at_or_above_the_working_directory(root, monkeypatch):
    assert provenance.project_root() == root
    monkeypatch.chdir(root / "book" / "experiments")
    assert provenance.project_root() == root


def test_elsewhere_it_is_that_of_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (provenance.project_root() / "lib" / "iterlin_study").samefile(provenance.PACKAGE)
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "site-packages" / "iterlin_study")
    with pytest.raises(FileNotFoundError, match="belong to a checkout of the book"):
        provenance.project_root()


def commit(root):
    """Commit everything in a repository of the folder's own; return the commit."""
    git = ["git", "-C", str(root), "-c", "user.name=toy", "-c", "user.email=toy@example.org"]
    for command in (["init", "-q"], ["add", "--all"], ["commit", "-q", "--message", "All"]):
        subprocess.run([*git, *command], check=True)
    found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_a_commit_says_whether_the_library_or_the_book_differ_from_it(root, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(root.parent))
    assert provenance.commit() == "unknown"
    module = root / "lib" / "iterlin" / "steps.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    head = commit(root)
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
