"""Every experiment's page runs off the quick tier: on toy data, with few and short runs.

A page meets much there that it does not in a build of the book: stored runs, a deadline, images of
three channels, branches of its figures. An hour's run should not be the first to meet it.
"""

import re

import nbformat
import pytest
from iterlin_book import pages, states
from tiny_tiers import IMAGES, ROOT, TIER, TINY, checkout, record_of, run

__all__ = ["checkout"]
pytestmark = pytest.mark.nightly
# These look into the runs of few_updates: where it has run, theirs are kept already.
LIKE_FEW_UPDATES = ("experiments/filters", "experiments/probes")
# Not before a page has done what it computes beside its grids.
FIRST_STRIKE = {"experiments/workshop": 20}


def test_every_page_with_the_tier_is_here():
    with_tier = {page for page in pages.toc(ROOT) if TIER in pages.tiers(ROOT, page)}
    assert with_tier == set(TINY)


def interrupt(root, page):
    """The time is over in the midst of the page's runs, which are kept, until some are recorded."""
    first = FIRST_STRIKE.get(page, 5)
    for strikes in (first, 2 * first, 4 * first, 8 * first):
        stopped = run(root, page, ITERLIN_TEST_STRIKES=str(strikes))
        record = record_of(root, page)
        if stopped.returncode == states.DONE and strikes > first:
            break  # so few were left
        assert stopped.returncode == states.PARTIAL, stopped.stdout[-5000:]
        assert list((root / "_build" / "runs").rglob("*.npz"))
        if record is not None:
            assert record.attrs["missing"] > 0
            break


@pytest.mark.parametrize("page", TINY)
def test_a_page_runs_at_another_tier(checkout, page):
    if TINY[page].items() >= IMAGES.items() and page not in LIKE_FEW_UPDATES:
        interrupt(checkout, page)
    done = run(checkout, page)
    assert done.returncode == states.DONE, done.stdout[-5000:]
    record = record_of(checkout, page)
    assert (record.attrs["tier"], record.attrs["missing"]) == (TIER, 0)
    (executed,) = (checkout / "_build" / "executed" / TIER).glob(f"{page}.*.ipynb")
    cells = pages.code_cells(nbformat.read(executed, as_version=4))
    outputs = [output for cell in cells for output in cell.outputs]
    # The one that a page opens with is its record's, and there was none.
    draw = [cell for cell in cells if re.search(r"plotting\.panels\(|\bdraw\w*\(", cell.source)]
    if not all("openings.figure(" in cell.source for cell in draw):
        assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
