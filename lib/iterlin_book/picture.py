"""Save the landing page's figure as the README's picture: ``make picture``, after ``make book``."""

import sys
from pathlib import Path

import nbformat

from iterlin_book import pages

PICTURE = Path("book") / "figures" / "key.svg"


def main(root="."):
    built = Path(root) / "_build" / "source" / "index.ipynb"
    if not built.is_file():
        sys.exit("there is no built book: `make book` first")
    for cell in pages.code_cells(nbformat.read(built, as_version=4)):
        for output in cell.outputs:
            if svg := output.get("data", {}).get("image/svg+xml"):
                (Path(root) / PICTURE).write_text(svg)
                return print(PICTURE)
    sys.exit("the landing page shows no figure")


if __name__ == "__main__":
    main()
