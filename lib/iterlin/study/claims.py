"""Verdicts on the paper's claims, computed from records by the rules of book/claims.yml.

A row names an experiment and statements about it. A statement compares one statistic of the
record (a variable over ("bound",): estimate, lower, upper) with a value. It `holds` if the whole
95 % interval satisfies the rule, `fails` if no part of it does, and else is `unclear`. What a row
`requires` is such statements, too, of statistics or of `conditions` of the runs: unless all hold,
the record does not test the claim, whatever its statistics are. In a partial record a statistic may
be NaN, which is `unclear`; in a whole one that is an error. Where a record lacks the statistic that
a rule asks for, it is older than the rule, and the claim is not yet run.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iterlin.study import conditions, provenance, records, strict_yaml

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
    """A claim's ledger row, its statements and what follows from them; required: what the row asks
    of the record before it counts; commit and record_rules: those of the record (`rules`)."""

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
        """What the row requires and the record does not meet."""
        return tuple(statement for statement in self.required if statement.outcome != "holds")

    @property
    def held(self) -> tuple[Statement, ...]:
        """The statements that hold."""
        return tuple(statement for statement in self.statements if statement.outcome == "holds")

    @property
    def unchanged(self) -> bool | None:
        """Whether statistics, rules and values are still those of the ledger that the record was
        made under; None if it does not tell."""
        if self.record_rules is None:
            return None
        return self.record_rules.get(self.row["id"]) == _digest(self.row)

    @property
    def changed(self) -> bool:
        """Whether the verdict differs from the one the ledger expects."""
        return self.verdict != self.row["expected"]


def load_claims(path: Path | None = None) -> list[dict]:
    """The rows of the ledger. Raises ValueError naming the row and the field that is wrong."""
    path = _ledger() if path is None else path
    try:
        rows = strict_yaml.load(Path(path).read_text("utf8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} must be a list of claims")
    for row in rows:
        name = row.get("id", "a row without id")
        if missing := REQUIRED - row.keys():
            raise ValueError(f"{path}: claim {name} lacks {', '.join(sorted(missing))}")
        if unknown := row.keys() - ALLOWED:
            raise ValueError(
                f"{path}: claim {name} has the unknown field {min(map(str, unknown))!r}"
            )
        if other := [field for field in sorted(REQUIRED) if not isinstance(row[field], str)]:
            raise ValueError(f"{path}: claim {name}: {other[0]} must be text")
        if row["expected"] not in KINDS:
            raise ValueError(f"{path}: claim {name} expects unknown verdict {row['expected']!r}")
        for part in ("requires", "statements"):
            if not isinstance(row.get(part, []), list):
                raise ValueError(f"{path}: claim {name}: {part} must be a list")
        for statement in [*row.get("requires", []), *row.get("statements", [])]:
            if problem := _problem(statement):
                raise ValueError(f"{path}: a statement of claim {name} {problem}")
    names = [row["id"] for row in rows]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{path}: repeated claim ids {', '.join(sorted(repeated))}")
    return rows


def rules(experiment: str) -> dict[str, str]:
    """Digests of the rules that judge an experiment, by claim, for its record to keep, so that a
    rule that is changed once the record is known shows. None of a book without a ledger."""
    if not _ledger().is_file():
        return {}
    return {row["id"]: _digest(row) for row in load_claims() if row.get("experiment") == experiment}


def _digest(row: dict) -> str:
    """Of what a row requires and states, but for its words."""
    ruled = [row.get("requires", []), row.get("statements", [])]
    ruled = [[{k: v for k, v in s.items() if k != "says"} for s in part] for part in ruled]
    return hashlib.sha256(json.dumps(ruled, sort_keys=True).encode()).hexdigest()[:16]


def _ledger() -> Path:
    return provenance.project_root() / "book" / "claims.yml"


def _problem(statement: object) -> str:
    """What is wrong with a statement of the ledger, in words; nothing if nothing is."""
    if not isinstance(statement, dict):
        return f"is {statement!r:.60}, no mapping with a statistic and a rule"
    for name in ("says", "statistic", "condition"):
        if not isinstance(statement.get(name, ""), str):
            return f"has {name} {statement[name]!r:.60}, which is no text"
    if "condition" in statement:
        if statement["condition"] not in conditions.CONDITIONS:
            return f"names no condition: {statement['condition']!r}"
        statement = {"statistic": "", **statement}
    if missing := {"says", "statistic"} - statement.keys():
        return f"lacks {', '.join(sorted(missing))}"
    rules = statement.keys() & RULES.keys()
    if len(rules) != 1:
        return f"has {len(rules)} rules, not one of {', '.join(RULES)}"
    if unknown := statement.keys() - RULES.keys() - {"says", "statistic", "condition"}:
        return f"has the unknown field {min(map(str, unknown))!r}"
    rule = rules.pop()
    value = statement[rule]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return f"compares with {value!r:.60}, which is not a number"
    if rule == "within" and value <= 0:
        return f"allows nothing: within {value:g}"
    return ""


def judge(row: dict, record=None) -> Verdict:
    """The verdict on one row, from the given record or the highest recorded tier.

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
    """Verdicts on all claims, or on those of one page (its path without extension)."""
    return [judge(row) for row in load_claims() if page is None or row["page"] == page]


def telling(verdict: Verdict) -> list[Statement]:
    """The statements that tell a verdict: the first, but if it is not reproduced the first that
    fails, and if partly the first that holds and the first that does not.

    One that refers to another ('the same, ...') comes after that one.
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
    """One line: how many claims are tested, and how many there are of each verdict."""
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
