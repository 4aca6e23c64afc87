"""The pages on Figures 2, 5 and 6 look at the same runs, which are therefore made once."""

import jupytext
import pytest
import yaml
from iterlin_book import parameters
from toy_book import ROOT

PAGES = ("few_updates", "probes", "filters")
OWN = {"probe_size", "num_snapshots", "penalties", "num_columns"}
FOLDER = ROOT / "book" / "experiments"


def notebook(page):
    return jupytext.read(FOLDER / f"{page}.md", fmt="md:myst")


def making(page):
    """The statements that make the runs, as syntax, without label and what is then dropped."""
    cells = [c.source for c in notebook(page).cells if "image_problems.image_problem(" in c.source]
    (source,) = cells
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("#", "label="))]
    kept = "\n".join(lines).replace("live = runs.grid(", "ds = runs.grid(")
    return kept.replace(').drop_vars("snapshot", errors="ignore")', ")")


@pytest.mark.parametrize("page", PAGES[1:])
def test_the_pages_make_their_runs_alike(page):
    assert "observe=image_problems.snapshot" in making(page)
    assert making(page) == making(PAGES[0])


@pytest.mark.parametrize("page", PAGES[1:])
@pytest.mark.parametrize("tier", ["quick", "laptop", "gpu", "paper"])
def test_what_the_pages_share_agrees_at_every_tier(page, tier):
    found = []
    for name in (PAGES[0], page):
        values = dict(parameters.defaults(notebook(name)))
        if tier != "quick":
            values |= yaml.safe_load((FOLDER / f"{name}.{tier}.yml").read_text())
        found.append(values)
    assert found[0].keys() == found[1].keys() - OWN
    assert found[0] == {name: value for name, value in found[1].items() if name not in OWN}
