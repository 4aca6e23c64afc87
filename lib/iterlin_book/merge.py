"""Put the stored outputs of every page into its current text: ``_build/source``, Sphinx's input.

Only code cells are matched, so that prose can change without any code running again. The notebooks
made here are also those that the pages offer for download.
"""

import shutil

import nbformat
from iterlin_study.records import comparison, records
from iterlin_study.report import tables
from nbformat.v4 import new_markdown_cell

from iterlin_book import execute, pages
from iterlin_book.pages import BookError

# Pages are merged; parameters, claims and helpers are no part of the site.
NOT_COPIED = {".md", ".yml", ".py", ".pyc"}
HOW_TO_RUN = """\
**To run this notebook** take Python 3.11 or newer and a checkout of the project, whose \
`data/results` holds the recorded runs that the pages show. In the checkout:

    pip install -e ".[study]" jupyter
    PYTHONPATH="$PWD" jupyter lab

and open the notebook in its folder. Image data (MNIST, CIFAR-10) are downloaded and checked when \
a page first asks for them; `ITERLIN_DATA=folder` names a folder that holds them already. As it \
stands the notebook runs at its *quick* tier, which needs none."""

# Marks on the status page, filled here because no cell can know them: pages run side by side. The
# executed notebooks carry their times, and the quick runs lie in _build/records.
TIMES = "<!-- the time of each page -->"
QUICK_RUNS = "<!-- today's quick runs beside the recorded ones -->"


def with_outputs(page, notebook, executed):
    """Return the page's notebook with the outputs of the executed one."""
    ran = pages.code_cells(executed)
    if [cell.source for cell in pages.code_cells(notebook)] != [cell.source for cell in ran]:
        raise BookError(f"{page}: its code is not what the stored outputs come from")
    stored = iter(ran)
    heading = page
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            headings = [line for line in cell.source.splitlines() if line.startswith("#")]
            heading = headings[-1].lstrip("#").strip() if headings else heading
        elif cell.cell_type == "code":
            done = next(stored)
            cell.outputs, cell.execution_count = done.outputs, done.execution_count
            # A text for readers who do not see the picture, unless the page gives one.
            if any(
                kind.startswith("image/") for out in cell.outputs for kind in out.get("data", {})
            ):
                image = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
                image.setdefault("alt", f"Figure computed in the section “{heading}”")
    return notebook


def stored_paths(root, page):
    """Return a page's executed notebooks: that of its present state, then the latest first."""
    exact = pages.executed(root, page, pages.QUICK, execute.prepare(root, page, pages.QUICK)[2])
    others = exact.parent.glob(f"{exact.name.partition('.')[0]}.*.ipynb")
    others = sorted(others, key=lambda path: -path.stat().st_mtime)
    return [path for path in dict.fromkeys([exact, *others]) if path.is_file()]


def build_source(root, folder):
    """Write the book's sources into ``folder``, anew, and remove outputs that no page shows.

    A page that did not run for this build shows its latest outputs, if they are of its code.
    Returns whether every page has outputs.
    """
    shutil.rmtree(folder, ignore_errors=True)
    merged, about, shown = {}, {}, set()
    for page in pages.toc(root):
        merged[page] = pages.read(root, page)
        if not pages.has_code(root, page):
            continue
        for path in stored_paths(root, page):
            executed = nbformat.read(path, as_version=4)
            try:
                with_outputs(page, merged[page], executed)
            except BookError:
                continue
            about[page] = executed.metadata
            shown.add(path)
            break
    for page, notebook in merged.items():
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = fill(cell.source, about)
        # The tag keeps the cell out of the rendered page.
        tags = {"tags": ["remove-cell"]}
        notebook.cells.insert(0, new_markdown_cell(HOW_TO_RUN, id="installing", metadata=tags))
        pages.write_atomically(folder / f"{page}.ipynb", nbformat.writes(notebook))
    for asset in (root / "book").rglob("*"):
        if asset.is_file() and asset.suffix not in NOT_COPIED:
            target = folder / asset.relative_to(root / "book")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(asset, target)
    for path in (root / "_build" / "executed" / pages.QUICK).rglob("*.ipynb"):
        if path not in shown:
            path.unlink()
    return all(page in about for page in merged if pages.has_code(root, page))


def fill(text, about):
    """Replace the two marks in a text. `about`: metadata of executed notebooks by page."""
    if TIMES in text:
        text = text.replace(TIMES, times(about))
    return text.replace(QUICK_RUNS, quick_runs()) if QUICK_RUNS in text else text


def times(about):
    """Return a Markdown table of each page's seconds and date, their sum first."""
    took = {page: found["iterlin_book"]["seconds"] for page, found in about.items()}
    days = {page: found["papermill"]["end_time"][:10] for page, found in about.items()}  # of UTC
    lines = ["| page | seconds | ran on |", "| --- | ---: | --- |"]
    lines.append(f"| all {len(took)} pages, one after the other | {sum(took.values()):,.0f} | |")
    lines += [f"| {{doc}}`{page} </{page}>` | {took[page]:,.1f} | {days[page]} |" for page in took]
    return "\n".join(lines)


def quick_runs():
    """Return an HTML table that compares this build's quick runs with the kept ones."""
    found = [(name, comparison.sentence(records.best(name))) for name in comparison.experiments()]
    return tables.table(["experiment", "today"], found).data
