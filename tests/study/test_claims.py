"""Verdicts follow from intervals and rules; the ledger and the committed records agree."""

import functools
import json
import warnings

import numpy as np
import pytest
import xarray as xr
from iterlin_study.records import records
from iterlin_study.report import claims, claims_table, conditions
from refusals import fails
from toy_pages import CLAIM as ROW

from book.beyond.when_to_relinearise_helpers import fewest_updates

ABOVE, BELOW = (1.0, 0.7, 1.3), (0.1, -0.2, 0.4)
HIGH, LOW = (0.6, 0.4, 0.8), (0.4, 0.2, 0.6)  # both across 0.5
UNKNOWN = (np.nan, np.nan, np.nan)


def record(**statistics):
    variables = {name: ("bound", np.asarray(bounds)) for name, bounds in statistics.items()}
    return xr.Dataset(variables, attrs={"experiment": "trial", "tier": "gpu", "parameters": "{}"})


def with_statements(*rules):
    """ROW with statements on statistics "a" and "b" by the rules (name, value)."""
    statements = [{"says": n, "statistic": n, r: v} for n, (r, v) in zip("ab", rules)]  # noqa: B905
    return ROW | {"statements": statements}


@pytest.fixture
def shown(monkeypatch):
    """verdict -> the table of a ledger of this one claim."""

    def table(verdict):
        monkeypatch.setattr(claims_table, "verdicts", lambda page=None: [verdict])
        return claims_table.table("experiments/trial")

    return table


OUTCOMES = {
    ("above", "holds"): [ABOVE, (1.0, 0.6, np.inf)],
    ("above", "unclear"): [HIGH, (1.0, 0.5, 1.5), (1.0, -np.inf, np.inf)],
    ("above", "fails"): [BELOW, (0.4, 0.3, 0.5)],
    ("below", "holds"): [BELOW, (0.4, -np.inf, 0.4)],
    ("below", "unclear"): [LOW, (0.4, 0.3, 0.5)],
    ("below", "fails"): [ABOVE, (0.6, 0.5, 0.7)],
    ("within", "holds"): [(0.0, -0.4, 0.4)],
    ("within", "unclear"): [(0.0, -0.5, 0.4), (-0.6, -0.9, -0.1)],
    ("within", "fails"): [(-0.7, -0.9, -0.5), (0.6, 0.5, 0.7)],
}


@pytest.mark.parametrize(("rule", "outcome"), OUTCOMES)
def test_one_statement(rule, outcome):
    for bounds in OUTCOMES[rule, outcome]:
        found = claims.judge(with_statements((rule, 0.5)), record(a=bounds))
        assert found.statements[0].outcome == outcome
        assert found.statements[0].found == pytest.approx(bounds)
        verdicts = {"holds": claims.REPRODUCED, "unclear": claims.UNDECIDED, "fails": claims.NOT}
        assert found.verdict == verdicts[outcome]


@pytest.mark.parametrize(
    ("version", "first", "second", "verdict"),
    [
        ("v3", ABOVE, ABOVE, claims.REPRODUCED),
        ("v3", ABOVE, BELOW, claims.PARTLY),
        ("v3", HIGH, BELOW, claims.NOT),
        ("v3", HIGH, LOW, claims.UNDECIDED),
        ("ours", ABOVE, ABOVE, claims.HELD),
        ("ours", ABOVE, HIGH, claims.OPEN),
        ("ours", ABOVE, BELOW, claims.REFUTED),
    ],
)
def test_two_statements_of_the_paper_and_of_ours(version, first, second, verdict, shown):
    rules = with_statements(("above", 0.5), ("above", 0.5))
    row = rules | {"version": version, "expected": verdict}
    found = claims.judge(row, record(a=first, b=second))
    assert found.verdict == verdict
    assert f"{verdict}</span>" in shown(found)
    ours = "A hypothesis of this book. The paper (section 0)" in shown(found)
    assert ours == (version == "ours")


@pytest.mark.parametrize(("condition", "tested"), [(ABOVE, True), (HIGH, False), (BELOW, False)])
def test_what_a_row_requires_comes_before_what_it_states(condition, tested):
    requires = [{"says": "enough", "statistic": "enough", "above": 0.5}]
    found = claims.judge(ROW | {"requires": requires}, record(drop=ABOVE, enough=condition))
    assert found.verdict == (claims.REPRODUCED if tested else claims.NOT_TESTED)
    assert [s.statistic for s in found.unmet] == ([] if tested else ["enough"])


@pytest.mark.parametrize(
    ("change", "unchanged"),
    [
        ({}, True),
        ({"claim": "It falls, in other words.", "expected": claims.NOT}, True),
        ({"statements": [ROW["statements"][0] | {"above": 0.6}]}, False),
        ({"requires": [{"says": "enough", "statistic": "drop", "above": 0.1}]}, False),
    ],
)
def test_a_record_keeps_the_rules_that_it_was_made_under(change, unchanged, monkeypatch, shown):
    other = ROW | {"id": "C1", "experiment": "other"}
    monkeypatch.setattr(claims, "load_claims", lambda: [ROW, other])
    assert claims.rules("trial") == {"C0": "cad95cc9c24802b2"}  # as records hold it
    kept = record(drop=ABOVE)
    assert claims.judge(ROW, kept).rule_since == ""
    kept.attrs |= {"rules": json.dumps(claims.rules("trial")), "commit": "0123456789abcdef+changes"}
    verdict = claims.judge(ROW | change, kept)
    word = "unchanged" if unchanged else "changed"
    assert verdict.rule_since == word
    assert f"rule {word} since it was recorded at 0123456+changes." in shown(verdict)
    assert claims.judge(ROW | {"id": "C2"}, kept).rule_since == "added"


# Of two seeds at three periods, the last infinite; one run of the second diverged.
ACCURACY = np.zeros((3, 2, 4))
ACCURACY[..., -1] = [[0.9, 0.7], [0.8, np.nan], [0.1, 0.1]]
WHOLE = xr.Dataset(
    {
        "train_accuracy": (("period", "seed", "evaluation"), ACCURACY),
        "train_accuracy_proxy": (("period", "seed", "evaluation"), 0 * ACCURACY),
        "other_train_accuracy": (("seed", "other_look"), [[0.0, 0.99], [0.0, 0.99]]),
        "updates": (("period", "seed", "evaluation"), np.arange(24.0).reshape(3, 2, 4)),
        "diverged_at": (("period", "seed"), [[-1, -1], [-1, 7], [-1, -1]]),
        "other_diverged_at": ("seed", [3, -1]),
    },
    {"period": [1.0, 8.0, np.inf]},
    {"step_size": 0.5},
)
# The second seed's runs are missing: neither dead nor diverged nor unfitted.
PARTIAL = WHOLE.where(xr.DataArray([True, False], dims="seed")).assign_attrs(missing=4)
# The other grid has the first seed alone.
ALONE = ("other_seed", "other_look"), [[0.0, 0.6]]
FEWER = WHOLE.assign(other_train_accuracy=ALONE).assign_coords(seed=[0, 1], other_seed=[0])


@pytest.mark.parametrize(
    ("record", "name", "expected"),
    [
        (WHOLE, "fit", 40.0),
        (PARTIAL, "fit", 80.0),
        (FEWER, "fit", 60.0),
        (WHOLE, "updates", 5.0),
        (PARTIAL, "updates", 3.0),
        (WHOLE, "diverged", 2.0),
        (PARTIAL, "diverged", np.nan),
        (WHOLE, "dead", 1.0),
        (PARTIAL, "dead", np.nan),
        (WHOLE, "longest_period", 4.0),
        (WHOLE.assign_attrs(momentum=0.9), "longest_period", 40.0),
        (WHOLE.assign(time=("evaluation", [0.0, 5.0, 10.0, 15.0])), "time", 15.0),
    ],
)
def test_conditions_of_a_record(record, name, expected):
    found = conditions.CONDITIONS[name](record)
    assert found.estimate == pytest.approx(expected, nan_ok=True)
    assert np.isnan(expected) or found.lower <= found.estimate <= found.upper


@pytest.mark.parametrize(("second", "verdict"), [(ABOVE, claims.PARTLY), (BELOW, claims.NOT)])
def test_in_a_partial_record_nothing_is_decided_by_what_is_not_a_number(second, verdict, shown):
    part = record(a=UNKNOWN, b=second).assign_attrs(missing=2)
    found = claims.judge(with_statements(("below", 0.5), ("above", 0.5)), part)
    assert found.statements[0].outcome == "unclear"
    assert (found.verdict, found.partial) == (verdict, "partial: 2 runs missing")
    assert "partial: 2 runs missing." in shown(found)
    fails("'a' is not a number", claims.judge, found.row, part.assign_attrs(missing=0))


def test_a_claim_is_judged_by_the_best_record_if_there_is_one(monkeypatch):
    monkeypatch.setattr(records, "best", lambda experiment: None)
    assert claims.judge(ROW).verdict == claims.NOT_RUN
    monkeypatch.setattr(records, "best", {"trial": record(drop=ABOVE)}.__getitem__)
    assert claims.judge(ROW).verdict == claims.REPRODUCED
    assert claims.judge(ROW | {"statements": []}).verdict == claims.NOT_RUN


@pytest.mark.parametrize("place", ["statements", "requires"])
def test_a_record_older_than_the_rule_has_not_run_it(place):
    later = {"says": "new", "statistic": "later", "above": 0.0}
    verdict = claims.judge(ROW | {place: [later]}, record(drop=ABOVE))
    assert verdict.verdict == claims.NOT_RUN
    assert verdict.row["why"] == claims.OLDER


def statement(**changes):
    return ROW | {"statements": [{"says": "drop", "statistic": "drop"} | changes]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{n: v for n, v in ROW.items() if n not in ("claim", "page")}], "C0 lacks claim, page"),
        ([ROW | {"expected": "proved"}], "claim C0 .* 'proved'"),
        ([ROW | {"expected": "held"}], "claim C0 .* 'held', no verdict on a row of version v3"),
        ([ROW | {"experiment": "tril"}], "claim C0 is of .* 'tril', which has no page"),
        ([statement()], "claim C0 has 0 rules"),
        ([statement(above="much")], "claim C0 .* 'much', which is not a number"),
        ([statement(within=0)], "claim C0 allows nothing: within 0"),
        ([statement(above=1.0, bellow=2)], "claim C0 .* unknown field 'bellow'"),
        (
            [ROW | {"requires": [{"says": "it fits", "condition": "fitt", "above": 1.0}]}],
            "claim C0 names no condition: 'fitt'",
        ),
        ([statement(statistic=["drop"], above=1.0)], "claim C0 names no statistic"),
        ([ROW, ROW | {"id": "C1"}, ROW], "repeated claim ids C0"),
        ({"C0": ROW}, "must be a list of claims"),
        ("- id: C0\n  id: C1", "cannot be read as YAML: 'id' is given twice, in line 2"),
    ],
)
def test_a_wrong_ledger_is_refused_in_one_line_with_the_row_that_is_wrong(tmp_path, rows, message):
    path = tmp_path / "claims.yml"
    (tmp_path / "trial.md").touch()
    # JSON writes a value that occurs twice in full, and is YAML.
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    fails(rf"{path}.*{message}", claims.load_claims, path)


def test_summary_counts_the_papers_claims_and_ours_apart(monkeypatch):
    found = [("v3", kind) for kind in (claims.PARTLY, claims.REPRODUCED, claims.NOT_TESTED)]
    found += [("ours", claims.HELD), ("ours", claims.REFUTED)]
    verdicts = [claims.Verdict(ROW | {"version": of}, kind, (), "") for of, kind in found]
    monkeypatch.setattr(claims, "verdicts", lambda: verdicts)
    paper, ours = claims.summary().split(". ")
    assert paper.startswith("3 claims of the paper, 2 tested: ")
    assert ours == "2 hypotheses of ours, 2 tested: 1 held, 1 refuted"


FINDING = "It falls by {drop}, that is {drop:.1f} or {drop:.0%} < 200 %."


def test_a_finding_has_the_records_numbers_and_is_told_of_the_expected_verdict_alone(shown):
    row = ROW | {"finding": FINDING}
    found = claims.judge(row, record(drop=ABOVE))
    assert found.finding == "It falls by 1.00 [0.70, 1.30], that is 1.0 or 100 % < 200 %."
    line = shown(found).split("</summary>")[0]
    assert "that is 1.0 or 100 % &lt; 200 %." in line
    assert "holds" not in line  # in the place of statements
    assert claims.judge(row, record(drop=BELOW)).finding == ""
    assert claims.judge(row, record(drop=ABOVE).assign_attrs(missing=2)).finding == ""
    for slot in ("fall", "time", "drop.upper", "drop:words", ""):
        row["finding"] = f"It falls by {{{slot}}}."
        fails("claim C0: .*slot", claims.judge, row, record(drop=ABOVE))


# The project's own ledger and records.

LEDGER = claims.load_claims()
# What a statistic can be, by the unit that its words name.
UNITS = {"(%)": (0.0, 100.0), "points)": (-100.0, 100.0), "runs that": (0.0, np.inf)}


def test_no_rule_allows_nothing_or_everything():
    for row in LEDGER:
        for given in (*row.get("requires", []), *row.get("statements", [])):
            (rule,) = given.keys() & claims.RULES.keys()
            low, high = claims.RULES[rule](given[rule])
            for unit, (least, most) in UNITS.items():
                if unit in given["says"]:
                    assert high > least, (row["id"], given)
                    assert low < most, (row["id"], given)
                    assert low >= least or high <= most, (row["id"], given)


@pytest.mark.parametrize("row", LEDGER, ids=lambda row: row["id"])
def test_every_row_has_the_expected_verdict_and_a_finding_of_statistics_or_a_reason(row):
    verdict = claims.judge(row)
    assert verdict.verdict == row["expected"], verdict.statements
    if row["expected"] == claims.NOT_RUN:
        assert verdict.row["why"]
        return
    assert verdict.finding == claims.filled(row["finding"], records.best(row["experiment"]))
    assert "nan" not in verdict.finding
    assert "inf]" not in verdict.finding


# Zero is what a perfect run gives, and a dead one gives none: distances and errors in double
# precision, and shares of runs that fail, which dead runs are among.
NO_DEAD_RUNS = {"C12", "rescaling"}
DEAD = {"accuracy": 0.1, "loss": np.log(10), "moved": 0.0}


@functools.cache
def dead(load, *given):
    """A record, had all its networks stayed at guessing: no two of them differ."""
    record = load(*given)
    for name, variable in list(record.data_vars.items()):
        if variable.dims == ("bound",):
            record[name] = xr.zeros_like(variable)
        elif "diverged_at" in name:  # dead runs are finite
            record[name] = xr.full_like(variable, -1)
        for part, value in DEAD.items():
            if part in name and variable.dims != ("bound",):
                of_percent = float(variable.max()) > 1 and part == "accuracy"
                record[name] = xr.full_like(variable, 100 * value if of_percent else value)
    return record


JUDGED = [r for r in LEDGER if r["expected"] != claims.NOT_RUN and r["id"] not in NO_DEAD_RUNS]


@pytest.mark.parametrize("row", JUDGED, ids=lambda row: row["id"])
def test_no_rule_is_satisfied_by_dead_runs(row, monkeypatch):
    load = records.load
    monkeypatch.setattr(records, "load", lambda *given: dead(load, *given).copy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            verdict = claims.judge(row).verdict
        except ValueError:  # a share of nothing is refused
            verdict = claims.NOT_TESTED
    assert verdict not in (claims.REPRODUCED, claims.HELD)


def test_the_fewest_updates_of_a_rule_can_be_reached_and_missed():
    """No setting takes fewer updates than the rule asks for: then nothing could satisfy it."""
    ds = records.best("when_to_relinearise")
    events = ds.isel(schedule=ds.family.values == "event")
    taken = events.taken.mean("seed").values
    rule = next(row for row in LEDGER if row["id"] == "events-few")["statements"][0]["below"]
    assert fewest_updates(taken, np.full(taken.shape, 1.0), 0.99) < rule
    assert fewest_updates(taken, np.full(taken.shape, 0.9), 0.99) > rule
