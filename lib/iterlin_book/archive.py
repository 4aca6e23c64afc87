"""Pack the book for a deposit: ``python -m iterlin_book.archive``, a part of `make dist`.

One zip holds the HTML, the PDF where there is one, the records, and what says what this is. The
same files give the same bytes. ``sha256sum -c SHA256SUMS`` checks them.
"""

import argparse
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import yaml

from iterlin_book.pages import BookError

ABOUT = ("CITATION.cff", "LICENSE", "README.md")
PDF = Path("_build") / "iterlin.pdf"
EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip can tell


def members(root):
    """Name in the archive -> the file, sorted by name; BookError where the book is not built."""
    root = Path(root)
    html = root / "_build" / "html"
    if not (html / "index.html").is_file():
        raise BookError(f"{html} has no book: `make book` first")
    found = {name: root / name for name in ABOUT}
    if missing := [name for name, path in found.items() if not path.is_file()]:
        raise BookError(f"{root} has no {', '.join(missing)}")
    for name, folder in (("html", html), ("records", root / "data" / "results")):
        for path in folder.rglob("*"):
            inside = path.relative_to(folder)
            # Hidden files are the build's own stamps.
            if path.is_file() and not any(part.startswith(".") for part in inside.parts):
                found[f"{name}/{inside.as_posix()}"] = path
    if (root / PDF).is_file():
        found[PDF.name] = root / PDF
    return dict(sorted(found.items()))


def build(root, folder):
    """The path of the archive, made in a folder."""
    found = members(root)
    version = yaml.safe_load((Path(root) / "CITATION.cff").read_text("utf8"))["version"]
    name = f"iterlin-{version}-book"
    sums = [
        f"{sha256(path.read_bytes()).hexdigest()}  {inside}\n" for inside, path in found.items()
    ]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for inside, path in found.items():
            _write(archive, f"{name}/{inside}", path.read_bytes())
        _write(archive, f"{name}/SHA256SUMS", "".join(sums).encode())
    return target


def _write(archive, name, data):
    entry = zipfile.ZipInfo(name, EARLIEST)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3  # Unix, wherever it is made
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.archive", description=__doc__)
    parser.add_argument("folder", nargs="?", default="dist", help="where it goes: dist")
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    options = parser.parse_args(arguments)
    try:
        print(build(options.root, options.folder))
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
