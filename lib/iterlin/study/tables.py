"""Results as Markdown tables: means over seeds with their intervals."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from iterlin.study.intervals import mean_interval
from iterlin.study.plain_text import escaped
from iterlin.study.plotting import period_label

FOOT = "*Mean ± half of its 95 % interval over seeds.*"


def interval_text(samples, digits: int = 1) -> str:
    """'82.3 ± 0.4': the mean over seeds and half its 95 % interval; a dash without samples."""
    samples = np.asarray(samples, dtype=float).ravel()
    if not np.isfinite(samples).any():
        return "–"
    found = mean_interval(samples)
    mean = f"{found.estimate:.{digits}f}"
    if not np.isfinite(found.lower):
        return mean
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{found.upper - found.estimate:.{digits}f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    """A table with the given column titles, and what ± means under one that has it.

    Cells are Markdown, but for text as it comes from a data set's axes (``numpy.str_``), which is
    shown as it is.
    """
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
    return f"{table}\n\n{FOOT}" if "±" in table else table


def _cell(value: object) -> str:
    return escaped(value) if isinstance(value, np.str_) else str(value)


def readings(dataset: xr.Dataset, axis: str = "period", label=period_label) -> str:
    """How runs end, a row per value of `axis`: accuracies in per cent, updates, diverged runs.

    label(value) names a number in Markdown; text names itself.
    The data set has the variables of `runs.grid` and those of `early_stopping` as
    "accuracy_oracle" and "accuracy_validated", in per cent.
    """
    rows = []
    for value in dataset[axis].values:
        at = dataset.sel({axis: value})
        oracle, validated = at.accuracy_oracle, at.accuracy_validated
        rows.append(
            [
                np.str_(value) if isinstance(value, str) else label(value),
                f"{float(at.updates.isel(evaluation=-1).mean()):.0f}",
                interval_text(100 * at.test_accuracy.isel(evaluation=-1)),
                interval_text(100 * at.test_accuracy_proxy.isel(evaluation=-1)),
                interval_text(oracle),
                interval_text(validated),
                interval_text(oracle - validated),
                int((at.diverged_at >= 0).sum()),
            ]
        )
    head = [
        "run",
        "feature updates",
        "network at the end (%)",
        "proxy at the end (%)",
        "best on the test set (%)",
        "chosen by validation (%)",
        "optimism (points)",
        "diverged",
    ]
    return markdown(head, rows)
