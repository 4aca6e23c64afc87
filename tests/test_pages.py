"""What `make book` executed equals the references in tests/notebooks, page by page.

Nothing is executed here: nbval itself goes through the cells of a reference, with its tags, its
sanitising and its comparison, and where it asks a kernel to run a cell, it is told what the page's
executed notebook holds. That notebook carries the digest of the page's code, parameters and
library, so it is of the sources as they are. `make nightly` lets nbval execute the pages again.
"""

import copy
from collections import deque
from pathlib import Path

import nbformat
import pytest
from iterlin_book import execute, pages, references
from nbformat import v4
from nbval.plugin import IPyNbFile, NbCellError

ROOT = Path(__file__).resolve().parents[1]
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
    metadata = {"tags": list(tags)} if tags else {}
    return v4.new_code_cell(source, outputs=list(outputs), execution_count=ran, metadata=metadata)


def text(value, name="stdout"):
    return v4.new_output("stream", name=name, text=value)


def shown(kind="execute_result", **data):
    return v4.new_output(kind, data={name.replace("_", "/"): v for name, v in data.items()})


RAISED = v4.new_output("error", ename="ValueError", evalue="no", traceback=["no"])
PLOT, CLOCK = "plot();", "time()"
IGNORED = ["nbval-ignore-output"]
WHOLE = [
    cell("x = 2"),
    cell("print(1.25)", text("1.25\n")),
    cell("x", shown(text_plain="2")),
    cell(CLOCK, shown(text_plain="7.1"), tags=IGNORED),
    cell("fails()", RAISED, tags=["raises-exception"]),
    cell(PLOT, shown("display_data", text_plain="<Figure>")),
]


@pytest.fixture
def run_against(request, tmp_path):
    """How the comparison of a notebook of those cells with the reference ends."""

    def compared(cells):
        path = tmp_path / "reference.ipynb"
        stored = v4.new_notebook(cells=copy.deepcopy(WHOLE))
        for kept in stored.cells:
            kept.source = references.silent(kept.source)
        nbformat.write(stored, path)
        return compare(request.session, path, v4.new_notebook(cells=cells))

    return compared


def with_cell(number, other):
    return [*WHOLE[:number], other, *WHOLE[number + 1 :]]


def test_the_same_run_passes_whatever_its_prose_pictures_and_ignored_outputs(run_against):
    drawn = shown("display_data", text_plain="<Figure>", image_png="aaaa")
    cells = [v4.new_markdown_cell("words"), *with_cell(5, cell(PLOT, drawn))]
    cells[4] = cell(CLOCK, shown(text_plain="8.3"), tags=IGNORED)
    assert run_against(cells) == len(WHOLE)


CHANGED = {
    "a changed text": with_cell(1, cell("print(1.25)", text("1.26\n"))),
    "another stream": with_cell(1, cell("print(1.25)", text("1.25\n", "stderr"))),
    "a changed value": with_cell(2, cell("x", shown(text_plain="3"))),
    "a missing output": with_cell(2, cell("x")),
    "an extra output": with_cell(0, cell("x = 2", text("a warning\n"))),
    "an extra kind of output": with_cell(2, cell("x", shown(text_plain="2", text_html="2"))),
    "an error where output is ignored": with_cell(3, cell(CLOCK, RAISED, tags=IGNORED)),
    "no error where one is told of": with_cell(4, cell("fails()")),
}


@pytest.mark.parametrize("cells", CHANGED.values(), ids=CHANGED)
def test_another_output_fails(run_against, cells):
    with pytest.raises(NbCellError, match=r"Cell outputs differ|caused an exception"):
        run_against(cells)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (with_cell(0, cell("x = 3")), "it ran other code"),
        (with_cell(0, cell("x = 2", ran=None)), "this cell did not run"),
        (WHOLE[:-1], "5 cells ran, the reference has 6"),
    ],
    ids=["changed code", "not run", "a cell fewer"],
)
def test_other_cells_fail(run_against, cells, message):
    with pytest.raises(AssertionError, match=message):
        run_against(cells)
