"""How a page of an experiment begins: the claims that it judges, and its recorded figure."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import xarray as xr
from IPython.display import HTML, display

from iterlin_study.records import records
from iterlin_study.report import claims_table, plotting
from iterlin_study.report.tables import said


def show(page: str) -> None:
    """Display the claims that a page (its path without extension) judges, a line each.

    Raises ValueError if it judges none.
    """
    if not claims_table.verdicts(page):
        raise ValueError(f"no claim of the ledger is judged by the page {page!r}")
    display(HTML(claims_table.table(page, opened=False)))


def figure(page: str, draw: Callable[[xr.Dataset], object]) -> None:
    """Let a function draw the page's best record, in the book's style; nothing without a record.

    So a page can show what was found before the code that finds it. A record that lacks what the
    figure needs is older than the page, which says so.
    """
    plotting.use_style()
    record = records.best(page.rpartition("/")[2])
    if record is None:
        return
    try:
        draw(record)
    except (KeyError, AttributeError) as error:
        plt.close("all")  # of a figure that is half drawn
        older = f"The record is older than this page: it lacks {error}."
        display(said(older, emphasised=True))
