"""Tier files are checked against the page's own parameters before anything runs."""

import math
import re

import pytest
import toy_book
from iterlin_book import execute, pages, parameters
from iterlin_study.records import experiment_pages
from refusals import fails
from toy_book import ROOT

CELL = """
```{code-cell} ipython3
:tags: [parameters]

tier = "quick"
step_size = 0.5
num_steps: int = 10
name = "mlp"
verbose = False
periods = [1, 10]
rates = (0.1, 1.0)
limits = [1, float("inf")]
seed = None
```
"""


@pytest.fixture
def book(tmp_path):
    root = toy_book.create(tmp_path)
    (root / "book" / "experiments" / "xor.md").write_text(CELL)
    return root


def load(root, text, tier="laptop"):
    path = root / "book" / "experiments" / f"xor.{tier}.yml"
    path.write_text(text)
    return parameters.load(root, "experiments/xor", tier)


def test_fitting_values_pass_and_those_of_a_file_that_it_is_like_and_the_tier_are_added(book):
    text = "step_size: 2\nrates: [1, 1e-5]\nname: '010'\nverbose: true\nlimits: [7, .inf]\nseed: 4"
    values = {"step_size": 2, "rates": [1, 1e-5], "name": "010", "verbose": True}
    values |= {"limits": [7, math.inf], "seed": 4}
    assert load(book, text) == {**values, "tier": "laptop"}
    assert load(book, "# nothing but a comment") == {"tier": "laptop"}
    folder = book / "book" / "experiments"
    (folder / "first.laptop.yml").write_text("step_size: 2.0\nnum_steps: 20\n")
    (folder / "second.laptop.yml").write_text("like: first\nnum_steps: 30\n")
    expected = {"step_size": 2.0, "num_steps": 30, "verbose": True, "tier": "laptop"}
    assert load(book, "like: second\nverbose: true") == expected


@pytest.mark.parametrize(
    "tags",
    [
        ":tags: [parameters]",
        ":tags: [hide-input, parameters]",
        "---\ntags: [parameters]\n---",
        "---\ntags:\n- hide-input\n- parameters\nother: 1\n---",
    ],
)
def test_the_parameters_cell_is_found_by_its_tag_alone(tmp_path, tags):
    page = tmp_path / "page.md"
    first = ":caption: Runs with few parameters\n:tags: [hide-input]"
    second = "---\ntags:\n- hide-input\nalt: parameters\n---"
    cells = [(first, "undefined"), (second, "undefined"), (tags, "width = 8")]
    text = (f"```{{code-cell}} ipython3\n{option}\n\n{code}\n```\n" for option, code in cells)
    page.write_text("\n".join(text))
    assert experiment_pages.defaults(page) == {"width": 8}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("stepsize: 1", "'stepsize'"),
        ("tier: gpu", "'tier'"),
        ("num_steps: 1e3", "'num_steps'"),
        ("periods: [1, 2.5]", "'periods'"),
        ("step_size: [1", "cannot be read as YAML"),
        ("num_steps: 1\nnum_steps: 2", "'num_steps' is given twice"),
        ("like: third", "third.laptop.yml"),
        ("like: xor", "xor.laptop.yml"),
        ("like: ../index", "index.laptop.yml"),
    ],
)
def test_each_mistake_is_told_in_one_line(book, text, named):
    fails(f"experiments/xor.laptop.yml: .*{named}", load, book, text, error=pages.BookError)


def test_a_tier_that_cannot_be_recorded_is_refused(book):
    fails("'mine'", load, book, "num_steps: 3", tier="mine", error=pages.BookError)


def test_every_shipped_parameter_file_fits_its_page():
    tiers = [(page, tier) for page in pages.toc(ROOT) for tier in pages.tiers(ROOT, page)[1:]]
    assert len(tiers) >= 3
    for page, tier in tiers:
        values = parameters.load(ROOT, page, tier)
        assert values["tier"] == tier
        recorded = experiment_pages.parameters(page.rpartition("/")[2], tier)
        assert recorded.items() >= experiment_pages.plain(values).items()


def test_the_seeds_that_a_page_names_are_those_of_its_tiers():
    named = []
    for page in pages.toc(ROOT):
        text = (ROOT / "book" / f"{page}.md").read_text("utf8")
        for row in re.findall(r"^\| seeds \|.*$", text, re.MULTILINE):
            named += [(page, tier, int(n)) for n, tier in re.findall(r"(\d+) at (\w+)", row)]
    assert len(named) >= 6
    for page, tier, number in named:
        if page == "appendix/rerunning":  # of every page of images
            page = "experiments/few_updates"
        defaults = experiment_pages.defaults(pages.source(ROOT, page))
        assert (defaults | parameters.load(ROOT, page, tier))["num_seeds"] == number, (page, tier)


def test_a_page_without_code_is_refused_in_one_line(book, capsys):
    assert execute.main(["book/last.md", "--root", str(book)]) == 2
    said = capsys.readouterr()
    assert "last: has no code" in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_folder_that_cannot_be_written_to_is_told_in_one_line(book, capsys):
    (book / "_build").write_text("a file")
    assert execute.main(["xor", "--root", str(book)]) == 2
    told = capsys.readouterr().err
    assert "_build" in told
    assert told.count("\n") == 1
