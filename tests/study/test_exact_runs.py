"""Grids by exact engines: the runs of `grids.grid`, kept and resumed."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from iterlin.training import loop
from iterlin_study.records import environment
from iterlin_study.runs import exact_runs, grids
from iterlin_study.runs import problems as study_problems
from test_grids import STEPS, problem

FULL_BATCH = problem(batch_size=None)
AXES = {"period": (1, 5), "seed": (0, 1)}


def make(period, seed, examples=None, **changes):
    return grids.Run(seed, period, 0.1, STEPS, examples=examples)._replace(**changes)


def engine(run):
    return "steps" if run.period == 1 else "function_space"


def by_engines(make=make, axes=AXES, engine=engine, **settings):
    return exact_runs.exact_grid(FULL_BATCH, axes, make, engine=engine, **settings)


def test_grid_is_that_of_steps():
    """Also what is observed besides. A run's own examples are its training set."""
    everything = FULL_BATCH.train
    sets = FULL_BATCH.watch.sets | {"train": everything}
    watch = FULL_BATCH.watch._replace(sets=sets)
    looked = replace(FULL_BATCH, watch=watch, observe=study_problems.snapshot)

    def chosen(period, seed):
        return make(period, seed, 12, penalty=0.2 if period > 1 else 0.0)

    found = exact_runs.exact_grid(looked, AXES, chosen, engine=engine)
    expected = grids.grid(looked, AXES, chosen)
    for name in expected.data_vars:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-10, err_msg=name)
    np.testing.assert_array_equal(found.evaluations.sel(period=1, seed=0), STEPS)
    assert found.missing == 0
    for period, seed in product(*AXES.values()):
        own = [part[looked.subset(12, seed)] for part in everything]
        end = found.isel(evaluation=-1).sel(period=period, seed=seed)
        params = study_problems.restored(looked, end.snapshot.values)
        loss = looked.algorithm.loss(looked.algorithm.f(params, own[0]), own[1])
        np.testing.assert_allclose(end.train_loss, loss, rtol=1e-5)


@pytest.mark.parametrize("changes", [{"momentum": 0.5}, {"optimizer": "adam"}])
def test_a_run_that_no_engine_can_train_is_refused(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"plain gradient descent, got .*{name}"):
        by_engines(lambda **axes: make(**axes, **changes))


def test_a_run_stopped_on_its_way_is_a_hole_and_goes_on(tmp_path, monkeypatch):
    axes = {"period": (5,), "seed": (0, 1)}
    whole = by_engines(axes=axes)
    monkeypatch.setattr(loop, "CHECKPOINT", 0.0)
    # The first run is kept, and the second on its way.
    monkeypatch.setattr(environment, "out_of_time", lambda: len(list(tmp_path.glob("*"))) == 2)
    part = by_engines(axes=axes, folder=tmp_path)
    assert part.missing == 1
    assert part.keys() == whole.keys()
    assert np.isfinite(part.test_loss.sel(seed=0)).all()
    assert np.isnan(part.test_loss.sel(seed=1)).all()
    monkeypatch.undo()
    again = by_engines(axes=axes, folder=tmp_path)
    np.testing.assert_array_equal(again.test_loss, whole.test_loss)
