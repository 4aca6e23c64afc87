"""Save the landing page's figure as the README's picture: ``make picture``, after ``make book``."""

import sys
from pathlib import Path

import nbformat

from iterlin_book import pages

PICTURE = Path("book") / "figures" / "key.svg"


def drawn(root):
    """Return the landing page's first figure as SVG, or None if it shows none."""
    built = Path(root) / "_build" / "source" / "index.ipynb"
    for cell in pages.code_cells(nbformat.read(built, as_version=4)):
        for output in cell.outputs:
            if svg := output.get("data", {}).get("image/svg+xml"):
                return svg
    return None


def main(root="."):
    if not (Path(root) / "_build" / "source" / "index.ipynb").is_file():
        sys.exit("there is no built book: `make book` first")
    if (svg := drawn(root)) is None:
        sys.exit("the landing page shows no figure")
    (Path(root) / PICTURE).write_text(svg)
    print(PICTURE)


if __name__ == "__main__":
    main()
