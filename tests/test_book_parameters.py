"""Tier files are checked against the page's own parameters before anything runs."""

import math
import re
import time

import pytest
import toy_book
from iterlin.study import experiment_pages, records
from iterlin_book import pages, parameters
from iterlin_book.pages import BookError
from toy_book import HEADER, ROOT

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
options = {"rate": 0.1}
halve_after = [4]
limit = float("inf")
seed = None
```
"""


# A few lines that stand for 10^9 values.
BOMB = "a0: &a0 [1, 2]\n" + "".join(
    f"a{n}: &a{n} [{', '.join(10 * [f'*a{n - 1}'])}]\n" for n in range(1, 10)
)


@pytest.fixture
def book(tmp_path):
    root = toy_book.create(tmp_path)
    (root / "book" / "experiments" / "xor.md").write_text(HEADER + CELL)
    return root


def load(root, text, tier="laptop"):
    path = root / "book" / "experiments" / f"xor.{tier}.yml"
    path.write_text(text)
    return parameters.load(root, "experiments/xor", tier)


def test_defaults_are_those_of_the_tagged_cell(book):
    found = experiment_pages.defaults(pages.source(book, "experiments/xor"))
    assert found["num_steps"] == 10
    assert found["rates"] == (0.1, 1.0)
    assert list(found)[-2:] == ["limit", "seed"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("step_size: 2", {"step_size": 2}),
        ("step_size: 1.0e-5", {"step_size": 1e-5}),
        (
            "step_size: 1e-5\nrates: [3.e4, .5e2, -2E6]",
            {"step_size": 1e-5, "rates": [3e4, 50, -2e6]},
        ),
        ("num_steps: 0x10\nname: '010'", {"num_steps": 16, "name": "010"}),
        ("periods: [5]\nverbose: true", {"periods": [5], "verbose": True}),
        ("rates: [1, 0.5]", {"rates": [1, 0.5]}),
        ("limit: 3\nseed: 4", {"limit": 3, "seed": 4}),
        ("limits: [7, .inf]\nhalve_after: []", {"limits": [7, math.inf], "halve_after": []}),
        ("# nothing but a comment", {}),
    ],
)
def test_fitting_values_pass_and_the_tier_is_added(book, text, values):
    assert load(book, text) == {**values, "tier": "laptop"}


def test_a_file_may_be_like_that_of_another_page(book):
    folder = book / "book" / "experiments"
    (folder / "first.laptop.yml").write_text("step_size: 2.0\nnum_steps: 20\n")
    (folder / "second.laptop.yml").write_text("like: first\nnum_steps: 30\n")
    expected = {"step_size": 2.0, "num_steps": 30, "verbose": True, "tier": "laptop"}
    assert load(book, "like: second\nverbose: true") == expected
    with pytest.raises(
        BookError, match=r"xor\.laptop\.yml: there is no .*third\.laptop\.yml for it"
    ):
        load(book, "like: third")
    (folder / "first.laptop.yml").write_text("like: xor\n")
    with pytest.raises(BookError, match=r"first\.laptop\.yml: it is like itself, by way of 'xor'"):
        load(book, "like: second")
    (folder / "first.laptop.yml").write_text("width: 3\n")
    with pytest.raises(BookError, match=r"xor\.laptop\.yml: unknown parameter 'width'"):
        load(book, "like: second")


def test_every_shipped_parameter_file_fits_its_page():
    shipped = [
        (page, tier)
        for page in pages.toc(ROOT)
        for tier in pages.tiers(ROOT, page)
        if tier != pages.QUICK
    ]
    assert len(shipped) >= 3
    for page, tier in shipped:
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
        if page == "appendix/settings":  # of every page of images
            page = "experiments/few_updates"
        defaults = experiment_pages.defaults(pages.source(ROOT, page))
        values = defaults | parameters.load(ROOT, page, tier)
        assert values["num_seeds"] == number, (page, tier)


def test_a_tier_that_cannot_be_recorded_is_refused(book):
    assert pages.TIERS == records.TIERS
    with pytest.raises(BookError, match=r"tier 'mine' cannot be recorded .*laptop"):
        load(book, "num_steps: 3", tier="mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "stepsize: 1",
            r"unknown parameter 'stepsize' \(allowed: tier, step_size, num_steps, name",
        ),
        ("tier: gpu", r"parameter 'tier' must be 'laptop', not 'gpu'"),
        ("num_steps: 1e3", r"'num_steps' must be int, not float 1000\.0$"),
        ("num_steps: 010", r"not valid YAML: 010: write it as a decimal number, or in quotes$"),
        ("num_steps: 1:30", r"not valid YAML: 1:30: write it as a decimal number, or in quotes$"),
        ("step_size: -1:30.5", r"not valid YAML: -1:30\.5: write it as a decimal number"),
        ("step_size: fast", r"'step_size' must be float, not str 'fast'$"),
        ("step_size: true", r"'step_size' must be float, not bool True"),
        ("num_steps: true", r"'num_steps' must be int, not bool True"),
        ("num_steps: 1.5", r"'num_steps' must be int, not float 1\.5"),
        ("verbose: 1", r"'verbose' must be bool, not int 1"),
        ("name: 3", r"'name' must be str, not int 3"),
        ("periods: 3", r"'periods' must be a list, not int 3"),
        ("periods: [1, 2.5]", r"'periods' has a wrong element: it must be int, not float 2\.5"),
        ("step_size: [1", r"not valid YAML: "),
        ("step_size: 1\nstep_size: 2", r"not valid YAML: 'step_size' is given twice, in line 2$"),
        ("step_size: .nan", r"'step_size' must be finite, not nan$"),
        ("step_size: 1.0e+400", r"'step_size' must be finite, not inf$"),
        ("periods: [1, .nan]", r"'periods' has a wrong element: it must be int, not float nan"),
        ("limits: [1, .nan]", r"'limits' must be finite, not nan$"),
        ("options: {rate: .inf}", r"'options' must be finite, not inf$"),
        ("periods: []", r"'periods' must not be empty$"),
        ("periods: [5, 0]", r"'periods' must be at least 1, not 0$"),
        ("num_steps: -1", r"'num_steps' must be at least 1, not -1$"),
        ("step_size: 1" + 400 * "0", r"'step_size' is too large"),
        ("num_steps: 1" + 5000 * "0", r"not valid YAML: .*5001 digits"),
        (f"name: {3000 * '['}{3000 * ']'}", r"not valid YAML: nested too deeply$"),
        (f"periods: [{1_000_000 * '1,'}]", r"not valid YAML: more than 100000 characters$"),
        ("name: !!python/object:os.system x", r"not valid YAML: could not determine a constructor"),
        ("periods: &a [*a]", r"not valid YAML: the alias \*a: write out what it stands for$"),
        (BOMB, r"not valid YAML: the alias \*a0: "),
        ("like: ../other", r"'like' must be the name of a page beside it, not '\.\./other'$"),
        ("- step_size", r"expected lines of the form 'name: value'"),
    ],
)
def test_each_mistake_is_told_in_one_line(book, text, message):
    before = time.process_time()
    with pytest.raises(BookError, match=message) as error:
        load(book, text)
    assert "experiments/xor.laptop.yml: " in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
    assert time.process_time() - before < 1


def test_an_unknown_tier_names_those_that_exist(book):
    with pytest.raises(BookError, match=r"unknown tier 'gpu' \(tiers: quick, laptop\)"):
        parameters.load(book, "experiments/xor", "gpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "unknown page 'nowhere' (pages: index, experiments/xor, other, last)"),
        (["xor", "--tier", "gpu"], "experiments/xor: unknown tier 'gpu' (tiers: quick, laptop)"),
        (["last"], "last: has no code cells to run"),
        (["xor", "--speed", "2"], "iterlin_book.execute: unrecognized arguments: --speed 2"),
    ],
)
def test_the_command_answers_bad_input_with_one_line(book, arguments, message):
    done = toy_book.run(book, "execute", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message + "\n")


def test_results_check_every_page_before_the_first_runs(book):
    (book / "book" / "other.laptop.yml").write_text("nothing: 1\n")
    done = toy_book.run(book, "build", "results", "--tier", "laptop")
    assert (done.returncode, done.stdout) == (2, "")
    assert "other.laptop.yml: unknown parameter 'nothing' (allowed: none" in done.stderr
    done = toy_book.run(book, "build", "results", "--tier", "moon")
    assert done.stderr == "no page has the tier 'moon' (tiers: laptop, quick)\n"
