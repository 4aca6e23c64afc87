"""A page's run is recorded with all of its parameters, and shown."""

import json
from pathlib import Path

import numpy as np
import pytest
import toy_pages
import xarray as xr
from iterlin.training.loop import OutOfTime
from iterlin_study.records import environment, records
from iterlin_study.report import claims
from iterlin_study.report.page import Page
from refusals import fails
from toy_pages import VALUES

pytestmark = pytest.mark.usefixtures("root")


def test_a_record_holds_every_parameter_of_the_cell_and_nothing_else():
    page = Page("trial", VALUES | {"num_runs": 7, "np": None})
    assert page.parameters == VALUES
    page.save(toy_pages.results(), data="made up")
    record = records.load("trial", "laptop")
    assert json.loads(record.attrs["parameters"]) == VALUES | {"periods": [5, 20]}
    assert record.attrs["data"] == "made up"
    assert record.attrs["missing"] == 0
    assert 0 < record.attrs["wall_time"] < 600
    # Time and missing runs are those of the grid unless they are given.
    live = toy_pages.results().assign_attrs(seconds=90.0, missing=2)
    for given, expected in (({}, (90.0, 2)), ({"seconds": 5.0, "missing": 0}, (5.0, 0))):
        record = page.save(live, **given)
        assert (record.attrs["wall_time"], record.attrs["missing"]) == expected


def test_what_is_missing_or_no_page_is_refused():
    fails("num_seeds, periods", Page, "trial", {"tier": "laptop"})
    fails("'nowhere'", Page, "nowhere", VALUES)
    for name, value in (("tier", "mine"), ("num_seeds", 0)):
        fails(name, Page, "trial", VALUES | {name: value}, extends=True)
    path = Path("book/experiments/trial.md")
    path.write_text(path.read_text().replace('tier = "quick"', ""))
    fails("without a value: tier", Page, "trial", VALUES)


def test_the_rules_kept_are_those_of_the_start(monkeypatch):
    monkeypatch.setattr(claims, "rules", lambda experiment: {f"C-{experiment}": "a digest"})
    page = Page("trial", VALUES)
    monkeypatch.setattr(claims, "rules", lambda experiment: {})
    record = page.save(toy_pages.results())
    assert json.loads(record.attrs["rules"]) == {"C-trial": "a digest"}


def test_without_a_finished_run_nothing_is_recorded(monkeypatch):
    page = Page("trial", VALUES)
    live = toy_pages.results()
    nothing = live.assign(diverged_at=xr.full_like(live.seed, np.nan, float))
    fails("before a run was finished", page.save, nothing, error=OutOfTime)
    with monkeypatch.context() as patched:  # a share of which all runs are other pages' is done
        patched.setenv(environment.SHARE, "3/3")
        with pytest.raises(environment.ShareDone):
            page.save(nothing)
    assert not records.path_of("trial", "laptop").exists()
    live = live.assign(lazy_diverged_at=xr.full_like(live.seed, np.nan, float))
    page.save(live.assign(diverged_at=xr.full_like(live.seed, -1)))
    assert records.path_of("trial", "laptop").exists()


def test_the_record_of_the_highest_tier_is_shown_else_the_run(displayed):
    quick = Page("trial", VALUES | {"tier": "quick"})
    live = quick.save(toy_pages.results(), data="made up")
    assert quick.shown(live) is live
    said = displayed.pop().data
    assert "Shown: quick tier, 3 seeds, run while this page was built. made up." in said
    record = Page("trial", VALUES).save(toy_pages.results(), seconds=120.0)
    assert quick.shown(live).attrs["tier"] == "laptop"
    said = displayed.pop().data
    assert f"Shown: laptop tier: 3 seeds, 2 min on {record.attrs['device']}" in said
    assert record.attrs["date"] in said
    # A record that is older than the page gives way to the run.
    live = quick.save(live.assign(more=0.0))
    assert quick.shown(live) is live
    older, shown = displayed
    assert "older than this page: it lacks more" in older.data
    assert "Shown: quick tier" in shown.data


def test_limits_hold_for_whole_quick_runs():
    live = toy_pages.results()
    quick = Page("trial", VALUES | {"tier": "quick"})
    assert quick.limits(live)
    assert not quick.limits(live.assign_attrs(missing=1))
    assert not Page("trial", VALUES).limits(live)
