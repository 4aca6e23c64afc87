"""The pages of the book: which exist, how to read them, where their outputs are kept."""

import os
import sys
from pathlib import Path

from iterlin_study.records import strict_yaml
from iterlin_study.records.experiment_pages import TIERS

QUICK = "quick"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class BookError(Exception):
    """A mistake in the book's files or in a command; the message is one line."""


def toc(root):
    """Return the names of all pages in reading order, such as ``experiments/xor``."""

    def walk(node):
        if isinstance(node, list):
            for child in node:
                yield from walk(child)
        elif isinstance(node, dict):
            for key in ("root", "file"):
                if key in node:
                    yield str(node[key]).removesuffix(".md")
            for key in ("parts", "chapters", "sections"):
                yield from walk(node.get(key))

    names = list(walk(load_yaml(Path(root) / "_toc.yml")))
    missing = [name for name in names if not source(root, name).is_file()]
    if missing:
        raise BookError(f"_toc.yml lists pages that do not exist: {', '.join(missing)}")
    return names


def load_yaml(path):
    """Read a YAML file. Raises BookError, naming the file, if it cannot be read."""
    try:
        return strict_yaml.load(path)
    except ValueError as error:
        raise BookError(str(error)) from None


def by_priority(root, names):
    """Sort pages by book/priority.yml; pages that it does not name come last, as given."""
    path = Path(root) / "book" / "priority.yml"
    listed = load_yaml(path) if path.is_file() else []
    first = [find(root, name) for name in listed]
    return sorted(names, key=lambda name: first.index(name) if name in first else len(first))


def source(root, page):
    """Return the MyST file of a page."""
    return Path(root) / "book" / f"{page}.md"


def find(root, text):
    """Return the page with this name, this last part of a name, or this path."""
    names = toc(root)
    wanted = text.removesuffix(".md").removeprefix("./").removeprefix("book/")
    matches = [name for name in names if name == wanted] or [
        name for name in names if name.rpartition("/")[2] == wanted
    ]
    if len(matches) != 1:
        problem = "ambiguous" if matches else "unknown"
        raise BookError(f"{problem} page '{text}' (pages: {', '.join(matches or names)})")
    return matches[0]


def has_code(root, page):
    return "{code-cell}" in source(root, page).read_text("utf8")


def read(root, page):
    """Read a page as a notebook."""
    import jupytext  # slow to import

    notebook = jupytext.reads(source(root, page).read_text("utf8"), fmt="md:myst")
    notebook.metadata.setdefault("kernelspec", KERNEL)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # jupytext draws random ones
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return list(cell.metadata.get("tags", []))


def tiers(root, page):
    """Return the tiers of a page: quick, and one for each parameter file beside it."""
    return [t for t in TIERS if t == QUICK or parameter_file(root, page, t).is_file()]


def parameter_file(root, page, tier):
    return source(root, page).with_suffix(f".{tier}.yml")


def executed(root, page, tier, digest):
    """Return the path of a page's executed notebook; digest: of all that its outputs depend on."""
    return Path(root) / "_build" / "executed" / tier / f"{page}.{digest}.ipynb"


def say(line, *, error=False):
    """Print a line in one write, because pages that run side by side share the terminal."""
    print(f"{line}\n", end="", file=sys.stderr if error else sys.stdout, flush=True)


def one_line(text):
    return " ".join(str(text).split())


def write_atomically(path, text):
    """Write a file so that a reader, or a crash, sees the old text or the new one, never a mix."""
    # Not by the library's `atomic_write`: its package imports JAX, and each page's process this.
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        partial.write_text(text, "utf8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
