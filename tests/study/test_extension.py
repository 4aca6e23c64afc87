"""More seeds for a record: what is taken from it and what is trained make the record of one run."""

import json

import numpy as np
import pytest
import toy_pages
import xarray as xr
from iterlin_study.records import comparison, extension, records
from iterlin_study.report import intervals
from iterlin_study.report import page as page_module
from iterlin_study.report.page import Page
from iterlin_study.runs import grids
from test_exact_runs import by_engines, make
from test_grids import problem
from toy_pages import VALUES


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    extension.leave(())


def steps(seeds):
    """Each seed is a group of its own."""
    return grids.grid(problem(), {"period": [4], "seed": seeds}, make, memory=1)


def engines(seeds):
    return by_engines(axes={"period": (5,), "seed": seeds})


@pytest.mark.parametrize("grid", [steps, pytest.param(engines, marks=pytest.mark.nightly)])
def test_seeds_that_are_left_out_are_not_trained_and_the_others_are_as_ever(grid):
    whole = grid([0, 1, 2])
    extension.leave([0, 2, 9])
    part = grid([0, 1, 2])
    assert list(part.data_vars) == list(whole.data_vars)
    assert part.missing == 0
    part, whole = (ds.drop_vars("seconds", errors="ignore").drop_attrs() for ds in (part, whole))
    xr.testing.assert_equal(part.sel(seed=1), whole.sel(seed=1))
    assert part.drop_vars("step").sel(seed=[0, 2]).isnull().all().to_array().all()
    # Completed from a record of them, it is the whole, down to types.
    full = extension.completed(part, whole.sel(seed=[0, 2]), [0, 2])
    xr.testing.assert_identical(full, whole)
    assert full.dtypes == whole.dtypes


def recorded(diverged=((-1, 5), (0, -1)), other=(-1, -1), **attributes):
    axes = {"seed": [0, 1], "period": [1, 9]}
    found = xr.Dataset({"diverged_at_lazy": ("seed", list(other))}, axes)
    found["diverged_at"] = ("period", "seed"), np.asarray(diverged)
    parameters = json.dumps({"num_seeds": 2, "rate": 0.5, "periods": [1, 9]})
    unknown = sum(int(variable.isnull().sum()) for variable in found.data_vars.values())
    return found.assign_attrs({"parameters": parameters, "missing": unknown} | attributes)


ASKED = {"num_seeds": 3, "rate": 0.5, "periods": [1, 9]}


def test_whole_seeds_of_the_same_parameters_are_taken():
    assert extension.whole_seeds(recorded(), ASKED) == [0, 1]
    # A seed of which a run is missing is trained anew; so are all where nothing else is asked.
    assert extension.whole_seeds(recorded(((-1, np.nan), (0, -1))), ASKED) == [0]
    assert extension.whole_seeds(recorded(other=(np.nan, -1)), ASKED) == [1]
    assert extension.whole_seeds(recorded(), ASKED | {"num_seeds": 2}) == []
    for other in ({"rate": 0.25}, {"more": 1}):
        assert extension.whole_seeds(recorded(), ASKED | other) == []
    # The record does not tell which run it lacks.
    assert extension.whole_seeds(recorded(missing=1), ASKED) == []


def whole_run(num_seeds, known=()):
    """A record of so many seeds; returns it, and the data set before it was completed."""
    page = Page("trial", VALUES | {"num_seeds": num_seeds}, extends=True)
    assert page.seeds == list(known)
    live = toy_pages.results(num_seeds=num_seeds).assign(picture=("row", [1.5, 2.5]))
    live["diverged_at"] = ("period", "seed"), np.full(live.loss.shape, -1)
    if known:
        live["loss"] = live.loss.where(~live.seed.isin(list(known)))
        live["picture"] = live.picture * np.nan
    full = page.completed(live)
    full["mean"] = intervals.over_seeds(full.loss.isel(period=0))
    return page.save(full, seconds=60.0, missing=0)


def test_a_record_that_gets_more_seeds_is_the_record_of_all(root):
    apart = whole_run(4)
    first = whole_run(2)
    more = whole_run(4, known=[0, 1])
    xr.testing.assert_identical(more.drop_attrs(), apart.drop_attrs())
    for name in ("parameters", "missing"):
        assert more.attrs[name] == apart.attrs[name]
    assert "parts" not in apart.attrs
    loaded = records.load("trial", "laptop")
    told = json.loads(loaded.attrs["parts"])
    assert [part["seeds"] for part in told] == [[0, 1], [2, 3]]
    assert told[0]["commit"] == first.attrs["commit"]
    assert [part["wall_time"] for part in told] == [60.0, 60.0]
    assert loaded.attrs["wall_time"] == 120.0
    # Once more: each part remains what it was.
    again = whole_run(5, known=[0, 1, 2, 3])
    assert [part["seeds"] for part in json.loads(again.attrs["parts"])] == [[0, 1], [2, 3], [4]]
    assert again.attrs["wall_time"] == 180.0
    assert "5 seeds, 3 min on" in records.caption(again)


def test_a_partial_record_keeps_its_whole_seeds_without_a_store(root):
    """Of four seeds one lacks a run, one both: the other two are taken, and all come out whole."""
    apart = whole_run(4)
    live = toy_pages.results(num_seeds=4).assign(picture=("row", [1.5, 2.5]))
    unknown = np.array([[-1, np.nan, -1, np.nan], [-1, -1, -1, np.nan]])
    live["diverged_at"] = ("period", "seed"), unknown
    live["loss"] = live.loss.where(np.isfinite(unknown))
    Page("trial", VALUES | {"num_seeds": 4}).save(live, seconds=40.0, missing=3)
    more = whole_run(4, known=[0, 2])
    xr.testing.assert_identical(more.drop_attrs(), apart.drop_attrs())
    assert (more.attrs["missing"], more.attrs["wall_time"]) == (0, 80.0)
    assert [part["seeds"] for part in records.parts(more.attrs)] == [[0, 2], [1, 3]]


def seeds_taken(**changes):
    return Page("trial", VALUES | changes, extends=True).seeds


def test_what_cannot_be_trusted_and_pages_that_do_not_ask_take_nothing(root, monkeypatch):
    whole_run(2)
    live = toy_pages.results()
    assert Page("trial", VALUES).completed(live) is live
    assert seeds_taken(tier="quick") == []
    with monkeypatch.context() as patched:  # products of another precision are not mixed
        patched.setattr(page_module, "matmul_precision", lambda: "tensorfloat32")
        assert seeds_taken() == []
    quick = Page("trial", VALUES | {"tier": "quick"})
    quick.save(live)
    comparison.keep("trial")
    for factor, taken in ((2, []), (1, [0, 1])):  # the quick run gives other numbers, the same
        quick.save(live * factor)
        assert seeds_taken() == taken
    records.path_of("trial", "laptop").write_bytes(b"damaged")
    assert seeds_taken() == []
