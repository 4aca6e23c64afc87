"""The archive for a deposit holds the book, the records and their sums."""

import hashlib
import zipfile

import pytest
from iterlin_book import archive
from iterlin_book.pages import BookError

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


def test_archive_holds_the_book_the_records_and_their_sums(tmp_path):
    with pytest.raises(BookError, match="make book"):
        archive.build(tmp_path, tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    made = archive.build(tmp_path, tmp_path / "dist")
    assert made == tmp_path / "dist" / "iterlin-1.2.3-book.zip"
    with zipfile.ZipFile(made) as opened:
        assert opened.namelist() == [f"iterlin-1.2.3-book/{name}" for name in INSIDE]
        sums = opened.read("iterlin-1.2.3-book/SHA256SUMS").decode().splitlines()
        for line, name in zip(sums, INSIDE[:-1], strict=True):
            data = opened.read(f"iterlin-1.2.3-book/{name}")
            assert line == f"{hashlib.sha256(data).hexdigest()}  {name}"
