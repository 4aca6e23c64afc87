"""Pack the book for a deposit: ``python -m iterlin_book.archive``, a part of `make dist`.

One zip holds the HTML, the PDF if there is one, the records, and the files that say what this is;
``sha256sum -c SHA256SUMS`` checks them.
"""

import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import yaml

from iterlin_book.pages import BookError

ABOUT = ("CITATION.cff", "LICENSE", "README.md")
FOLDERS = {"html": "_build/html", "records": "data/results"}
PDF = "_build/iterlin.pdf"


def members(root):
    """Name in the archive -> file, sorted by name. Raises BookError if the book is not built."""
    if not (root / "_build" / "html" / "index.html").is_file():
        raise BookError(f"{root}/_build/html has no book: `make book` first")
    found = {name: root / name for name in ABOUT}
    if (root / PDF).is_file():
        found["iterlin.pdf"] = root / PDF
    for name, folder in FOLDERS.items():
        # Hidden files are the build's own stamps.
        for path in (root / folder).rglob("[!.]*"):
            if path.is_file():
                found[f"{name}/{path.relative_to(root / folder).as_posix()}"] = path
    return dict(sorted(found.items()))


def build(root, folder):
    """Make the archive in a folder and return its path."""
    found = members(root)
    version = yaml.safe_load((root / "CITATION.cff").read_text("utf8"))["version"]
    target = folder / f"iterlin-{version}-book.zip"
    folder.mkdir(parents=True, exist_ok=True)
    sums = [f"{sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in found.items()]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in found.items():
            archive.write(path, f"{target.stem}/{name}")
        archive.writestr(f"{target.stem}/SHA256SUMS", "".join(sums))
    return target


if __name__ == "__main__":
    try:
        print(build(Path(), Path("dist")))
    except BookError as error:
        sys.exit(str(error))
