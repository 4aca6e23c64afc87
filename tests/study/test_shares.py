"""Shares of a grid: all runs, each once, and together bit for bit the runs of one process."""

import re
import shutil
from itertools import count

import numpy as np
import pytest
import xarray as xr
from iterlin.exact.trainer import ExactTrainer
from iterlin.training import loop
from iterlin_study.records import environment, records
from iterlin_study.runs import grids, groups
from refusals import fails
from test_exact_runs import by_engines, make
from test_grids import problem


def steps(folder):
    """Runs in groups of two."""
    memory = 2 * groups.step_costs(problem(), make(4, 0))[0]
    axes = {"period": [4], "seed": range(4)}
    return grids.grid(problem(), axes, make, folder=folder, memory=memory)


def engines(folder):
    return by_engines(axes={"period": (5,), "seed": (0, 1)}, folder=folder)


@pytest.fixture
def share(monkeypatch):
    """share(text, work): the work's result in a process of that share."""

    def within(text, work):
        monkeypatch.setenv(environment.SHARE, text)
        monkeypatch.setattr(environment, "_numbers", count())
        try:
            return work()
        finally:
            monkeypatch.delenv(environment.SHARE)

    return within


def files(folder):
    return {path.name for path in folder.iterdir()}


# These are not of the training, or can be told beforehand.
KNOWN = {"seconds", "diverged_at", "step", "evaluations"}


@pytest.mark.parametrize("grid", [steps, engines])
def test_shares_are_disjoint_and_together_all_runs(tmp_path, share, grid, monkeypatch):
    whole = grid(tmp_path / "alone")
    store, found = tmp_path / "store", []
    for text in ("1/2", "2/2"):
        folder = tmp_path / text
        folder.mkdir(parents=True)
        part = share(text, lambda folder=folder: grid(folder))
        found.append(files(folder))
        shutil.copytree(folder, store, dirs_exist_ok=True)
        # A share has what one process has, or nothing, in the same places.
        forms = [{name: v.dims for name, v in ds.variables.items()} for ds in (part, whole)]
        assert forms[0] == forms[1]
        there = np.isfinite(part.test_loss.isel(evaluation=0))
        assert 0 < there.sum() < there.size
        for name in set(whole.data_vars) - KNOWN:
            values = part[name].values[there.values]
            np.testing.assert_array_equal(values, whole[name].values[there.values], err_msg=name)
            assert np.isnan(part[name].values[~there.values]).all()
    assert not found[0] & found[1]
    assert files(store) == files(tmp_path / "alone")

    # The process that makes the record finds all runs and trains none.
    for place, name in ((loop.jax, "block_until_ready"), (ExactTrainer, "_linearize")):
        monkeypatch.setattr(place, name, lambda *_: pytest.fail("a run was trained"))
    again = grid(store)
    assert (again.attrs["seconds"] > 0, again.missing) == (True, 0)
    for name in set(whole.data_vars) - {"seconds"}:
        np.testing.assert_array_equal(again[name], whole[name], err_msg=name)


def test_a_share_records_nothing(tmp_path, share, monkeypatch):
    path = tmp_path / "record.nc"

    def record():
        found = xr.Dataset({"loss": ("seed", [1.0])})
        records.save(found, "any", "gpu", parameters={}, wall_time=1.0, path=path)

    fails("all runs of share 1/2 are kept", share, "1/2", record, error=environment.ShareDone)
    monkeypatch.setenv(environment.DEADLINE, "0")
    fails("before share 1/2", share, "1/2", record, error=loop.OutOfTime)
    assert not path.exists()
    record()
    assert path.exists()


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b"])
def test_a_share_is_one_of_so_many(text):
    fails(re.escape(repr(text)), environment.parse, text)
