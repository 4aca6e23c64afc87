"""The archive for a deposit: what is in it, its sums, and the same bytes from the same files."""

import hashlib
import os
import zipfile

import pytest
from iterlin_book import archive

FILES = {
    "_build/html/index.html": "<h1>The book</h1>",
    "_build/html/_static/book.css": "h1 { color: red }",
    "_build/html/.built-0123": "",
    "_build/iterlin.pdf": "%PDF-1.7",
    "data/results/xor/laptop.nc": "a record",
    "CITATION.cff": "version: 1.2.3\n",
    "LICENSE": "MIT",
    "README.md": "# iterlin",
    "pyproject.toml": "",
}
INSIDE = [
    "CITATION.cff",
    "LICENSE",
    "README.md",
    "html/_static/book.css",
    "html/index.html",
    "iterlin.pdf",
    "records/xor/laptop.nc",
    "SHA256SUMS",
]


def book(root, names=FILES):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILES[name])
    return root


def test_the_archive_holds_the_book_the_records_and_what_they_are(tmp_path):
    made = archive.build(book(tmp_path), tmp_path / "dist")
    assert made == tmp_path / "dist" / "iterlin-1.2.3-book.zip"
    with zipfile.ZipFile(made) as opened:
        assert opened.namelist() == [f"iterlin-1.2.3-book/{name}" for name in INSIDE]
        assert opened.read("iterlin-1.2.3-book/records/xor/laptop.nc") == b"a record"
        sums = opened.read("iterlin-1.2.3-book/SHA256SUMS").decode().splitlines()
        for line, name in zip(sums, INSIDE[:-1], strict=True):
            data = opened.read(f"iterlin-1.2.3-book/{name}")
            assert line == f"{hashlib.sha256(data).hexdigest()}  {name}"


def test_the_same_files_give_the_same_bytes(tmp_path):
    one, other = book(tmp_path / "one"), book(tmp_path / "other", reversed(FILES))
    for path in other.rglob("*"):
        os.utime(path, (10**9, 10**9))
    (other / "README.md").chmod(0o600)
    first, second = (archive.build(root, root / "dist").read_bytes() for root in (one, other))
    assert first == second
    (other / "README.md").write_text("changed")
    assert archive.build(other, other / "dist").read_bytes() != first


def test_without_a_pdf_there_is_none(tmp_path):
    root = book(tmp_path, [name for name in FILES if not name.endswith(".pdf")])
    assert "iterlin.pdf" not in archive.members(root)


@pytest.mark.parametrize(("lacks", "says"), [("index.html", "make book"), ("LICENSE", "LICENSE")])
def test_what_is_missing_is_named(tmp_path, capsys, lacks, says):
    root = book(tmp_path, [name for name in FILES if not name.endswith(lacks)])
    assert archive.main([str(tmp_path / "dist"), "--root", str(root)]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()
