"""Verdicts on the paper's claims, computed from records by the rules of book/claims.yml.

A row names an experiment and statements about it. A statement compares one statistic of the
record (`derived.statistic`: estimate, lower, upper) with a value. It `holds` if the whole
95 % interval satisfies the rule, `fails` if no part of it does, and is otherwise `unclear`. A row
may also have `requires`: statements about statistics or `conditions` of the runs. Unless all of
them hold, the record does not test the claim. A claim of the paper is reproduced, partly so, not
reproduced or undecided; a hypothesis of this book (version `ours`) held, refuted or open.
In a partial record a statistic may be NaN, which is `unclear`; in a whole one that is an error. A
record that lacks the statistic is older than the rule, and the claim is not yet run.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from iterlin_study.records import provenance, records, strict_yaml
from iterlin_study.report import conditions, derived, intervals

REPRODUCED, PARTLY, UNDECIDED = "reproduced", "partly", "undecided"
NOT, NOT_TESTED, NOT_RUN = "not reproduced", "not tested here", "not yet run"
HELD, REFUTED, OPEN = "held", "refuted", "open"
# What a row's version lets its verdict be, the tested ones first.
OF_PAPER = (REPRODUCED, PARTLY, UNDECIDED, NOT, NOT_TESTED, NOT_RUN)
OF_OURS = (HELD, OPEN, REFUTED, NOT_TESTED, NOT_RUN)
OURS = "ours"
# The paper's versions by place and year: arXiv counts versions of its own.
VERSIONS = {"v1": "workshop 2022", "v2": "arXiv 2023", "v3": "2025"}
# The open interval that each rule allows.
RULES = {
    "above": lambda value: (value, math.inf),
    "below": lambda value: (-math.inf, value),
    "within": lambda value: (-value, value),
}
OLDER = "the record is older than the rule"
REQUIRED = {"id", "version", "claim", "place", "paper", "page", "expected"}
ALLOWED = REQUIRED | {"experiment", "why", "requires", "statements", "finding"}


@dataclass(frozen=True)
class Statement:
    """One comparison: its words, statistic (estimate, lower, upper) and outcome."""

    says: str
    statistic: str
    rule: str
    value: float
    found: tuple[float, float, float]
    outcome: str


@dataclass(frozen=True)
class Verdict:
    """A claim's ledger row, its statements and the verdict.

    required: the statements that the row requires. commit and record_rules: those of the record
    (`rules`). finding: the row's sentence with its numbers, where the verdict is the expected one,
    of which alone the sentence speaks.
    """

    row: dict
    verdict: str
    statements: tuple[Statement, ...]
    tier: str
    partial: str = ""  # as 'partial: 7 runs missing', of a record that lacks runs
    required: tuple[Statement, ...] = ()
    commit: str = ""
    record_rules: dict | None = None
    finding: str = ""

    @property
    def unmet(self) -> tuple[Statement, ...]:
        """The required statements that do not hold."""
        return tuple(statement for statement in self.required if statement.outcome != "holds")

    @property
    def rule_since(self) -> str:
        """'unchanged', 'changed' or 'added' since the record was made; empty if unknown."""
        if self.record_rules is None:
            return ""
        kept = self.record_rules.get(self.row["id"])
        if kept is None:
            return "added"
        return "unchanged" if kept == _digest(self.row) else "changed"


def load_claims(path: Path | None = None) -> list[dict]:
    """Return the rows of the ledger. Raises ValueError naming the row and the wrong field."""
    path = _ledger() if path is None else path
    rows = strict_yaml.load(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} must be a list of claims")
    pages = {page.stem for page in path.parent.rglob("*.md")}
    for row in rows:
        if problem := _problem(row, pages):
            raise ValueError(f"{path}: claim {row.get('id', 'without id')} {problem}")
    names = [row["id"] for row in rows]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: repeated claim ids {', '.join(sorted(repeated))}")
    return rows


def _problem(row: dict, pages: set[str]) -> str:
    """What is wrong with a row of the ledger, in words; nothing if nothing is.

    pages: names of the book's pages.
    """
    if missing := REQUIRED - row.keys():
        return f"lacks {', '.join(sorted(missing))}"
    if unknown := row.keys() - ALLOWED:
        return f"has the unknown field {min(map(str, unknown))!r}"
    if row["version"] not in (*VERSIONS, OURS):
        return f"is of version {row['version']!r}, none of {', '.join(VERSIONS)} and {OURS}"
    if row["expected"] not in (OF_OURS if row["version"] == OURS else OF_PAPER):
        return f"expects {row['expected']!r}, no verdict on a row of version {row['version']}"
    if row.get("experiment") not in (None, *pages):
        return f"is of the experiment {row['experiment']!r}, which has no page"
    statements = []
    for part in ("requires", "statements"):
        if not isinstance(row.get(part, []), list):
            return f"must have a list as {part}"
        statements += row.get(part, [])
    return next(filter(None, map(_problem_of_statement, statements)), "")


def _problem_of_statement(statement: object) -> str:
    if not isinstance(statement, dict):
        return f"states {statement!r}, no mapping with a statistic and a rule"
    subject = "condition" if "condition" in statement else "statistic"
    if missing := {"says", subject} - statement.keys():
        return f"has a statement that lacks {', '.join(sorted(missing))}"
    if unknown := statement.keys() - RULES.keys() - {"says", subject}:
        return f"has the unknown field {min(map(str, unknown))!r}"
    rules = statement.keys() & RULES.keys()
    if len(rules) != 1:
        return f"has {len(rules)} rules in a statement, not one of {', '.join(RULES)}"
    name = statement[subject]
    if not isinstance(name, str) or (subject == "condition" and name not in conditions.CONDITIONS):
        return f"names no {subject}: {name!r}"
    (rule,) = rules
    value = statement[rule]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"compares with {value!r}, which is not a number"
    if rule == "within" and value <= 0:
        return f"allows nothing: within {value:g}"
    return ""


def rules(experiment: str) -> dict[str, str]:
    """Return digests of the rules that judge an experiment, by claim.

    Its record keeps them, so that a rule that is changed later shows. Empty without a ledger.
    """
    if not _ledger().is_file():
        return {}
    return {row["id"]: _digest(row) for row in load_claims() if row.get("experiment") == experiment}


def _digest(row: dict) -> str:
    """Return a digest of what a row requires and states, without its words."""
    ruled = [row.get("requires", []), row.get("statements", [])]
    ruled = [[{k: v for k, v in s.items() if k != "says"} for s in part] for part in ruled]
    return hashlib.sha256(json.dumps(ruled, sort_keys=True).encode()).hexdigest()[:16]


def _ledger() -> Path:
    return provenance.project_root() / "book" / "claims.yml"


def judge(row: dict, record=None) -> Verdict:
    """Return the verdict on one row, from the given record or the highest recorded tier.

    Raises ValueError for a statistic that is not a number in a whole record, and for a finding with
    a slot that names no statistic.
    """
    experiment = row.get("experiment")
    if record is None and experiment:
        record = records.best(experiment)
    if record is None or not row.get("statements"):
        return Verdict(row, NOT_RUN, (), "")
    tier = record.attrs["tier"]
    try:
        statements = tuple(_examine(statement, record) for statement in row["statements"])
        required = tuple(_examine(statement, record) for statement in row.get("requires", []))
    except (KeyError, AttributeError):  # the record has no such statistic
        return Verdict({"why": OLDER} | row, NOT_RUN, (), tier)
    verdict = _verdict(row, statements, required)
    partial = records.partial_note(record)
    told = verdict == row["expected"] and not partial
    try:
        finding = filled(row.get("finding", ""), record) if told else ""
    except (LookupError, AttributeError, ValueError) as error:
        raise ValueError(f"claim {row['id']}: its finding has a wrong slot: {error}") from None
    return Verdict(
        row,
        verdict,
        statements,
        tier,
        partial,
        required,
        records.parts(record.attrs)[0].get("commit", ""),
        json.loads(record.attrs["rules"]) if "rules" in record.attrs else None,
        finding,
    )


def _verdict(row: dict, statements, required) -> str:
    outcomes = [statement.outcome for statement in statements]
    if any(statement.outcome != "holds" for statement in required):
        return NOT_TESTED
    holds, fails = all(outcome == "holds" for outcome in outcomes), "fails" in outcomes
    if row["version"] == OURS:
        return HELD if holds else REFUTED if fails else OPEN
    if holds or "holds" in outcomes:
        return REPRODUCED if holds else PARTLY
    return NOT if fails else UNDECIDED


class _Number(tuple):
    """An interval in a sentence: "{gap}" with its limits; "{gap:.0f}", "{gap:.0%}" without."""

    def __format__(self, spec: str) -> str:
        if not spec:
            return intervals.text(self)
        return format(float(self[0]), spec).replace("%", " %")


def filled(sentence: str, record) -> str:
    """Return a sentence with a record's statistics in its slots.

    "{gap_end}" becomes '0.1 [-1.7, 1.9]' and "{gap_end:.0f}" '0'. Raises KeyError for a slot that
    names no statistic of the record.
    """
    slots = {name for _, name, _, _ in Formatter().parse(sentence) if name}
    return sentence.format(**{name: _Number(derived.statistic(record, name)) for name in slots})


def _examine(statement: dict, record) -> Statement:
    name = statement.get("condition") or statement["statistic"]
    bounds = tuple(float(value) for value in derived.statistic(record, name))
    rule = next(iter(statement.keys() & RULES.keys()))
    value = float(statement[rule])
    low, high = RULES[rule](value)
    _, lower, upper = bounds
    if any(map(math.isnan, bounds)):
        if not records.missing_runs(record):
            which = f"record {record.attrs['experiment']}: statistic {name!r}"
            raise ValueError(f"{which} is not a number")
        outcome = "unclear"  # until the runs that are missing have been made
    elif (lower > low or low == -math.inf) and (upper < high or high == math.inf):
        outcome = "holds"
    else:
        outcome = "fails" if upper <= low or lower >= high else "unclear"
    return Statement(statement["says"], name, rule, value, bounds, outcome)


def verdicts(page: str | None = None) -> list[Verdict]:
    """Return the verdicts on all claims, or on those of one page (its path without extension)."""
    return [judge(row) for row in load_claims() if page is None or row["page"] == page]


def summary() -> str:
    """Return how many claims of the paper are tested, with how many of each verdict, and ours."""
    paper, ours = [], []
    for verdict in verdicts():
        (ours if verdict.row["version"] == OURS else paper).append(verdict.verdict)
    of_paper = f"{len(paper)} claims of the paper, {_counted(paper, OF_PAPER)}"
    return f"{of_paper}. {len(ours)} hypotheses of ours, {_counted(ours, OF_OURS)}"


def _counted(found: list[str], kinds: tuple[str, ...]) -> str:
    tested, others = kinds[:-2], kinds[-2:]
    counts = [
        ", ".join(f"{found.count(kind)} {kind}" for kind in part if kind in found)
        for part in (tested, others)
    ]
    number = sum(kind in tested for kind in found)
    first = f"{number} tested: {counts[0]}" if number else "none tested"
    return "; ".join(filter(None, [first, counts[1]]))


if __name__ == "__main__":
    print(summary())
