"""How a page of an experiment begins: what the paper says, what is found, and whether it counts.

All of it follows from the ledger and the page's best record, so that it never says anything else
than the verdicts at the page's end.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import matplotlib.pyplot as plt
import xarray as xr
from IPython.display import Markdown, display

from iterlin.study import claims, conditions, plotting, provenance, records
from iterlin.study.claims import NOT_RUN, NOT_TESTED, PARTLY, Statement, Verdict, telling
from iterlin.study.claims_table import measured
from iterlin.study.plain_text import escaped

# Claims that have a line of their own; what a page judges beyond them shares one.
MOST = 4
# The estimate of a condition in words, in the order in which they are told.
WORDS = {
    "longest_period": r"$\eta K$ up to {}",
    "time": r"$\eta T$ at least {}",
    "updates": "{} feature updates where they are fewest",
    "diverged": "{} diverged",
    "fit": "training accuracy {} % where it is lowest, diverged runs as 0",
}
NO_RUN = "no run is on record, and the quick run below shows the method only"
# What Markdown would take for its own in the ledger's plain text.
MARKUP = re.compile(r"([\\`*_$<])")


def show(page: str, *, paper: str = "", finding: Callable[[xr.Dataset], str] | None = None) -> None:
    """Display the opening of a page (its path without extension).

    paper, finding: of a page that judges no claim, what the paper says, and what the record shows,
    in Markdown. Raises ValueError if the book has no such page, or it has claims to say that.
    """
    if not (provenance.project_root() / "book" / f"{page}.md").is_file():
        raise ValueError(f"the book has no page {page!r}")
    record = records.best(page.rpartition("/")[2])
    with _of_an_earlier_page(record):
        text = opening(claims.verdicts(page), record, paper=paper, finding=finding)
        display(Markdown(text))


def figure(page: str, draw: Callable[[xr.Dataset], object]) -> None:
    """Let a function draw the page's best record, in the book's style; nothing without a record.

    So a page can show what was found before the code that finds it.
    """
    plotting.use_style()
    record = records.best(page.rpartition("/")[2])
    if record is not None:
        with _of_an_earlier_page(record):
            draw(record)


@contextmanager
def _of_an_earlier_page(record: xr.Dataset | None) -> Iterator[None]:
    """Say what a stale record lacks and go on: the run that makes it anew is yet to come.

    What fails with a fresh record is raised.
    """
    try:
        yield
    except Exception as error:
        if record is None or not records.is_stale(record):
            raise
        plt.close("all")  # of a figure that is half drawn
        display(
            Markdown(
                f"*The record is older than this page, which asks more of it: {escaped(error)}.*"
            )
        )


def opening(
    verdicts: list[Verdict],
    record: xr.Dataset | None,
    *,
    paper: str = "",
    finding: Callable[[xr.Dataset], str] | None = None,
) -> str:
    """The opening of a page that makes these verdicts from the record, as a Markdown list.

    One claim: what the paper says, what is found, whether it counts. Several: a line for each, and
    one for all that count, or do not, for the same reason. Last comes what the record is.
    """
    if verdicts and (paper or finding):
        raise ValueError("the page's claims say what the paper does and what is found")
    if not verdicts:
        lines = list(_without_claims(record, paper, finding))
    elif len(verdicts) == 1:
        lines = [f"{_source(verdicts[0])} {_claim(verdicts[0])}.", _found(verdicts[0])]
    else:
        lines = [_together(verdict) for verdict in verdicts[:MOST]]
        if others := verdicts[MOST:]:
            told = (f"{_claim(verdict)} **{verdict.verdict}**" for verdict in others)
            lines.append(f"**Judged below, too:** {'; '.join(told)}.")
    lines += _weights(verdicts, record)
    if record is not None:
        lines.append(f"**Record:** {records.caption(record)}.{_other_runs(verdicts, record)}")
    elif not any(NO_RUN in line for line in lines):
        lines.append(f"**We find** nothing yet: {NO_RUN}.")
    return "\n".join(f"- {line}" for line in lines)


def _claim(verdict: Verdict) -> str:
    row = verdict.row
    return f"{_plain(row['claim'])} ({row['id']}: {_plain(row['paper'])})"


def _source(verdict: Verdict) -> str:
    """Whose claim it is: the paper's, or a hypothesis of this book."""
    return "**Our hypothesis:**" if verdict.row["version"] == "ours" else "**The paper says:**"


def _together(verdict: Verdict) -> str:
    """What the paper says and what is found, in one line."""
    found = "" if verdict.verdict == NOT_RUN else f" {_found(verdict)}"
    return f"{_source(verdict)} {_claim(verdict)}.{found}"


def _found(verdict: Verdict) -> str:
    """The numbers that tell the verdict, and the verdict."""
    if verdict.verdict == NOT_RUN:
        return f"**We find** nothing yet: {_plain(verdict.row.get('why', '')) or NO_RUN}."
    numbers = "; ".join(
        f"{_plain(measured(s))} ({s.rule} {s.value:g}: {s.outcome})" for s in telling(verdict)
    )
    count, held = len(verdict.statements), len(verdict.held)
    share = f" ({held} of {count} statements hold)" if verdict.verdict == PARTLY else ""
    return f"**We find** {numbers}. Verdict: **{verdict.verdict}**{share}."


def _weights(verdicts: list[Verdict], record: xr.Dataset | None) -> Iterator[str]:
    """Whether the verdicts count, and why: a line for those that do not, for those that do by what
    their rows require, and for those whose rows require nothing."""
    untested, asked, free = _by_weight(verdicts)
    if untested:
        met = _requirements(untested, met=True)
        subject = _names(untested, verdicts, "do not count", "does not count")
        reasons = f"{_requirements(untested, met=False)}{f'. Met: {met}' if met else ''}"
        yield f"**{subject} because** {reasons}."
    if asked:
        subject = _names(asked, verdicts, "count", "counts")
        yield f"**{subject} because** {_requirements(asked, met=True)}."
    if free:
        subject = _names(free, verdicts, "count", "counts")
        yield f"**{subject}**; the rule asks nothing further of the runs{_of(record)}."


def _by_weight(verdicts: list[Verdict]) -> tuple[list[Verdict], list[Verdict], list[Verdict]]:
    """Those not tested; those that count, with and without requirements."""
    tested = [v for v in verdicts if v.verdict not in (NOT_TESTED, NOT_RUN)]
    return (
        [v for v in verdicts if v.verdict == NOT_TESTED],
        [v for v in tested if v.required],
        [v for v in tested if not v.required],
    )


def _names(group: list[Verdict], verdicts: list[Verdict], plural: str, singular: str) -> str:
    """'It counts', 'They count', or by name where the page has others."""
    names = ", ".join(verdict.row["id"] for verdict in group)
    several = len(group) > 1
    if len(group) == len(verdicts):
        names = "They" if several else "It"
    return f"{names} {plural if several else singular}"


def _requirements(verdicts: list[Verdict], met: bool) -> str:
    """What the rows require that is met, or not, each once and with its numbers."""
    required: dict[tuple, Statement] = {}
    for statement in (s for verdict in verdicts for s in verdict.required):
        required.setdefault((statement.statistic, statement.rule, statement.value), statement)
    return "; ".join(
        f"{_plain(measured(s))} (required {s.rule} {s.value:g})"
        for s in required.values()
        if (s.outcome == "holds") == met
    )


def _runs(record: xr.Dataset, told: Iterable[str] = ()) -> str:
    """How many runs a record holds and how they went, as far as it can be read off it and has not
    been told."""
    found = []
    if count := sum(record[name].size for name in record.data_vars if "diverged_at" in name):
        found.append(f"{count} runs")
    for name in (name for name in WORDS if name not in told):
        try:
            estimate = conditions.of(record, name).estimate
        except ValueError:  # the record does not keep what it is read off
            continue
        number = f"{estimate:,.0f}" if abs(estimate) >= 100 else f"{estimate:.3g}"
        found.append(WORDS[name].format(number))
    return ", ".join(found)


def _of(record: xr.Dataset) -> str:
    seeds = f"{record.sizes['seed']} seeds" if "seed" in record.sizes else ""
    told = ", ".join(filter(None, (seeds, _runs(record))))
    return f": {told}" if told else ""


def _other_runs(verdicts: list[Verdict], record: xr.Dataset) -> str:
    """The same where no reason has told it: without the fit, which rows measure in ways of their
    own, and what they require."""
    if not verdicts or _by_weight(verdicts)[2]:
        return ""
    told = {"fit"} | {statement.statistic for v in verdicts for statement in v.required}
    runs = _runs(record, told)
    return f" {runs}." if runs else ""


def _without_claims(record: xr.Dataset | None, paper: str, finding) -> Iterator[str]:
    yield f"**The paper says:** {paper}" if paper else "No claim of the ledger is judged here."
    if record is None:
        return
    if finding is not None:
        yield f"**We find** {finding(record)}"
    yield f"**It counts** for no verdict{_of(record)}."


def _plain(text: str) -> str:
    """The ledger's text so that Markdown shows it as it is."""
    return MARKUP.sub(r"\\\1", text).removesuffix(".")
