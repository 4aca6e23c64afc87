"""Stored outputs meet current prose; outputs of other code are refused."""

import jupytext
import pytest
from iterlin_book import merge
from iterlin_book.pages import BookError
from nbformat.v4 import new_output
from toy_book import HEADER

PAGE = HEADER + "\n# Title\n\n```{code-cell} ipython3\na = 1\n```\n\nText.\n"


def executed(text):
    notebook = jupytext.reads(text, fmt="md:myst")
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = number + 1
        cell.outputs = [new_output("stream", name="stdout", text=f"output {number}\n")]
    return notebook


def test_outputs_move_to_the_current_prose():
    current = jupytext.reads(PAGE.replace("Text.", "Other text."), fmt="md:myst")
    merged = merge.with_outputs("page", current, executed(PAGE))
    assert [cell.cell_type for cell in merged.cells] == ["markdown", "code", "markdown"]
    assert merged.cells[2].source == "Other text."
    assert merged.cells[1].outputs[0].text == "output 0\n"
    assert merged.cells[1].execution_count == 1


def test_the_cell_that_papermill_adds_is_left_out():
    ran = executed(
        PAGE.replace("```{code-cell}", "```{code-cell} ipython3\nb = 2\n```\n\n```{code-cell}")
    )
    ran.cells[1].metadata["tags"] = ["injected-parameters"]
    merged = merge.with_outputs("page", jupytext.reads(PAGE, fmt="md:myst"), ran)
    assert merged.cells[1].outputs[0].text == "output 1\n"


def test_outputs_of_other_code_are_refused():
    ran = executed(PAGE.replace("a = 1", "a = 2"))
    with pytest.raises(BookError, match="page: its code is not what the stored outputs come from"):
        merge.with_outputs("page", jupytext.reads(PAGE, fmt="md:myst"), ran)


def test_pictures_get_words_unless_the_page_has_its_own():
    text = PAGE.replace("a = 1\n", "a = 1\n```\n\n```{code-cell} ipython3\nb = 1\n")
    ran, current = executed(text), jupytext.reads(text, fmt="md:myst")
    for cell, kind in ((ran.cells[1], "png"), (ran.cells[2], "svg+xml")):
        cell.outputs = [new_output("display_data", data={f"image/{kind}": "AAAA"})]
    current.cells[2].metadata["mystnb"] = {"image": {"alt": "Own words"}}
    merged = merge.with_outputs("page", current, ran)
    words = [cell.metadata["mystnb"]["image"]["alt"] for cell in merged.cells[1:3]]
    assert words == ["Figure computed in the section “Title”", "Own words"]
