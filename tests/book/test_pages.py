"""What `make book` executed equals the references in tests/notebooks, page by page.

Nothing is executed here: nbval itself goes through the cells of a reference, with its tags, its
sanitising and its comparison, and where it asks a kernel to run a cell, it is told what the page's
executed notebook holds. That notebook carries the digest of the page's code, parameters and
library, so it is of the sources as they are. `make nightly` lets nbval execute the pages again.
"""

import copy
from collections import deque
from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
from iterlin_book import execute, pages, references
from nbformat import v4
from nbval.plugin import IPyNbFile, NbCellError

ROOT = Path(__file__).resolve().parents[2]
COMPARED, _ = references.listed(ROOT)


class Recorded:
    """To nbval a kernel; it answers with the outputs that the cells of a notebook have."""

    def __init__(self, cells):
        self.cells = deque(cells)
        self.messages = deque()

    def is_alive(self):
        return True

    def execute_cell_input(self, source, allow_stdin=None):
        cell = self.cells.popleft()
        assert references.silent(cell.source) == source, "it ran other code"
        assert cell.execution_count, "this cell did not run"
        for output in cell.outputs:
            content = {"metadata": {}} | output
            self.messages.append((content.pop("output_type"), content))
        self.messages.append(("status", {"execution_state": "idle"}))
        return "run"

    def await_reply(self, identity, timeout=None):
        """The run is over."""

    await_idle = await_reply

    def get_message(self, stream, timeout=None):
        kind, content = self.messages.popleft()
        content = nbformat.from_dict(content)
        return {"msg_type": kind, "content": content, "parent_header": {"msg_id": "run"}}


def compare(session, path, executed):
    """How many cells of the reference at that path nbval passed, one by one.

    Raises NbCellError or AssertionError at the first cell that differs.
    """
    cells = pages.code_cells(executed)
    file = IPyNbFile.from_parent(session, path=path)
    session.config.hook.pytest_collectstart(collector=file)
    items = list(file.collect())
    assert len(items) == len(cells), f"{len(cells)} cells ran, the reference has {len(items)}"
    file.kernel = Recorded(cells)
    file.setup_sanitize_files()
    for item in items:
        item.runtest()
    assert not file.kernel.cells
    return len(items)


@pytest.mark.parametrize("page", COMPARED)
def test_a_page_ran_as_its_reference_did(request, page):
    digest = execute.prepare(ROOT, page, pages.QUICK)[2]
    path = pages.executed(ROOT, page, pages.QUICK, digest)
    if not path.is_file():
        pytest.fail(f"{page} has not run as it is now: make book first", pytrace=False)
    try:
        compare(request.session, references.path_of(ROOT, page), nbformat.read(path, as_version=4))
    except NbCellError as error:
        different = f"{page}, cell {error.cell_num}: {error}\n{error.source}"
        pytest.fail(f"{different}\n{error.inner_traceback or ''}", pytrace=False)


# The comparison bites.


def cell(source, *outputs, tags=(), ran=1):
    metadata = {"tags": list(tags)}
    return v4.new_code_cell(source, outputs=list(outputs), execution_count=ran, metadata=metadata)


def text(value):
    return v4.new_output("stream", name="stdout", text=value)


def plot(**pictures):
    data = {"text/plain": "<Figure>"} | {name.replace("_", "/"): v for name, v in pictures.items()}
    return v4.new_output("display_data", data=data)


RAISED = v4.new_output("error", ename="ValueError", evalue="no", traceback=["no"])
IGNORED = ["nbval-ignore-output"]
REFERENCE = [cell("x = 2"), cell("print(x)", text("2\n")), cell("now()", text("7"), tags=IGNORED)]


@pytest.mark.parametrize(
    ("number", "other", "error"),
    [
        (3, cell("plot();", plot(image_png="aaaa")), None),
        (2, cell("now()", text("8"), tags=IGNORED), None),
        (2, cell("now()", RAISED, tags=IGNORED), NbCellError),
        (1, cell("print(x)", text("3\n")), NbCellError),
        (0, cell("x = 2", text("a warning\n")), NbCellError),
        (0, cell("x = 3"), AssertionError),
        (0, cell("x = 2", ran=None), AssertionError),
    ],
)
def test_only_pictures_and_ignored_outputs_may_differ(request, tmp_path, number, other, error):
    path, cells = tmp_path / "reference.ipynb", [*REFERENCE, cell("plot();", plot())]
    stored = copy.deepcopy(cells)
    for kept in stored:
        kept.source = references.silent(kept.source)
    nbformat.write(v4.new_notebook(cells=stored), path)
    cells[number] = other
    with pytest.raises(error) if error else nullcontext():
        compare(request.session, path, v4.new_notebook(cells=cells))
