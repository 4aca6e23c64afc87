"""The pages on Figures 2, 5 and 6 look at the same runs, which are therefore made once."""

import numpy as np
import pytest
from iterlin_study.records import experiment_pages
from iterlin_study.runs import problems, two_periods
from problems import bare, flat
from test_problems import NETWORK
from toy_book import ROOT

FIRST, *OTHERS = "few_updates", "probes", "filters"
OWN = {"probe_size", "num_snapshots", "penalties", "num_columns"}


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("page", OTHERS)
def test_the_pages_make_their_runs_of_the_same_parameters(page):
    for tier in ("quick", "laptop", "gpu", "paper"):
        first, found = (experiment_pages.parameters(name, tier) for name in (FIRST, page))
        assert first == {name: value for name, value in found.items() if name not in OWN}


SETTINGS = {"step_size": 0.1, "momentum": 0.75, "num_seeds": 2}


def test_the_runs_start_alike_are_halved_and_seen_at_the_same_steps_and_have_filters(monkeypatch):
    made, grid = {}, two_periods.grid

    def noted(problem, axes, make, **settings):
        made.update({period: make(period, 0).halve_after for period in axes["period"]})
        return grid(problem, axes, make, **settings)

    monkeypatch.setattr(two_periods, "grid", noted)
    sizes = {"train": 20, "test": 10}
    times = {"period": 4, "linearizations": 3, "halve_after": [2, 2.75]}
    problem, ds = two_periods.run("digits", NETWORK, **sizes, **times, **SETTINGS)
    assert made == {1: (8, 14), 4: (2, 2.75)}
    assert np.all(ds.step == [0, 2, 4, 6, 8, 12, 14, 18])
    np.testing.assert_allclose(ds.time, [0, 0.8, 1.6, 2.4, 3.2, 4.0, 4.4, 4.8])
    for name in ("kernel_eigenvalue", "curvature", "kernel_drift", "parameter_distance"):
        assert np.all(np.isfinite(ds[name]))
    assert ds.updates.isel(evaluation=-1, seed=0).values.tolist() == [17, 2]
    start, end = ds.snapshot.values[..., 0], ds.snapshot.values[..., -1]
    np.testing.assert_array_equal(start[0], start[1])
    assert not np.any(np.all(start[0] == end, axis=-1))

    weights = two_periods.filters(problem, ds.snapshot)
    assert weights.shape == (2, 2, 8, 3, 3, 1, 2)
    last = problems.restored(problem, end[1, 0])
    np.testing.assert_array_equal(flat(last), end[1, 0])
    np.testing.assert_array_equal(weights[1, 0, -1], last["conv1"]["kernel"])
    moved = two_periods.moved(weights)
    assert np.all(moved[:, :, 0] == 0)
    apart = np.linalg.norm(weights[1, 0, -1] - weights[1, 0, 0])
    np.testing.assert_allclose(moved[1, 0, -1], apart / np.linalg.norm(weights[1, 0, 0]))


@pytest.mark.parametrize(
    ("curve", "level", "expected"),
    [
        ([0, 1, 2, 1, 3], 1.5, 0.375),
        ([0, 1, 2, 1, 3], 9.0, 1.0),
        ([0, 1, 2, 1, 3], np.nan, np.nan),
        ([0, 1, 2, 1, np.nan], 0.5, np.nan),
    ],
)
def test_where_a_curve_first_is_at_a_level(curve, level, expected):
    found = two_periods.first_reached(curve, level, [0, 2, 4, 6, 8])
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("period", "halve_after"), [(float("inf"), []), (5, [2, 6])])
def test_bad_times_are_refused_before_anything_is_loaded(period, halve_after):
    times = {"period": period, "linearizations": 5, "halve_after": halve_after}
    with pytest.raises(ValueError, match="halve_after" if halve_after else "period"):
        bare(two_periods.run)("none", {}, **times, **SETTINGS)
