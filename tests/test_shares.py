"""Shares of a grid: all runs, each once, and together bit for bit the runs of one process."""

import contextlib
import re
from pathlib import Path

import iterlin
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from iterlin import losses
from iterlin.exact.run import ExactRun
from iterlin.runtime import chunks
from iterlin.study import environment, exact_runs, groups, records, runs
from test_exact_runs import AXES, FULL_BATCH
from test_exact_runs import make as make_exact
from test_runs import STEPS, problem

# Bits are compared: of programs that are compiled as they are where records are made.
pytestmark = pytest.mark.optimized


def steps(folder):
    """Two kinds of runs, in groups of two."""
    axes = {"period": [1, 4], "seed": [0, 1, 2, 3]}

    def make(period, seed):
        return runs.Run(seed, period, 0.1, STEPS)

    memory = 2 * max(groups.step_memory(problem(), make(k, 0)) for k in axes["period"])
    return runs.grid(problem(diagnose=3), axes, make, folder=folder, memory=memory)


def engines(folder):
    """By an exact engine, but for plain steps."""

    def engine(run):
        return "steps" if run.period == 1 else "function_space"

    return exact_runs.exact_grid(FULL_BATCH, AXES, make_exact, engine=engine, folder=folder)


@pytest.fixture
def share(monkeypatch):
    """share(text, work): the work's result in a process of that share."""

    def within(text, work):
        monkeypatch.setenv(environment.SHARE, text)
        environment.begin()
        try:
            return work()
        finally:
            monkeypatch.delenv(environment.SHARE)
            environment.begin()

    return within


def files(folder):
    return {path.name for path in folder.iterdir()}


# These are not of the training, or can be told beforehand.
KNOWN = {"seconds", "diverged_at", "step", "evaluations"}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("grid", [steps, engines])
def test_shares_are_disjoint_and_together_all_runs(tmp_path, share, grid, count, monkeypatch):
    whole = grid(tmp_path / "alone")
    found = []
    for number in range(1, count + 1):
        folder = tmp_path / f"share {number}"
        folder.mkdir()
        part = share(f"{number}/{count}", lambda folder=folder: grid(folder))
        found.append(files(folder))
        # What is there is what one process has; the rest is not known, in the same places.
        assert {n: v.dims for n, v in part.variables.items()} == {
            n: v.dims for n, v in whole.variables.items()
        }
        there = np.isfinite(part.test_loss.isel(evaluation=0))
        assert 0 < there.sum() < there.size
        for name in set(whole.data_vars) - KNOWN:
            values = part[name].values[there.values]
            np.testing.assert_array_equal(values, whole[name].values[there.values], err_msg=name)
            assert np.isnan(part[name].values[~there.values]).all()
    expected = files(tmp_path / "alone")
    assert sum(map(len, found)) == len(expected)
    assert set().union(*found) == expected

    # All into one store: what then makes the record has nothing left to train.
    store = tmp_path / "store"
    for number in range(1, count + 1):
        share(f"{number}/{count}", lambda: grid(store))
    for place, name in ((chunks.jax, "block_until_ready"), (ExactRun, "_advance")):
        monkeypatch.setattr(place, name, lambda *_: pytest.fail("a run was trained"))
    again = grid(store)
    assert files(store) == expected
    for name in set(whole.data_vars) - {"seconds"}:
        np.testing.assert_array_equal(again[name], whole[name], err_msg=name)
    assert again.missing == 0


def test_runs_are_dealt_out_over_all_grids_of_a_process(tmp_path, share):
    """Of grids with one group each, no share is left without work."""

    def work():
        for name in ("first", "second"):
            runs.run_all(problem(), [runs.Run(0, 2, 0.1, (1,))], folder=tmp_path / name)

    share("2/2", work)
    assert not (tmp_path / "first").exists()
    assert len(files(tmp_path / "second")) == 1


def test_runs_that_nobody_keeps_are_made_by_each(share):
    results, _ = share("2/2", lambda: runs.run_all(problem(), [runs.Run(0, 2, 0.1, (1,))]))
    assert np.isfinite(results[0].history["test_loss"]).all()


def record(path):
    found = xr.Dataset({"loss": ("seed", [1.0])})
    settings = {"parameters": {}, "wall_time": 1.0, "path": path}
    return records.save(found, "any", "gpu", **settings)


def test_a_share_records_nothing(tmp_path, share):
    def work():
        runs.run_all(problem(), [runs.Run(0, 2, 0.1, (1,))], folder=tmp_path)
        record(tmp_path / "record.nc")

    for text in ("1/2", "2/2"):
        with pytest.raises(environment.ShareDone, match=f"all runs of share {text} are kept"):
            share(text, work)
    assert not (tmp_path / "record.nc").exists()
    work()
    assert (tmp_path / "record.nc").exists()


@pytest.mark.parametrize("grid", [steps, engines])
def test_a_share_without_time_is_not_done(tmp_path, share, grid, monkeypatch):
    """Whether the deadline comes between its runs, where none is begun, or in one."""

    def work():
        with contextlib.suppress(chunks.OutOfTime):
            grid(tmp_path)
        record(tmp_path / "record.nc")

    monkeypatch.setenv(environment.DEADLINE, "0")
    with pytest.raises(chunks.OutOfTime, match="before share 1/2"):
        share("1/2", work)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/0", "a/b", "-1/2", "1/2/3", "1.0/2"])
def test_a_share_is_one_of_so_many(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        environment.parse(text)


def test_a_share_in_the_environment_changes_no_run_of_the_library(tmp_path, share):
    """`train` and `integrate` of a user who has such a variable set do all of their work."""
    algorithm = iterlin.Algorithm(lambda p, x: jnp.tanh(x @ p), losses.squared_error, 0.5)
    data = jnp.eye(2), jnp.array([0.5, -0.5])
    settings = {"schedule": 10, "num_steps": 20}

    def work(name):
        run = settings | {"checkpoint": tmp_path / name}
        trained = iterlin.train(algorithm, jnp.zeros(2), data, **run)
        return *trained, *iterlin.integrate(algorithm, jnp.zeros(2), data, **settings)

    alone = work("alone.npz")
    for text in ("1/2", "2/2"):
        found = share(text, lambda text=text: work(f"{text[0]}.npz"))
        for one, two in zip(found, alone, strict=True):
            one, two = (r if isinstance(r, dict) else r._asdict() for r in (one, two))
            for name in two.keys() - {"seconds", "key"}:
                np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.mark.parametrize("variable", [environment.DEADLINE, environment.SHARE])
def test_a_variable_that_cannot_be_read_is_named(tmp_path, monkeypatch, variable):
    def make_one(seed):
        return runs.Run(seed, 2, 0.1, (1,))

    monkeypatch.setenv(variable, "soon")
    with pytest.raises(ValueError, match=f"^{variable}.*'soon'$"):
        runs.grid(problem(), {"seed": [0]}, make_one, folder=tmp_path)


def test_the_library_reads_no_environment_variable():
    """But for the study and the book, which run in processes that are told so."""
    package = Path(iterlin.__file__).parent
    for path in package.rglob("*.py"):
        if "study" not in path.parts:
            assert not re.search(r"\bos\.(environ|getenv)\b", path.read_text()), path
