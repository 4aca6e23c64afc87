"""Fill what only a finished build knows into the status page (`iterlin_book.merge`).

No cell can know: pages run side by side. The executed notebooks carry their times, and the quick
runs lie in _build/records.
"""

from iterlin_study.records import comparison, records
from iterlin_study.report import tables

TIMES = "<!-- the time of each page -->"
QUICK_RUNS = "<!-- today's quick runs beside the recorded ones -->"


def fill(text, about):
    """Replace the two marks in a text. `about`: metadata of executed notebooks by page."""
    if TIMES in text:
        text = text.replace(TIMES, times(about))
    return text.replace(QUICK_RUNS, quick_runs()) if QUICK_RUNS in text else text


def times(about):
    """Return a Markdown table of each page's seconds and date, their sum first."""
    took = {page: found["iterlin_book"]["seconds"] for page, found in about.items()}
    days = {page: found["papermill"]["end_time"][:10] for page, found in about.items()}  # of UTC
    lines = ["| page | seconds | ran on |", "| --- | ---: | --- |"]
    lines.append(f"| all {len(took)} pages, one after the other | {sum(took.values()):,.0f} | |")
    lines += [f"| {{doc}}`{page} </{page}>` | {took[page]:,.1f} | {days[page]} |" for page in took]
    return "\n".join(lines)


def quick_runs():
    """Return an HTML table that compares this build's quick runs with the kept ones."""
    found = [(name, comparison.sentence(records.best(name))) for name in comparison.experiments()]
    return tables.table(["experiment", "today"], found).data
