"""How a page of an experiment begins: the claims that it judges, and its recorded figure."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import xarray as xr
from IPython.display import HTML, display

from iterlin_study.records import records
from iterlin_study.report import claims_table, plotting
from iterlin_study.report.tables import said

# Of a closed line the verdict and the sentence alone: the claim shows when it opens.
STYLE = """<style>
.opening .claims summary { grid-template-columns: 1em 8.5em 1fr }
.opening .claims details:not([open]) summary > span:nth-of-type(2) { display: none }
.opening .claims details[open] .found { grid-column: 3 }
@media (max-width: 720px) {
  .opening .claims summary { grid-template-columns: 1em 1fr }
  .opening .claims details[open] .found { grid-column: 2 }
}
</style>"""


def show(page: str) -> None:
    """Display the page's verdicts, with a sentence for each; page: its path without extension."""
    display(HTML(f'{STYLE}<div class="opening">{claims_table.table(page, opened=False)}</div>'))


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
