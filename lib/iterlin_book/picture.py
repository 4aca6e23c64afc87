"""Save the landing page's figure as the README's picture: ``make picture``, after ``make book``."""

import sys
from pathlib import Path

import nbformat

from iterlin_book import execute, pages
from iterlin_book.pages import BookError

PICTURE = Path("book") / "figures" / "key.svg"


def first_figure(notebook):
    """The first SVG among a notebook's outputs."""
    for cell in pages.code_cells(notebook):
        for output in cell.outputs:
            if "image/svg+xml" in output.get("data", {}):
                return output["data"]["image/svg+xml"]
    raise BookError("the landing page shows no figure")


def main(root="."):
    _, _, digest = execute.prepare(root, "index", pages.QUICK)
    stored = pages.executed(root, "index", pages.QUICK, digest)
    if not stored.is_file():
        raise BookError("the landing page has not run as it is now: `make book` first")
    target = Path(root) / PICTURE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(first_figure(nbformat.read(stored, as_version=4)))
    print(target)


if __name__ == "__main__":
    try:
        main()
    except BookError as error:
        sys.exit(str(error))
