"""The pages on Figures 2, 5 and 6 look at the same runs, which are therefore made once."""

import ast

import pytest
from iterlin.study import origins, page_code
from toy_book import ROOT

FIRST, *OTHERS = "few_updates", "probes", "filters"
OWN = {"probe_size", "num_snapshots", "penalties", "num_columns"}


@pytest.fixture(scope="module")
def sources():
    return origins.sources(ROOT)


def grid(page, sources):
    """The arguments of the grid but its label, by which progress is shown, as syntax."""
    trees = page_code.cells(sources.pages[f"experiments/{page}.md"])
    calls = [node for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (call,) = [call for call in calls if ast.unparse(call.func) == "runs.grid"]
    named = {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg != "label"}
    return [ast.unparse(argument) for argument in call.args], named


@pytest.mark.parametrize("page", OTHERS)
def test_the_pages_make_their_runs_alike(page, sources):
    made = [dict(origins.of_page(name, sources).page) for name in (FIRST, page)]
    for name in ("problem", "eval_steps", "make"):
        assert made[0][name] == made[1][name]
    assert grid(FIRST, sources) == grid(page, sources)
    assert grid(page, sources)[0][0] == "problem"


@pytest.mark.parametrize("page", OTHERS)
@pytest.mark.parametrize("tier", ["quick", "laptop", "gpu", "paper"])
def test_what_the_pages_share_agrees_at_every_tier(page, tier, sources):
    first, found = (origins.parameters(name, tier, sources) for name in (FIRST, page))
    assert first == {name: value for name, value in found.items() if name not in OWN}
