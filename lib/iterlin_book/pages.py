"""The pages of the book: which exist, how to read them, where their outputs are kept."""

import os
import shutil
import sys
from pathlib import Path

import yaml
from iterlin.training.files import replaced

QUICK = "quick"
TIERS = (QUICK, "laptop", "gpu", "paper")  # the same as iterlin_study.records.records.TIERS
ROOM = 16 * 2**20  # bytes that must be free in a folder that is written to; a record takes 1 MB


class BookError(Exception):
    """A mistake in the book's files or in a command; the message is one line."""


def toc(root):
    """Names of all pages in reading order, such as ``experiments/xor``."""

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
    """The content of a YAML file. Raises BookError, naming the file, if it cannot be read."""
    try:
        return yaml.safe_load(path.read_text("utf8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BookError(f"{path}: {one_line(error)}") from None


def by_priority(root, names):
    """Pages in the order of book/priority.yml; pages that it does not name come last, as given."""
    path = Path(root) / "book" / "priority.yml"
    listed = load_yaml(path) if path.is_file() else []
    if not isinstance(listed, list):
        raise BookError(f"{path}: expected a list of pages, one '- name' on a line")
    try:
        first = [find(root, str(text)) for text in listed]
    except BookError as error:
        raise BookError(f"{path}: {error}") from None
    return sorted(names, key=lambda name: first.index(name) if name in first else len(first))


def source(root, page):
    """The MyST file of a page."""
    return Path(root) / "book" / f"{page}.md"


def find(root, text):
    """The page that ``text`` names: by its name, the name's last part, or the path of its file."""
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
    """A page as a notebook. A page without code is a notebook of one cell."""
    path = source(root, page)
    text = path.read_text("utf8")
    if not has_code(root, page):
        from nbformat.v4 import new_markdown_cell, new_notebook

        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        cell = new_markdown_cell(text, id="cell-0")
        return new_notebook(cells=[cell], metadata={"kernelspec": kernel})
    if not text.startswith("---") or "kernelspec:" not in text.split("\n---", 1)[0]:
        raise BookError(f"{path}: has code cells but no jupytext and kernelspec front matter")
    import jupytext  # slow to import

    notebook = jupytext.reads(text, fmt="md:myst")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # jupytext draws random ones
    return notebook


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return list(cell.metadata.get("tags", []))


def tiers(root, page):
    """The tiers a page can run at: quick, and one for each parameter file beside it."""
    path = source(root, page)
    stems = (file.name.split(".") for file in path.parent.glob(f"{path.stem}.*.yml"))
    return [QUICK, *sorted(parts[1] for parts in stems if len(parts) == 3)]


def parameter_file(root, page, tier):
    return source(root, page).with_suffix(f".{tier}.yml")


def executed(root, page, tier, digest):
    """The executed notebook of a page; the digest names everything that its outputs depend on."""
    return Path(root) / "_build" / "executed" / tier / f"{page}.{digest}.ipynb"


def require_writable(path):
    """Raise BookError, naming the folder, if there is no room or permission to write at a path."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise BookError(f"{nearest} is no folder, so that nothing can be written there")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise BookError(f"{nearest} cannot be written to")
    if (free := shutil.disk_usage(nearest).free) < ROOM:
        raise BookError(f"{nearest} has room for {free >> 20} MB: {ROOM >> 20} MB are needed")


def say(line, *, error=False):
    """Print a line in one write, because pages that run side by side share the terminal."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{line}\n")
    stream.flush()


def one_line(text):
    return " ".join(str(text).split())


def write_atomically(path, text):
    """Write a file so that a reader, or a crash, sees the old text or the new one, never a mix."""
    with replaced(path) as partial:
        partial.write_text(text, "utf8")
