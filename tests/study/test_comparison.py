"""The quick run that is kept with a record tells whether today's library gives its numbers."""

import math

import numpy as np
import pytest
import toy_pages
import xarray as xr
from iterlin_study.records import comparison, experiment_pages, records
from iterlin_study.report.page import Page
from refusals import fails

pytestmark = pytest.mark.usefixtures("root")


def run(tier="quick", *, scale=1.0):
    """A run of the page, recorded."""
    live = toy_pages.results() * scale
    live["status"] = "period", ["first", "last"]
    live["seconds"] = "period", np.random.default_rng().random(2)
    live["bad"] = "period", [np.nan, np.inf]
    return Page("trial", toy_pages.VALUES | {"tier": tier}).save(live)


@pytest.fixture
def record():
    found = run("laptop")
    run()
    comparison.keep("trial")
    return found


def test_a_run_repeats_the_kept_one_or_a_changed_number_is_named_with_its_size(record):
    again = run(scale=1 + 1e-5)  # but for rounding
    assert comparison.differences(comparison.kept("trial"), again) == {}
    assert comparison.sentence(record) == "the quick run gives the same numbers today"
    changed = run(scale=1.01)
    found = comparison.differences(comparison.kept("trial"), changed)
    assert found == {"loss": pytest.approx(0.01)}
    expected = "the quick run differs today: loss by 1 % of its largest value"
    assert comparison.sentence(record) == comparison.sentence(record, changed) == expected


@pytest.mark.parametrize(("estimate", "differs"), [(1.0, []), (2.0, ["gap"])])
def test_of_an_interval_the_estimate_is_compared(estimate, differs):
    then = xr.Dataset({"gap": ("bound", [1.0, -1.0, 3.0])})
    now = xr.Dataset({"gap": ("bound", [estimate, -np.inf, np.inf])})
    assert list(comparison.differences(then, now)) == differs


@pytest.mark.parametrize(
    "changed",
    [
        lambda run: run.drop_vars("loss"),
        lambda run: run.isel(seed=[0]),
        lambda run: run.assign(loss=run.loss.where(run.seed > 0)),
        lambda run: run.assign(bad=-run.bad),
    ],
)
def test_a_variable_in_another_form_differs(record, changed):
    found = comparison.differences(comparison.kept("trial"), changed(run()))
    assert math.inf in found.values()


def test_without_a_quick_run_there_is_nothing_to_compare():
    record = run("laptop")
    assert comparison.since("trial") is None
    assert comparison.sentence(record) == "there is no quick run to compare"
    fails("no record of trial at tier quick", comparison.keep, "trial", error=FileNotFoundError)


def test_parameters_are_compared_by_value(root, record):
    file = root / "book" / "experiments" / "trial.laptop.yml"
    assert comparison.changed_parameters(record) == []
    file.write_text("# Three.\nnum_seeds: 3\nperiods: [5, 20]\n")
    assert comparison.changed_parameters(record) == []
    file.write_text("num_seeds: 4\nperiods: [5, 20]\n")
    assert comparison.changed_parameters(record) == ["num_seeds"]
    assert comparison.sentence(record).endswith("today; changed since: num_seeds")


def test_the_command_lists_and_keeps(record, capsys):
    run(scale=2.0)
    assert comparison.main([]) == 0
    assert "trial: the quick run differs today: loss" in capsys.readouterr().out
    assert comparison.main(["--keep", "trial"]) == 0
    assert "trial: the quick run gives the same numbers" in capsys.readouterr().out
    assert comparison.main(["--keep", "other"]) == 2
    assert "other has no record" in capsys.readouterr().err


def test_a_kept_quick_run_whose_record_was_deleted_is_not_listed(record, capsys):
    records.path_of("trial", "laptop").unlink()
    assert comparison.main([]) == 0
    assert capsys.readouterr().out == ""


def test_the_quick_runs_that_the_project_keeps_belong_to_its_records(monkeypatch):
    monkeypatch.chdir(experiment_pages.__file__.rpartition("/lib/")[0])
    kept = comparison.experiments()
    assert kept
    for experiment in kept:
        run, record = comparison.kept(experiment), records.best(experiment)
        assert run.attrs["experiment"] == experiment
        # Else the page takes its record for an old one, and shows the quick run in its place.
        assert run.variables.keys() <= record.variables.keys(), experiment


def test_a_damaged_file_is_named(record):
    comparison.kept_path("trial").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"quick\.nc is damaged or not a record"):
        comparison.kept("trial")
