"""Put the stored outputs of every page into its current text: ``_build/source``, the book's input.

What is made there are the notebooks that the pages offer for download, those of plain prose too.

Prose can change without any code running again, because only code cells are matched.
"""

import shutil
from pathlib import Path

import nbformat

from iterlin_book import build_facts, execute, first_cell, pages, repository
from iterlin_book.pages import BookError

# Pages are merged; parameters, claims and helpers are no part of the site.
_NOT_COPIED = {".md", ".yml", ".py", ".pyc"}


def with_outputs(page, notebook, executed):
    """The page's cells with what the executed notebook's cells printed and drew."""
    ran = [
        cell for cell in pages.code_cells(executed) if "injected-parameters" not in pages.tags(cell)
    ]
    cells = pages.code_cells(notebook)
    if [cell.source for cell in cells] != [cell.source for cell in ran]:
        raise BookError(f"{page}: its code is not what the stored outputs come from")
    heading = page.rpartition("/")[2]
    stored = iter(ran)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = _last_heading(cell.source) or heading
        elif cell.cell_type == "code":
            done = next(stored)
            cell.outputs, cell.execution_count = done.outputs, done.execution_count
            _describe_figures(cell, heading)
    return notebook


def _last_heading(text):
    headings = [line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#")]
    return headings[-1] if headings else None


def _describe_figures(cell, heading):
    """A text in place of the picture for readers who do not see it, unless the page gives one."""
    if any(kind.startswith("image/") for out in cell.outputs for kind in out.get("data", {})):
        image = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
        image.setdefault("alt", f"Figure computed in the section “{heading}”")


def build_source(root, folder, chosen=()):
    """Write the book's sources into ``folder``, anew.

    chosen: the pages that ran for this build, all if empty. Of the others the latest outputs stand
    in, as far as they are of the page's present code.
    """
    root, folder = Path(root), Path(folder)
    first = first_cell.cells(repository.read(root))
    wanted, merged, stored, about = {}, {}, set(), {}
    for page in pages.toc(root):
        if pages.read(root, page) is None:
            merged[page] = pages.prose(root, page)
            continue
        if chosen and page not in chosen:
            merged[page], found = latest(root, page)
            about |= {page: found} if found else {}
            continue
        notebook, _, digest = execute.prepare(root, page, pages.QUICK)
        path = pages.executed(root, page, pages.QUICK, digest)
        if not path.is_file():
            raise BookError(f"{page}: changed during the build: run it again")
        executed = nbformat.read(path, as_version=4)
        merged[page] = with_outputs(page, notebook, executed)
        about[page] = executed.metadata
        stored.add(path)
    for page, notebook in merged.items():
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = build_facts.fill(cell.source, about)
        notebook.cells[:0] = first
        wanted[folder / f"{page}.ipynb"] = nbformat.writes(notebook).encode()
    for asset in (root / "book").rglob("*"):
        if asset.is_file() and asset.suffix not in _NOT_COPIED:
            wanted[folder / asset.relative_to(root / "book")] = asset.read_bytes()
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if not chosen:  # outputs that no page accounts for any more
        for path in (root / "_build" / "executed").rglob("*.ipynb"):
            if path not in stored:
                path.unlink()


def latest(root, page):
    """A page with the outputs of its latest quick run, and what that says of itself; without
    outputs, and None, where there is none of its present code."""
    place = pages.executed(root, page, pages.QUICK, "*")
    for path in sorted(place.parent.glob(place.name), key=lambda p: -p.stat().st_mtime):
        executed = nbformat.read(path, as_version=4)
        try:
            return with_outputs(page, pages.read(root, page), executed), executed.metadata
        except BookError:
            continue
    return pages.read(root, page), None
