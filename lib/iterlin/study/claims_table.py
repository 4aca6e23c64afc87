"""The claims ledger as a reader sees it: a table with each verdict and the numbers behind it."""

from html import escape

from IPython.display import HTML, display

from iterlin.study.claims import (
    NOT,
    NOT_RUN,
    NOT_TESTED,
    PARTLY,
    REPRODUCED,
    UNDECIDED,
    Statement,
    Verdict,
    verdicts,
)

# Words carry the verdict; the colours (of the book's theme, colour-blind safe) only help.
MARKS = {REPRODUCED: "✔", PARTLY: "◐", UNDECIDED: "?", NOT: "✘", NOT_TESTED: "–", NOT_RUN: "○"}
COLOURS = {
    REPRODUCED: "#0173b2",
    PARTLY: "#a66a00",
    UNDECIDED: "#a66a00",
    NOT: "#b5301a",
    NOT_TESTED: "#666666",
    NOT_RUN: "#666666",
}


def show(page: str | None = None) -> None:
    """Display the claims of a page (its path without extension), or all with links to the pages."""
    display(HTML(table(page)))


STYLE = """<style>
table.claims td, table.claims th {
  padding: 0.4em 0.7em 0.4em 0; vertical-align: top; text-align: left;
  border-bottom: 1px solid #8884
}
table.claims { width: 100% }
</style>"""


def table(page: str | None = None) -> str:
    """The claims as HTML: those that have been run first, each group in the ledger's order."""
    found = sorted(verdicts(page), key=lambda verdict: verdict.verdict == NOT_RUN)
    rows = "\n".join(_row(verdict, linked=page is None) for verdict in found)
    return (
        f'{STYLE}<table class="claims"><thead><tr><th>Claim</th><th>The paper</th><th>Verdict</th>'
        f"<th>What we found</th></tr></thead><tbody>\n{rows}\n</tbody></table>"
    )


def _row(verdict: Verdict, linked: bool) -> str:
    row = verdict.row
    name = escape(row["id"])
    if linked:
        name = f'<a href="{escape(row["page"])}.html">{name}</a>'
    mark = (
        f'<span style="color:{COLOURS[verdict.verdict]};white-space:nowrap">'
        f"{MARKS[verdict.verdict]} {verdict.verdict}</span>"
    )
    notes = [f"{verdict.tier} tier", verdict.partial, "stale" if verdict.stale else ""]
    if verdict.before is not None:
        when = "before the run" if verdict.before else "changed since the run"
        notes.append(f"rule {when} at {verdict.commit[:7]}")
    tier = f"<br><small>{', '.join(note for note in notes if note)}</small>"
    found = [_statement(s, "for a test required") for s in verdict.unmet]
    found = "<br>".join([*found, *map(_statement, verdict.statements)])
    found = found or escape(row.get("why", ""))
    return (
        f"<tr><td>{name}<br><small>{escape(row['version'])}, {escape(row['place'])}</small></td>"
        f"<td>{escape(row['claim'])}<br><small>{escape(row['paper'])}</small></td>"
        f"<td>{mark}{tier if verdict.tier else ''}</td><td>{found}</td></tr>"
    )


def _statement(statement: Statement, word: str = "required") -> str:
    found = escape(measured(statement))
    return f"{found}, {word} {statement.rule} {statement.value:g}: {statement.outcome}"


def measured(statement: Statement) -> str:
    """A statement's words, its estimate and, where it has a width, the interval."""
    estimate, lower, upper = statement.found
    interval = "" if lower == upper else f" [{lower:.3g}, {upper:.3g}]"
    return f"{statement.says}: {estimate:.3g}{interval}"
