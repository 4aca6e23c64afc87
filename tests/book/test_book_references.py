"""References for nbval: they compare, and `make book` executed what those in the repository hold.

Nothing is executed again here: the notebook that a build keeps of a page is that of the page's
present code, parameters and library. `make nightly` lets nbval execute the pages again.
"""

import os
import subprocess
import sys
from unittest import mock

import nbformat
import pytest
import toy_book
from iterlin_book import pages, references
from toy_book import ROOT

COMPARED, LEFT_OUT = references.listed(ROOT)


@pytest.fixture
def toy(tmp_path):
    root = toy_book.create(tmp_path / "book")
    folder = root / references.FOLDER
    folder.mkdir(parents=True)
    (folder / "pages.txt").write_text("xor  # quick\n\n-other  above a minute\n")
    (folder / "old.ipynb").write_text("{}")
    done = toy_book.run(root, "execute", "xor")
    assert done.returncode == 0, done.stderr
    with mock.patch.dict(os.environ):  # which a build changes
        assert references.main(["--root", str(root)]) == 0
    return root


def test_references_hold_no_pictures_and_nbval_compares_what_cells_print(toy):
    (path,) = (toy / references.FOLDER).rglob("*.ipynb")
    assert path == references.path_of(toy, "experiments/xor")
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    assert "image/" not in nbformat.writes(notebook)
    assert "<Figure" in nbformat.writes(notebook)
    toy_book.edit(toy, "lib/iterlin/__init__.py", "4 * x", "4 * x + 1")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", str(path)],
        cwd=toy,
        env=toy_book.environment(toy),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout


def test_what_a_cell_prints_is_one_text_however_it_arrives():
    def stream(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    picture = nbformat.v4.new_output("display_data", {"text/plain": "<Figure>"})
    given = [stream("a\n"), stream("b\n"), picture, stream("c\n"), stream("d\n", "stderr")]
    texts = [output.get("text") for output in references.joined(given)]
    assert texts == ["a\nb\n", None, "c\n", "d\n"]


def test_every_page_with_code_is_compared_or_left_out_on_purpose():
    with_code = {page for page in pages.toc(ROOT) if pages.has_code(ROOT, page)}
    assert with_code == {*COMPARED, *LEFT_OUT}


@pytest.mark.parametrize("page", COMPARED)
def test_a_page_ran_as_its_reference_did(page):
    expected = nbformat.read(references.path_of(ROOT, page), as_version=4)
    try:
        found = references.reference(ROOT, page)
    except FileNotFoundError:
        pytest.fail(f"{page} has not run as it is now: make book first", pytrace=False)
    for number, (cell, reference) in enumerate(zip(found.cells, expected.cells, strict=True)):
        assert cell == reference, f"{page}, cell {number + 1}: make references, if that is right"
    assert all(cell.execution_count for cell in found.cells)
    assert any(cell.outputs for cell in found.cells)
