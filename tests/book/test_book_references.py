"""References for nbval: `make book` executed what those in the repository hold.

Nothing is executed again here: the notebook that a build keeps of a page is that of the page's
present code, parameters and library. `make nightly` lets nbval execute the pages again.
"""

import nbformat
import pytest
from iterlin_book import pages, references
from toy_book import ROOT

COMPARED, LEFT_OUT = references.listed(ROOT)


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
