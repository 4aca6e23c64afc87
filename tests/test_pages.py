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
    executed = nbformat.read(path, as_version=4)
    about = executed.metadata["iterlin_book"]
    assert (about["page"], about["tier"], about["digest"]) == (page, pages.QUICK, digest)
    try:
        compare(request.session, references.path_of(ROOT, page), executed)
    except NbCellError as error:
        different = f"{page}, cell {error.cell_num}: {error}\n{error.source}"
        pytest.fail(f"{different}\n{error.inner_traceback or ''}", pytrace=False)


# The comparison bites.


def cell(source, *outputs, tags=(), ran=1):
    metadata = {"tags": list(tags)} if tags else {}
    return v4.new_code_cell(source, outputs=list(outputs), execution_count=ran, metadata=metadata)


def text(value):
    return v4.new_output("stream", name="stdout", text=value)


def shown(value, kind="text/plain"):
    return v4.new_output("execute_result", data={kind: value}, execution_count=1)


def raised():
    return v4.new_output("error", ename="ValueError", evalue="no", traceback=["no"])


FIRST = cell("x = 2", ran=1)
PRINTS = cell("print(1.25, 'words')", text("1.25 words\n"))
SHOWS = cell("x", shown("2"))
QUIET = cell("time()", shown("7.1"), tags=["nbval-ignore-output"])
RAISES = cell("fails()", raised(), tags=["raises-exception"])
WHOLE = [FIRST, PRINTS, SHOWS, QUIET, RAISES]


@pytest.fixture
def run_against(request, tmp_path):
    """How the comparison of a notebook of those cells with the reference ends."""

    def compared(cells, reference=WHOLE):
        path = tmp_path / "reference.ipynb"
        stored = v4.new_notebook(cells=copy.deepcopy(reference))
        for kept in stored.cells:
            kept.source = references.silent(kept.source)
        nbformat.write(stored, path)
        return compare(request.session, path, v4.new_notebook(cells=cells))

    return compared


def with_cell(number, other):
    return [*WHOLE[:number], other, *WHOLE[number + 1 :]]


def test_the_same_run_passes(run_against):
    assert run_against(WHOLE) == len(WHOLE)


def test_prose_between_the_cells_does_not_matter(run_against):
    assert run_against([v4.new_markdown_cell("words"), *WHOLE]) == len(WHOLE)


def test_an_output_that_is_ignored_may_differ(run_against):
    other = cell("time()", shown("8.3"), tags=["nbval-ignore-output"])
    assert run_against(with_cell(3, other)) == len(WHOLE)


def test_a_last_value_that_a_semicolon_hides_passes(run_against):
    drawn = cell("plot();", v4.new_output("display_data", data={"text/plain": "<Figure>"}))
    assert run_against([drawn], [drawn]) == 1


def test_pictures_are_not_compared(run_against):
    def drawn(**pictures):
        return cell("plot()", v4.new_output("display_data", data={"text/plain": "F"} | pictures))

    for kind in ("png", "svg+xml"):
        assert run_against([drawn(**{f"image/{kind}": "aaaa"})], [drawn()]) == 1


CHANGED = {
    "a changed number": with_cell(1, cell("print(1.25, 'words')", text("1.26 words\n"))),
    "a changed text": with_cell(1, cell("print(1.25, 'words')", text("1.25 wards\n"))),
    "another stream": with_cell(
        1,
        cell("print(1.25, 'words')", v4.new_output("stream", name="stderr", text="1.25 words\n")),
    ),
    "a changed value": with_cell(2, cell("x", shown("3"))),
    "a missing output": with_cell(2, cell("x")),
    "an extra output": with_cell(0, cell("x = 2", text("a warning\n"))),
    "a second output": with_cell(2, cell("x", shown("2"), shown("2"))),
    "an extra kind of output": with_cell(
        2, cell("x", v4.new_output("display_data", data={"text/plain": "2", "text/html": "2"}))
    ),
    "an error": with_cell(1, cell("print(1.25, 'words')", raised())),
    "an error where output is ignored": with_cell(
        3, cell("time()", raised(), tags=["nbval-ignore-output"])
    ),
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
        (with_cell(0, cell("x = 2;")), "it ran other code"),
        (with_cell(0, cell("x = 2", ran=None)), "this cell did not run"),
        (WHOLE[:-1], "4 cells ran, the reference has 5"),
        ([*WHOLE, cell("x = 2")], "6 cells ran, the reference has 5"),
    ],
    ids=["changed code", "changed end", "not run", "a cell fewer", "a cell more"],
)
def test_other_cells_fail(run_against, cells, message):
    with pytest.raises(AssertionError, match=message):
        run_against(cells)
