"""The pages of the book: which exist, how to read them, where their results are kept."""

import json
import os
import shutil
import sys
from pathlib import Path

import yaml
from iterlin.runtime.files import replaced

QUICK = "quick"
TIERS = (
    QUICK,
    "laptop",
    "gpu",
    "paper",
)  # those of records, which is slow to import


ROOM = 16 * 2**20  # bytes that must be free where something is to be written; records take 1 MB


class BookError(Exception):
    """A mistake in what the book was given, told in one line."""


def toc(root):
    """Names of all pages in reading order, such as ``experiments/xor``."""
    path = Path(root) / "_toc.yml"
    try:
        tree = yaml.safe_load(path.read_text("utf8"))
    except FileNotFoundError:
        raise BookError(f"{path} does not exist") from None
    except yaml.YAMLError as error:
        raise BookError(f"{path}: {one_line(error)}") from None

    def walk(node):
        if isinstance(node, list):
            for child in node:
                yield from walk(child)
        elif isinstance(node, dict):
            for key in ("root", "file"):
                if key in node:
                    yield str(node[key]).removesuffix(".md")
            for key in ("parts", "chapters", "sections", "subtrees", "entries"):
                yield from walk(node.get(key))

    names = list(walk(tree))
    missing = [name for name in names if not source(root, name).is_file()]
    if missing:
        raise BookError(f"_toc.yml lists pages that do not exist: {', '.join(missing)}")
    return names


def by_priority(root, names):
    """Pages in the order of book/priority.yml; those that it does not name come last, as given."""
    path = Path(root) / "book" / "priority.yml"
    try:
        listed = yaml.safe_load(path.read_text("utf8"))
    except FileNotFoundError:
        return list(names)
    except yaml.YAMLError as error:
        raise BookError(f"{path}: not valid YAML: {one_line(error)}") from None
    if not isinstance(listed, list):
        raise BookError(f"{path}: expected a list of pages, one '- name' on a line")
    try:
        first = [find(root, str(text)) for text in listed]
    except BookError as error:
        raise BookError(f"{path}: {error}") from None
    if repeated := sorted({name for name in first if first.count(name) > 1}):
        raise BookError(f"{path}: repeated pages {', '.join(repeated)}")
    rank = {name: place for place, name in enumerate(first)}
    return sorted(names, key=lambda name: rank.get(name, len(rank)))


def source(root, page):
    """The MyST file of a page."""
    return Path(root) / "book" / f"{page}.md"


def find(root, text):
    """The page that ``text`` means: its name, its last part, or the path of its file."""
    names = toc(root)
    path = Path(text)
    book = (Path(root) / "book").resolve()
    if path.resolve().is_relative_to(book):
        path = path.resolve().relative_to(book)
    wanted = path.as_posix().removesuffix(".md")
    matches = [name for name in names if name == wanted] or [
        name for name in names if name.rpartition("/")[2] == wanted
    ]
    if len(matches) != 1:
        problem = "unknown page" if not matches else "ambiguous page"
        raise BookError(f"{problem} '{text}' (pages: {', '.join(matches or names)})")
    return matches[0]


def read(root, page):
    """A page as a notebook, or None where it is plain prose."""
    path = source(root, page)
    text = path.read_text("utf8")
    if "{code-cell}" not in text:
        return None
    if not text.startswith("---") or "kernelspec:" not in text.split("\n---", 1)[0]:
        raise BookError(f"{path}: has code cells but no jupytext and kernelspec front matter")
    import jupytext  # only pages with code pay for it

    notebook = jupytext.reads(text, fmt="md:myst")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # random otherwise, and then nothing is ever unchanged
    return notebook


def prose(root, page):
    """A page without code as a notebook of one cell."""
    from nbformat.v4 import new_markdown_cell, new_notebook

    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cell = new_markdown_cell(source(root, page).read_text("utf8"), id="cell-0")
    return new_notebook(cells=[cell], metadata={"kernelspec": kernel})


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
    """Where the outputs of a run live; the digest names everything that they depend on."""
    folder = "executed" if tier == QUICK else f"executed-{tier}"
    return Path(root) / "_build" / folder / f"{page}.{digest}.ipynb"


def drop_damaged(root, executed):
    """Remove executed notebooks that a crash cut off, and name them: their pages run again."""
    for path in executed:
        if path.is_file() and not _is_whole(path):
            path.unlink()
            for stamp in (Path(root) / "_build" / "html").glob(".built-*"):
                stamp.unlink()  # a complete book would be reason enough not to run the page again
            print(f"{path} was cut off: its page runs again", file=sys.stderr)


def _is_whole(path):
    try:
        return "iterlin_book" in json.loads(path.read_bytes())["metadata"]
    except (ValueError, LookupError, TypeError):
        return False


def require_writable(path):
    """Raises BookError, naming the folder, where nothing could be written at a path, or little."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir():
        raise BookError(f"{nearest} is no folder, so that nothing can be written there")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise BookError(f"{nearest} cannot be written to")
    if (free := shutil.disk_usage(nearest).free) < ROOM:
        raise BookError(f"{nearest} has room for {free >> 20} MB: {ROOM >> 20} MB are needed")


def say(line, *, error=False):
    """Print a line in one piece: pages run side by side, and where Python does not buffer its
    output (PYTHONUNBUFFERED) `print` writes the end of a line by itself, after another's line."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{line}\n")
    stream.flush()


def one_line(text):
    return " ".join(str(text).split())


def write_atomically(path, text):
    """Write a file so that a reader, or a crash, sees the old text or the new one, never a mix."""
    with replaced(path) as partial:
        partial.write_text(text, "utf8")
