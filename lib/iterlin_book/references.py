"""Make the executed notebooks that nbval compares later runs with: ``make references``.

tests/notebooks/pages.txt lists the pages: a name on a line, with a minus sign before it and the
reason after it where a page is left out. The outputs are those of the last quick build.
"""

import re
import sys
from configparser import RawConfigParser
from pathlib import Path

import nbformat

from iterlin_book import build, execute, merge, pages
from iterlin_book.pages import BookError

FOLDER = Path("tests") / "notebooks"
IGNORED = "nbval-ignore-output"


def listed(root):
    """Return (pages that are compared, pages left out) of pages.txt."""
    lines = (Path(root) / FOLDER / "pages.txt").read_text("utf8").splitlines()
    names = [words[0] for line in lines if (words := line.partition("#")[0].split())]
    left_out = [name for name in names if name.startswith("-")]
    return sorted({*names} - {*left_out}), [name.removeprefix("-") for name in left_out]


def path_of(root, page):
    return Path(root) / FOLDER / f"{page}.ipynb"


def reference(root, page):
    """Return the page's executed notebook as nbval compares it: code and texts, no pictures."""
    notebook, _, digest = execute.prepare(root, page, pages.QUICK)
    stored = nbformat.read(pages.executed(root, page, pages.QUICK, digest), as_version=4)
    merged = merge.with_outputs(page, notebook, stored)
    replaced = replacements(root)
    # Prose is not compared: without it, references stay as they are when it changes.
    merged.cells = pages.code_cells(merged)
    for number, cell in enumerate(merged.cells):
        cell.id = f"code-{number + 1}"
        cell.source = silent(cell.source)
        cell.metadata = {"tags": pages.tags(cell)} if pages.tags(cell) else {}
        cell.outputs = [] if IGNORED in pages.tags(cell) else joined(cell.outputs)
        for output in cell.outputs:
            data = output.get("data", {})
            for kind in [kind for kind in data if kind.startswith("image/")]:
                del data[kind]
            for pattern, text in replaced:
                data |= {k: re.sub(pattern, text, v) for k, v in data.items() if "text/" in k}
            output.pop("transient", None)
    merged.metadata = {"kernelspec": stored.metadata["kernelspec"]}
    return merged


def replacements(root):
    """Return the pairs (pattern, text) of the file by which nbval replaces parts of outputs."""
    found = RawConfigParser()
    found.read(Path(root) / FOLDER / "sanitize.cfg", "utf8")
    return [(found[name]["regex"], found[name]["replace"]) for name in found.sections()]


def joined(outputs):
    """Return the outputs; printed texts that follow each other, however they came, are one."""
    kept = []
    for output in outputs:
        printed = output.output_type == "stream"
        if printed and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def silent(source):
    """Return code that shows no last value if it ends in a semicolon.

    IPython looks that up in its history, which nbval's cells do not enter.
    """
    return f"{source}\nNone" if source.rstrip().endswith(";") else source


def main(arguments=None):
    parser = execute.parser("references", __doc__)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    root = options.root
    try:
        names = [pages.find(root, name) for name in listed(root)[0]]
        if status := build.run(root, pages.QUICK, names, options.jobs):
            return status
        kept = {path_of(root, name): reference(root, name) for name in names}
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    for path in (root / FOLDER).rglob("*.ipynb"):
        if path not in kept:
            path.unlink()
    for path, notebook in kept.items():
        pages.write_atomically(path, nbformat.writes(notebook) + "\n")
    print(f"{len(names)} reference notebooks in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
