"""Results as HTML: tables and sentences that show every text as it is written.

Records and parameter files may come from others. None of their text is shown as Markdown, whose
links, images and directives would act while the book is built.
"""

from collections.abc import Callable, Iterable
from html import escape

import numpy as np
import pandas as pd
import xarray as xr
from IPython.display import HTML

from iterlin_study.report.intervals import mean_interval
from iterlin_study.report.plotting import period_text

FOOT = "Mean ± half of its 95 % interval over seeds."


def interval_text(samples, digits: int = 1) -> str:
    """Write '82.3 ± 0.4': mean over seeds and half its 95 % interval; a dash without samples."""
    samples = np.asarray(samples, dtype=float).ravel()
    if not np.isfinite(samples).any():
        return "–"
    found = mean_interval(samples)
    mean = f"{found.estimate:.{digits}f}"
    if not np.isfinite(found.lower):
        return mean
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{found.upper - found.estimate:.{digits}f}"


def said(text: str, *, emphasised: bool = False, csv: str = "") -> HTML:
    """Return a paragraph of plain text for a page to display; csv: a file to download with it."""
    shown = escape(_one_line(text))
    shown = f"<em>{shown}</em>" if emphasised else shown
    link = f' <a href="{escape(csv, quote=True)}" download>CSV</a>' if csv else ""
    return HTML(f"<p>{shown}{link}</p>")


def table(head: Iterable, rows: Iterable[Iterable], title: str = "") -> HTML:
    """Return a table of plain text for a page to display; below it what ± means, if a cell has it.

    Args:
        head: Titles of the columns; one without a title is "".
        rows: Cells, which are shown by `str`.
        title: The table's caption.
    """
    cells = [[_one_line(cell) for cell in row] for row in rows]
    frame = pd.DataFrame(cells, columns=[_one_line(name) for name in head])
    with pd.option_context("display.max_colwidth", None):
        shown = frame.to_html(index=False, escape=True, border=0, justify="left", classes="table")
    # pandas has escaped every text, so that these tags are its own.
    shown = shown.replace("<th></th>", "<td></td>").replace("<th>", '<th scope="col">')
    if title:
        shown = shown.replace(
            "<thead>", f"<caption>{escape(_one_line(title))}</caption>\n<thead>", 1
        )
    foot = f"<p><em>{FOOT}</em></p>" if any("±" in cell for row in cells for cell in row) else ""
    return HTML(f'<div class="pst-scrollable-table-container">\n{shown}\n</div>{foot}')


def _one_line(value: object) -> str:
    """Join the lines: a blank one would end HTML that stands in the Markdown of a page."""
    return " ".join(str(value).splitlines())


def readings(
    dataset: xr.Dataset,
    axis: str = "period",
    label: Callable[[object], str] = period_text,
    title: str = "",
) -> HTML:
    """Return a table of how runs end, a row per value of `axis`.

    label(value) names a row. The data set has the variables of `grids.grid` and those of
    `early_stopping` as "accuracy_oracle" and "accuracy_validated", in per cent.
    """
    rows = []
    for value in dataset[axis].values:
        at = dataset.sel({axis: value})
        oracle, validated = at.accuracy_oracle, at.accuracy_validated
        end = at.isel(evaluation=-1)
        row = {
            "run": label(value),
            "feature updates": f"{float(end.updates.mean()):.0f}",
            "network at the end (%)": interval_text(100 * end.test_accuracy),
            "proxy at the end (%)": interval_text(100 * end.test_accuracy_proxy),
            "best on the test set (%)": interval_text(oracle),
            "chosen by validation (%)": interval_text(validated),
            "optimism (points)": interval_text(oracle - validated),
            "diverged": int((at.diverged_at >= 0).sum()),
        }
        rows.append(row)
    return table(rows[0], map(dict.values, rows), title)
