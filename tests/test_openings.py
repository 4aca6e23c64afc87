"""A page's opening says what the ledger and the record say, in a few lines, and no more."""

import re

import numpy as np
import pytest
import xarray as xr
from iterlin.study import claims, openings, provenance, records
from iterlin.study.origins import Origin

ROW = {
    "id": "C0",
    "version": "v3",
    "place": "section 0",
    "page": "experiments/trial",
    "experiment": "trial",
    "claim": "It falls_fast.",
    "paper": "from 3 to 1",
    "expected": "reproduced",
}
HOLDS, FAILS, UNCLEAR = (1.0, 0.7, 1.3), (0.1, -0.2, 0.4), (0.6, 0.4, 0.8)
OF = {"h": HOLDS, "f": FAILS, "u": UNCLEAR}


def record(**statistics):
    """Two seeds at three periods, of which a run diverged, with the statistics given."""
    accuracy = np.full((3, 2, 2), 0.9)
    accuracy[1, 1, 1] = np.nan
    return xr.Dataset(
        {name: ("bound", np.asarray(bounds)) for name, bounds in statistics.items()}
        | {
            "train_accuracy": (("period", "seed", "evaluation"), accuracy),
            "updates": (("period", "seed", "evaluation"), np.full((3, 2, 2), 7)),
            "step": (("period", "seed", "evaluation"), np.tile([0, 4000], (3, 2, 1))),
            "diverged_at": (("period", "seed"), [[-1, -1], [-1, 9], [-1, -1]]),
        },
        {"period": [1.0, 50.0, np.inf], "seed": [0, 1]},
        {
            "experiment": "trial",
            "tier": "gpu",
            "parameters": "{}",
            "step_size": 0.5,
            "wall_time": 600.0,
            "device": "one GPU",
            "date": "2031-05-06",
            **Origin([], []).attributes(),
        },
    )


def row(outcomes, says=None, requires="", name="C0"):
    """A claim of statements that come out as told: h(olds), f(ails) or u(nclear)."""

    def stated(letters, prefix):
        found = [f"{prefix}{n}" for n in range(len(letters))]
        words = says if says and prefix == "s" else found
        return [
            {"says": word, "statistic": f"{statistic}_{letter}", "above": 0.5}
            for word, statistic, letter in zip(words, found, letters, strict=True)
        ]

    asked = {"requires": stated(requires, "r")} if requires else {}
    return ROW | {"id": name, "statements": stated(outcomes, "s")} | asked


def lines(*rows, kept=None):
    statements = [s for r in rows for s in (*r["statements"], *r.get("requires", []))]
    if kept is None:
        kept = record(**{s["statistic"]: OF[s["statistic"][-1]] for s in statements})
    text = openings.opening([claims.judge(r, kept) for r in rows], kept)
    found = text.splitlines()
    assert all(line.startswith("- ") for line in found)
    return [line.removeprefix("- ") for line in found]


def test_one_claim_that_holds_and_counts():
    says, finds, counts, about = lines(row("h", requires="h"))
    assert says == r"**The paper says:** It falls\_fast (C0: from 3 to 1)."
    assert finds == "**We find** s0: 1 [0.7, 1.3] (above 0.5: holds). Verdict: **reproduced**."
    assert counts == "**It counts because** r0: 1 [0.7, 1.3] (required above 0.5)."
    assert about.startswith("**Record:** gpu tier: 2 seeds, 10 min on one GPU, 2031-05-06.")
    told = "6 runs, $\\eta K$ up to 25, $\\eta T$ at least 2,000, "
    assert about.endswith(f" {told}7 feature updates where they are fewest, 1 diverged.")


def test_a_hypothesis_of_this_book_is_not_put_into_the_papers_mouth():
    ours = [row("h", name=name) | {"version": "ours"} for name in ("C0", "C1")]
    for rows in (ours[:1], ours):
        first = lines(*rows)[0]
        assert first.startswith(r"**Our hypothesis:** It falls\_fast (C0: ")


def test_a_claim_that_is_not_tested_says_what_is_not_met_before_what_is():
    _, finds, counts, _ = lines(row("f", requires="huf"))
    assert finds.endswith("s0: 0.1 [-0.2, 0.4] (above 0.5: fails). Verdict: **not tested here**.")
    unmet = "r1: 0.6 [0.4, 0.8] (required above 0.5); r2: 0.1 [-0.2, 0.4] (required above 0.5)"
    met = "r0: 1 [0.7, 1.3] (required above 0.5)"
    assert counts == f"**It does not count because** {unmet}. Met: {met}."


def test_a_claim_that_requires_nothing_says_what_its_runs_were():
    _, _, counts, about = lines(row("h"))
    assert counts == (
        "**It counts**; the rule asks nothing further of the runs: 2 seeds, 6 runs, $\\eta K$ up "
        "to 25, $\\eta T$ at least 2,000, 7 feature updates where they are fewest, 1 diverged, "
        "training accuracy 45 % where it is lowest, diverged runs as 0."
    )
    assert about.endswith("2031-05-06.")


def test_what_a_record_does_not_keep_is_left_out():
    kept = record(s0_h=HOLDS).drop_vars(["step", "updates", "train_accuracy", "diverged_at"])
    assert "of the runs: 2 seeds, $\\eta K$ up to 25." in lines(row("h"), kept=kept)[2]
    kept = kept.drop_vars(["seed", "period"])
    assert lines(row("h"), kept=kept)[2] == (
        "**It counts**; the rule asks nothing further of the runs."
    )


@pytest.mark.parametrize(
    ("outcomes", "told", "verdict"),
    [
        ("hhh", ["s0"], "reproduced"),
        ("hhf", ["s0", "s2"], "partly** (2 of 3 statements hold)"),
        ("uhf", ["s0", "s1"], "partly** (1 of 3 statements hold)"),
        ("uuf", ["s2"], "not reproduced"),
        ("uu", ["s0"], "undecided"),
    ],
)
def test_the_statements_that_are_told_are_those_that_decide(outcomes, told, verdict):
    finds = lines(row(outcomes))[1]
    assert [name for name in ("s0", "s1", "s2") if f"{name}: " in finds] == told
    assert f"Verdict: **{verdict}" in finds


def test_what_a_statement_refers_to_is_told_before_it():
    words = ["gap", "slope", "the same, later", "the same, last"]
    found = claims.judge(
        row("uuhf", words), record(s0_u=UNCLEAR, s1_u=UNCLEAR, s2_h=HOLDS, s3_f=FAILS)
    )
    assert [s.says for s in claims.telling(found)] == ["gap", "slope", "the same, later"]
    found = claims.judge(row("uf", ["gap", "the same, later"]), record(s0_u=UNCLEAR, s1_f=FAILS))
    assert [s.says for s in claims.telling(found)] == ["gap", "the same, later"]
    # The first has none before it to refer to: 'the same as in C1'.
    found = claims.judge(row("hh", ["the same as in C1", "gap"]), record(s0_h=HOLDS, s1_h=HOLDS))
    assert [s.says for s in claims.telling(found)] == ["the same as in C1"]


def test_statements_are_told_in_their_order_however_many_there_are():
    finds = lines(row("u" * 8 + "h"))[1]
    assert 0 < finds.index("s0: ") < finds.index("s8: ")


def test_several_claims_share_what_makes_them_count():
    rows = [row("h", requires="h", name="C1"), row("f", requires="hh", name="C2")]
    first, second, counts, _ = lines(*rows)
    assert first.startswith("**The paper says:** ")
    assert "(C1: from 3 to 1). **We find** s0: 1 " in first
    assert second.endswith("Verdict: **not reproduced**.")
    both = (f"r{n}: 1 [0.7, 1.3] (required above 0.5)" for n in (0, 1))
    assert counts == f"**They count because** {'; '.join(both)}."


def test_several_claims_are_told_apart_by_whether_they_count():
    rows = [
        row("h", requires="f", name="C1"),
        row("h", requires="u", name="C2"),
        row("h", requires="h", name="C3"),
        row("h", name="C4"),
    ]
    untested, asked, free = lines(*rows)[4:7]
    assert untested.startswith("**C1, C2 do not count because** r0: 0.1 ")
    assert asked.startswith("**C3 counts because** r0: 1 ")
    assert free.startswith("**C4 counts**; the rule asks nothing further of the runs: 2 seeds, ")


def test_beyond_four_claims_the_rest_share_a_line():
    rows = [row("h", name=f"C{n}") for n in range(6)]
    found = lines(*rows)
    assert len(found) == 7
    others = (rf"It falls\_fast (C{n}: from 3 to 1) **reproduced**" for n in (4, 5))
    assert found[4] == f"**Judged below, too:** {'; '.join(others)}."
    assert found[5].startswith("**They count**; the rule asks nothing further")


@pytest.mark.parametrize("count", [1, 2])
def test_without_a_record_the_quick_run_shows_the_method_only(monkeypatch, count):
    monkeypatch.setattr(records, "best", lambda experiment: None)
    judged = [claims.judge(row("h", requires="h", name=f"C{n}")) for n in range(count)]
    text = openings.opening(judged, None)
    assert text.count("the quick run below shows the method only") == 1
    assert text.count("**We find** nothing yet") == 1
    assert text.count("**The paper says:**") == count
    assert "count" not in text
    assert "Record" not in text


def test_a_page_that_judges_no_claim_may_say_its_own():
    def finding(shown):
        return f"it takes {shown.sizes['period']} periods."

    kept = record()
    says, finds, counts, about = openings.opening(
        [], kept, paper="nothing.", finding=finding
    ).splitlines()
    assert says == "- **The paper says:** nothing."
    assert finds == "- **We find** it takes 3 periods."
    assert counts.startswith("- **It counts** for no verdict: 2 seeds, 6 runs, ")
    assert "gpu tier" in about
    assert openings.opening([], kept).startswith("- No claim of the ledger is judged here.\n")
    assert openings.opening([], None, paper="much.").splitlines()[1:] == [
        "- **We find** nothing yet: no run is on record, and the quick run below shows the method "
        "only."
    ]
    verdict = claims.judge(row("h"), record(s0_h=HOLDS))
    with pytest.raises(ValueError, match="the page's claims say what the paper does"):
        openings.opening([verdict], kept, paper="nothing.")


def test_a_page_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="the book has no page 'experiments/nowhere'"):
        openings.show("experiments/nowhere")


def test_a_figure_is_drawn_of_the_record_that_there_is(monkeypatch):
    drawn, kept = [], {"trial": record()}
    monkeypatch.setattr(records, "best", kept.get)
    openings.figure("experiments/trial", drawn.append)
    openings.figure("experiments/other", drawn.append)
    assert len(drawn) == 1
    assert drawn[0] is kept["trial"]


def test_what_a_stale_record_lacks_is_said_and_does_not_stop_its_renewal(monkeypatch):
    def fails(kept):
        raise KeyError("new $x$")

    shown = []
    monkeypatch.setattr(openings, "display", lambda markdown: shown.append(markdown.data))
    monkeypatch.setattr(claims, "load_claims", lambda: [row("h") | {"page": "index"}])
    fresh = record(other=HOLDS)
    stale = fresh.assign_attrs(Origin([], [("live", "0" * 12)]).attributes())
    monkeypatch.setattr(records, "best", lambda experiment: stale)
    openings.show("index")
    openings.figure("index", fails)
    assert "**We find** nothing yet: the record is older than the rule." in shown[0]
    assert "older than this page, which asks more of it: 'new \\$x\\$'" in shown[1]
    monkeypatch.setattr(records, "best", lambda experiment: fresh)
    with pytest.raises(ValueError, match="record trial has no statistic 's0_h'"):
        openings.show("index")
    with pytest.raises(KeyError, match="new"):
        openings.figure("index", fails)
    assert len(shown) == 2


# The book's own pages.

BOOK = provenance.project_root() / "book"
OPENED = {
    path.relative_to(BOOK).with_suffix("").as_posix(): path.read_text("utf8")
    for path in sorted(BOOK.rglob("*.md"))
    if "openings.show(" in path.read_text("utf8")
}


def test_every_page_that_judges_claims_opens_with_them():
    judging = {found["page"] for found in claims.load_claims()}
    assert judging <= OPENED.keys()


@pytest.mark.parametrize("page", OPENED)
def test_the_opening_is_the_first_thing_below_the_title(page, monkeypatch):
    text = OPENED[page]
    body = text.split("\n# ", 1)[1].split("\n", 1)[1].lstrip()
    assert body.startswith("```{code-cell}")
    assert f'openings.show("{page}"' in body.split("\n```", 1)[0].replace("\n    ", "")
    shown = []
    monkeypatch.setattr(openings, "display", lambda markdown: shown.append(markdown.data))
    if 'paper="' not in body:
        openings.show(page)
        assert len(shown[0].splitlines()) <= 8
        told = r"\*\*Record:\*\* |The record is older than this page|no run is on record"
        assert re.search(told, shown[0])
