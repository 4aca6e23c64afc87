"""The checkout is the one around the working directory; its commit says if it was changed."""

import subprocess

import pytest
from iterlin_study.records import provenance


def test_the_checkout_is_at_or_above_the_working_directory(root, monkeypatch):
    for folder in (root, root / "book" / "experiments"):
        monkeypatch.chdir(folder)
        assert provenance.project_root() == root


def test_elsewhere_it_is_that_of_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (provenance.project_root() / "lib" / "iterlin_study").samefile(provenance.PACKAGE)
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "site-packages" / "iterlin_study")
    with pytest.raises(FileNotFoundError, match="belong to a checkout of the book"):
        provenance.project_root()


def test_a_commit_says_whether_the_library_or_the_book_differ_from_it(root, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(root.parent))
    assert provenance.commit() == "unknown"
    module = root / "lib" / "iterlin" / "steps.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    git = ["git", "-c", "user.name=toy", "-c", "user.email=toy@example.org"]
    for command in ("init -q", "add --all", "commit -q --message All"):
        subprocess.run([*git, *command.split()], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
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
