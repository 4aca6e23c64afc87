"""Make the executed notebooks that nbval compares later runs with: ``make references``.

tests/notebooks/pages.txt lists the pages: a name on a line, with a minus sign before it and the
reason after it where a page is left out. The outputs are those of the last quick build.
"""

import sys
from pathlib import Path

import nbformat

from iterlin_book import build, execute, merge, pages, processes
from iterlin_book.pages import BookError

FOLDER = Path("tests") / "notebooks"


def listed(root):
    """(pages that are compared, pages left out), as pages.txt has them."""
    compared, left_out = [], []
    path = Path(root) / FOLDER / "pages.txt"
    for line in path.read_text("utf8").splitlines():
        words = line.partition("#")[0].split()
        if words:
            name = words[0].removeprefix("-")
            (left_out if words[0].startswith("-") else compared).append(name)
    return compared, left_out


def path_of(root, page):
    return Path(root) / FOLDER / f"{page}.ipynb"


def reference(root, page):
    """The executed notebook of the current page as nbval needs it: its code, texts, no pictures."""
    notebook, _, digest = execute.prepare(root, page, pages.QUICK)
    stored = nbformat.read(pages.executed(root, page, pages.QUICK, digest), as_version=4)
    merged = merge.with_outputs(page, notebook, stored)
    # Prose is no part of the comparison: leaving it out keeps references as they are when it moves.
    merged.cells = pages.code_cells(merged)
    for number, cell in enumerate(merged.cells):
        cell.id = f"code-{number + 1}"
        cell.source = silent(cell.source)
        cell.metadata = {"tags": pages.tags(cell)} if pages.tags(cell) else {}
        for output in cell.outputs:
            for kind in [kind for kind in output.get("data", {}) if kind.startswith("image/")]:
                del output["data"][kind]
            output.pop("transient", None)
    merged.metadata = {"kernelspec": stored.metadata["kernelspec"]}
    return merged


def silent(source):
    """Code whose last value is not shown if it ends in a semicolon.

    IPython looks that up in its history, which nbval's cells do not enter.
    """
    return f"{source}\nNone" if source.rstrip().endswith(";") else source


def main(arguments=None):
    parser = processes.Parser(prog="iterlin_book.references", description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=".", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    try:
        options = parser.parse_args(arguments)
        root = options.root
        names = [pages.find(root, name) for name in listed(root)[0]]
        asked = build.Request("results", pages.QUICK, names, options.jobs)
        if status := build.run(root, asked):
            return status
        kept = set()
        for name in names:
            path = path_of(root, name)
            pages.write_atomically(path, nbformat.writes(reference(root, name)) + "\n")
            kept.add(path)
        for path in (root / FOLDER).rglob("*.ipynb"):
            if path not in kept:
                path.unlink()
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(names)} reference notebooks in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
