"""The claims ledger as a reader sees it: a line for each claim, which opens to the numbers."""

import re
from html import escape

from IPython.display import HTML, display

from iterlin_study.report import claims
from iterlin_study.report.claims import OURS, VERSIONS, Statement, Verdict, verdicts
from iterlin_study.report.intervals import text

# Words carry the verdict; the colours (colour-blind safe, white on each at 5:1 or more) only help.
BLUE, BROWN, RED, GREY = "#0067a0", "#8a5700", "#b02a15", "#5f5f5f"
LOOKS = {
    claims.REPRODUCED: ("✔", BLUE),
    claims.HELD: ("✔", BLUE),
    claims.PARTLY: ("◐", BROWN),
    claims.UNDECIDED: ("?", BROWN),
    claims.OPEN: ("?", BROWN),
    claims.NOT: ("✘", RED),
    claims.REFUTED: ("✘", RED),
    claims.NOT_TESTED: ("–", GREY),
    claims.NOT_RUN: ("○", GREY),
}

# On a wide screen a line of columns, on a narrow one the same parts below each other.
STYLE = """<style>
.claims details { border-bottom: 1px solid #8884; padding: 0.35em 0 }
.claims summary { cursor: pointer; display: grid; gap: 0.1em 0.8em; align-items: baseline;
  grid-template-columns: 1em 8.5em 2fr 3fr }
.claims summary::before { content: "▸" }
.claims details[open] > summary::before { content: "▾" }
.claims summary:hover { background: #8881 }
.verdict { color: #fff; border-radius: 0.3em; padding: 0.05em 0.5em; font-size: 0.85rem;
  white-space: nowrap; justify-self: start }
.claims .found > span { display: block }
.claims details:not([open]) .found span:not(.told) { display: -webkit-box;
  -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden }
.claims .more { margin: 0.4em 0 0.6em 1em; font-size: 0.9em }
.claims .more ul { margin: 0.3em 0 }
.claims-list { list-style: none; padding: 0 }
.claims-list li { display: grid; grid-template-columns: 9.5em 1fr auto; gap: 0 0.8em;
  align-items: baseline; border-bottom: 1px solid #8884; padding: 0.3em 0 }
@media (max-width: 720px) {
  .claims summary { grid-template-columns: 1em 1fr }
  .claims summary > * { grid-column: 2 }
  .claims-list li { grid-template-columns: 1fr }
}
</style>"""


def show_all(*, ours: bool) -> None:
    """Display a line for each claim of the paper, or for each hypothesis of this book."""
    display(HTML(lines(ours=ours)))


def lines(*, ours: bool) -> str:
    """The verdicts as HTML, a line each in the ledger's order; each claim links to its page."""
    rows = (
        f'<li>{badge(verdict.verdict)}<a href="{escape(verdict.row["page"])}.html">'
        f"{escape(verdict.row['claim'])}</a><small>{escape(_source(verdict.row))}</small></li>"
        for verdict in verdicts()
        if (verdict.row["version"] == OURS) == ours
    )
    return f'{STYLE}<ul class="claims-list">\n{"".join(rows)}\n</ul>'


def badge(verdict: str) -> str:
    """A verdict as HTML, in its colour (`STYLE`)."""
    mark, colour = LOOKS[verdict]
    return f'<span class="verdict" style="background:{colour}">{mark} {verdict}</span>'


def _source(row: dict) -> str:
    """Return where the paper says it; of a hypothesis of this book its name alone."""
    if row["version"] == OURS:
        return row["id"]
    return f"{row['id']}: {VERSIONS[row['version']]}, {row['place']}"


def table(page: str, *, opened: bool = True) -> str:
    """The claims of a page (its path without extension) as HTML, in the ledger's order."""
    rows = "\n".join(_row(verdict, opened=opened) for verdict in verdicts(page))
    return f'{STYLE}<div class="claims">\n{rows}\n</div>'


def _row(verdict: Verdict, *, opened: bool) -> str:
    row = verdict.row
    mark = badge(verdict.verdict)
    says = f"<span><b>{escape(row['id'])}</b> {escape(row['claim'])}</span>"
    if row["version"] == OURS:
        source = f"A hypothesis of this book. The paper ({row['place']})"
    else:
        source = f"The paper, {VERSIONS[row['version']]} ({row['place']})"
    paper = f"{source}: {row['paper']}."
    parts = [escape(paper), escape(_record(verdict))]
    statements = [_statement(s, "for a test required") for s in verdict.unmet]
    statements += map(_statement, verdict.statements)
    listed = "".join(f"<li>{statement}</li>" for statement in statements)
    return (
        f"<details{' open' if opened else ''}><summary>{mark}{says}"
        f'<span class="found">{_found(verdict)}</span></summary>'
        f'<div class="more">{" ".join(filter(None, parts))}'
        f"{f'<ul>{listed}</ul>' if listed else ''}</div></details>"
    )


def _found(verdict: Verdict) -> str:
    """Return the row's sentence; without one its statements, or why there are none.

    As HTML, an outcome and its number first: of what follows only as much is shown as fits.
    """
    if verdict.finding:
        return f'<span class="told">{escape(verdict.finding)}</span>'
    if verdict.unmet:
        asked = verdict.unmet[0]
        found = [f"{text(asked.found)}, for a test {asked.rule} {asked.value:g}: {asked.says}"]
    elif verdict.statements:
        found = [f"{s.outcome}: {text(s.found)}, {s.says}" for s in verdict.statements]
    else:
        found = [verdict.row.get("why", "")]
    if verdict.tier and verdict.partial:
        found[0] = f"({verdict.partial}) {found[0]}"
    return "".join(f"<span>{escape(line)}</span>" for line in found)


def _record(verdict: Verdict) -> str:
    """Which record judges, and whether its rule is the one that it was made under."""
    notes = [f"{verdict.tier} tier", verdict.partial]
    if verdict.rule_since:
        short = re.sub(r"^(\w{7})\w+", r"\1", verdict.commit)  # "+changes" may follow
        notes.append(f"rule {verdict.rule_since} since it was recorded at {short}")
    return f"Record: {', '.join(note for note in notes if note)}." if verdict.tier else ""


def _statement(statement: Statement, word: str = "required") -> str:
    found = escape(f"{statement.says}: {text(statement.found)}")
    return f"{found}, {word} {statement.rule} {statement.value:g}: {statement.outcome}"
