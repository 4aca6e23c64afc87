"""Verdicts on the paper's claims, computed from records by the rules of book/claims.yml.

A row names an experiment and statements about it. A statement compares one statistic of the
record (a variable over ("bound",): estimate, lower, upper) with a value. It `holds` if the whole
95 % interval satisfies the rule, `fails` if no part of it does, and is otherwise `unclear`. A row
may also have `requires`: statements about statistics or `conditions` of the runs. Unless all of
them hold, the record does not test the claim. In a partial record a statistic may be NaN, which is
`unclear`; in a whole one that is an error. A record that lacks the statistic is older than the
rule, and the claim is not yet run.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iterlin_study.records import provenance, records, strict_yaml
from iterlin_study.report import conditions

REPRODUCED, PARTLY, UNDECIDED = "reproduced", "partly", "undecided"
NOT, NOT_TESTED, NOT_RUN = "not reproduced", "not tested here", "not yet run"
KINDS = (REPRODUCED, PARTLY, UNDECIDED, NOT, NOT_TESTED, NOT_RUN)
# The open interval that each rule allows.
RULES = {
    "above": lambda value: (value, math.inf),
    "below": lambda value: (-math.inf, value),
    "within": lambda value: (-value, value),
}
OLDER = "the record is older than the rule"
REQUIRED = {"id", "version", "claim", "place", "paper", "page", "expected"}
ALLOWED = REQUIRED | {"experiment", "why", "requires", "statements"}


class Lacks(ValueError):
    """A record has no such statistic."""


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
    (`rules`).
    """

    row: dict
    verdict: str
    statements: tuple[Statement, ...]
    tier: str
    partial: str = ""  # as 'partial: 7 runs missing', of a record that lacks runs
    required: tuple[Statement, ...] = ()
    commit: str = ""
    record_rules: dict | None = None

    @property
    def unmet(self) -> tuple[Statement, ...]:
        """The required statements that do not hold."""
        return tuple(statement for statement in self.required if statement.outcome != "holds")

    @property
    def held(self) -> tuple[Statement, ...]:
        """The statements that hold."""
        return tuple(statement for statement in self.statements if statement.outcome == "holds")

    @property
    def unchanged(self) -> bool | None:
        """Whether the row's rules are still those when the record was made; None if unknown."""
        if self.record_rules is None:
            return None
        return self.record_rules.get(self.row["id"]) == _digest(self.row)

    @property
    def changed(self) -> bool:
        """Whether the verdict differs from the one the ledger expects."""
        return self.verdict != self.row["expected"]


def load_claims(path: Path | None = None) -> list[dict]:
    """Return the rows of the ledger. Raises ValueError naming the row and the wrong field."""
    path = _ledger() if path is None else path
    try:
        rows = strict_yaml.load(Path(path).read_text("utf8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} must be a list of claims")
    for row in rows:
        if problem := _problem(row):
            raise ValueError(f"{path}: claim {row.get('id', 'without id')} {problem}")
    names = [row["id"] for row in rows]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: repeated claim ids {', '.join(sorted(repeated))}")
    return rows


def _problem(row: dict) -> str:
    """What is wrong with a row of the ledger, in words; nothing if nothing is."""
    if missing := REQUIRED - row.keys():
        return f"lacks {', '.join(sorted(missing))}"
    if unknown := row.keys() - ALLOWED:
        return f"has the unknown field {min(map(str, unknown))!r}"
    if row["expected"] not in KINDS:
        return f"expects unknown verdict {row['expected']!r}"
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
    if subject == "condition" and statement[subject] not in conditions.CONDITIONS:
        return f"names no condition: {statement[subject]!r}"
    (rule,) = rules
    value = statement[rule]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"compares with {value!r}, which is not a number"
    return f"allows nothing: within {value:g}" if rule == "within" and value <= 0 else ""


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

    Raises ValueError for a statistic that is not a number in a whole record.
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
    except Lacks:
        return Verdict({"why": OLDER} | row, NOT_RUN, (), tier)
    outcomes = [statement.outcome for statement in statements]
    if any(statement.outcome != "holds" for statement in required):
        verdict = NOT_TESTED
    elif all(outcome == "holds" for outcome in outcomes):
        verdict = REPRODUCED
    elif "holds" in outcomes:
        verdict = PARTLY
    else:
        verdict = NOT if "fails" in outcomes else UNDECIDED
    return Verdict(
        row,
        verdict,
        statements,
        tier,
        records.partial_note(record),
        required,
        records.parts(record.attrs)[0].get("commit", ""),
        json.loads(record.attrs["rules"]) if "rules" in record.attrs else None,
    )


def _examine(statement: dict, record) -> Statement:
    name = statement.get("condition") or statement["statistic"]
    if "condition" in statement:
        bounds = conditions.of(record, name)
    elif name in record:
        bounds = np.asarray(record[name])
    else:
        raise Lacks(f"record {record.attrs['experiment']} has no statistic {name!r}")
    rule = next(iter(statement.keys() & RULES.keys()))
    value = float(statement[rule])
    low, high = RULES[rule](value)
    estimate, lower, upper = (float(v) for v in bounds)
    unknown = any(map(math.isnan, (estimate, lower, upper)))
    if unknown and not records.missing_runs(record):
        raise ValueError(f"record {record.attrs['experiment']}: statistic {name!r} is not a number")
    if unknown:  # until the runs that are missing have been made
        outcome = "unclear"
    elif (lower > low or low == -math.inf) and (upper < high or high == math.inf):
        outcome = "holds"
    else:
        outcome = "fails" if upper <= low or lower >= high else "unclear"
    return Statement(statement["says"], name, rule, value, (estimate, lower, upper), outcome)


def verdicts(page: str | None = None) -> list[Verdict]:
    """Return the verdicts on all claims, or on those of one page (its path without extension)."""
    return [judge(row) for row in load_claims() if page is None or row["page"] == page]


def telling(verdict: Verdict) -> list[Statement]:
    """Return the statements that explain a verdict best.

    The first statement; if the claim is not reproduced the first that fails; if partly the first
    that holds and the first that does not. A statement that begins 'the same' refers to the one
    before, which is then shown, too.
    """
    statements = verdict.statements
    if verdict.verdict == NOT:
        chosen = [next(s for s in statements if s.outcome == "fails")]
    elif verdict.verdict == PARTLY:
        chosen = [verdict.held[0], next(s for s in statements if s.outcome != "holds")]
    else:
        chosen = [statements[0]]
    places = set()
    for place in map(statements.index, chosen):
        places.add(place)
        while place and statements[place].says.startswith("the same"):
            place -= 1
        places.add(place)
    return [statements[place] for place in sorted(places)]


def summary() -> str:
    """Return one line: how many claims are tested, and how many there are of each verdict."""
    found = [verdict.verdict for verdict in verdicts()]
    tested, others = KINDS[:-2], KINDS[-2:]
    counts = [
        ", ".join(f"{found.count(kind)} {kind}" for kind in kinds if kind in found)
        for kinds in (tested, others)
    ]
    number = sum(kind in tested for kind in found)
    parts = [f"{number} tested: {counts[0]}" if number else "none tested", counts[1]]
    return f"{len(found)} claims, {'; '.join(filter(None, parts))}"


if __name__ == "__main__":
    print(summary())
