"""Tables say what the samples say, and a dash where there are none."""

import numpy as np
from iterlin.study import tables
from test_early_stopping import curves


def pair(mean, half):
    """Held together, so that a table does not break it."""
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half}"


def test_intervals_in_words():
    assert tables.interval_text([1.0, 2.0, 3.0]) == pair("2.0", "2.5")
    assert tables.interval_text([1.0, np.nan]) == "1.0"
    assert tables.interval_text([np.nan, np.nan]) == "–"
    assert tables.interval_text([0.123, 0.123], digits=2) == pair("0.12", "0.00")


def test_a_table_is_markdown():
    assert tables.markdown(["a", "b"], [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |"


def test_readings_of_runs():
    ds = curves()
    ds["updates"] = ds.step // 10
    ds["diverged_at"] = (("period", "seed"), [[-1, -1], [50, -1]])
    ds["accuracy_oracle"] = 100 * ds.test_accuracy.max("evaluation")
    ds["accuracy_validated"] = ds.accuracy_oracle - 1
    _, _, first, second, _, foot = tables.readings(ds).splitlines()
    assert foot == tables.FOOT
    assert first.startswith("| $K=1$ | 100 |")
    assert first.endswith("| 0 |")
    assert f"| {pair('1.0', '0.0')} |" in first
    assert second.startswith(r"| $K=\infty$ |")
    assert second.endswith("| 1 |")


# What a record may hold, and Markdown would take for a picture of another site, mathematics,
# emphasis or the next cell.
TEXT = "![x](//other.site/x) $a$ *b* | c"
SHOWN = r"!\[x](//other.site/x) \$a\$ \*b\* \| c"


def test_text_of_a_records_axis_is_shown_as_it_is():
    (cell,) = np.array([TEXT])
    assert tables.markdown(["$K$"], [[cell], ["$1$"]]).splitlines()[2:] == [
        f"| {SHOWN} |",
        "| $1$ |",
    ]


def test_runs_that_text_tells_apart_are_shown_by_it():
    ds = curves()
    ds["updates"] = ds.step // 10
    ds["diverged_at"] = (("period", "seed"), [[-1, -1], [50, -1]])
    ds["accuracy_oracle"] = ds["accuracy_validated"] = 100 * ds.test_accuracy.max("evaluation")
    ds = ds.rename(period="solver").assign_coords(solver=[TEXT, "stopped"])
    _, _, first, second, *_ = tables.readings(ds, "solver", label=str).splitlines()
    assert first.startswith(f"| {SHOWN} | ")
    assert second.startswith("| stopped | ")
