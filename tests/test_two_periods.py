"""The pages on Figures 2, 5 and 6 look at the same runs, which are therefore made once."""

import ast

import jax
import numpy as np
import pytest
from iterlin.study import origins, page_code, problems, two_periods
from problems import bare, flat
from toy_book import ROOT

FIRST, *OTHERS = "few_updates", "probes", "filters"
OWN = {"probe_size", "num_snapshots", "penalties", "num_columns"}
NETWORK = {"name": "lenet", "channels": 2, "kernel_size": 3, "padding": "SAME", "hidden": [5]}


@pytest.fixture(scope="module")
def sources():
    return origins.sources(ROOT)


def runs_of(page, sources):
    """The arguments of the one call that makes the page's runs, but its label, as syntax."""
    trees = page_code.cells(sources.pages[f"experiments/{page}.md"])
    calls = [node for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (call,) = [call for call in calls if ast.unparse(call.func) == "two_periods.run"]
    named = {k.arg: ast.unparse(k.value) for k in call.keywords}
    assert named.pop("label") == repr(page)
    return [ast.unparse(argument) for argument in call.args], named


@pytest.mark.parametrize("page", OTHERS)
def test_the_pages_make_their_runs_by_the_same_call(page, sources):
    assert runs_of(page, sources) == runs_of(FIRST, sources)


@pytest.mark.parametrize("page", OTHERS)
@pytest.mark.parametrize("tier", ["quick", "laptop", "gpu", "paper"])
def test_what_the_pages_share_agrees_at_every_tier(page, tier, sources):
    first, found = (origins.parameters(name, tier, sources) for name in (FIRST, page))
    assert first == {name: value for name, value in found.items() if name not in OWN}


def test_the_runs_start_alike_and_are_looked_at_twice_a_period():
    settings = {"train": 20, "test": 10, "step_size": 0.1, "num_steps": 8, "num_seeds": 2}
    problem, ds = two_periods.run("digits", NETWORK, periods=[1, 4], **settings)
    assert np.all(ds.step.values == [0, 2, 4, 6, 8])
    assert ds.updates.isel(evaluation=-1, seed=0).values.tolist() == [7, 1]
    start, end = ds.snapshot.values[..., 0], ds.snapshot.values[..., -1]
    np.testing.assert_array_equal(start[0], start[1])
    assert not np.any(np.all(start[0] == end, axis=-1))
    params = problems.restored(problem, end[0, 0])
    assert jax.tree.structure(params) == jax.tree.structure(problem.init(jax.random.key(0)))
    np.testing.assert_array_equal(flat(params), end[0, 0])


@pytest.mark.parametrize("periods", [[1], [2, 10], [1, 1], [1, float("inf")], [1, 10, 100]])
def test_other_periods_are_refused_before_anything_is_loaded(periods):
    with pytest.raises(ValueError, match="periods must be 1 and a larger, finite one"):
        bare(two_periods.run)("none", {}, periods=periods, num_seeds=1, num_steps=9, step_size=1.0)
