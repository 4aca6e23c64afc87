"""Of a page's code those statements count that make its record; of its parameters, the values."""

import pytest
from iterlin.study import page_code
from iterlin.study.definitions import Library
from toy_sources import LIBRARY, PAGE


def code(text, library=LIBRARY):
    found = Library(library)
    return [(name, found.digest_of(form)) for name, form in page_code.made_by(text, found)]


def edited(old, new):
    assert old in PAGE
    return PAGE.replace(old, new)


def test_the_statements_that_count():
    names = [name for name, _ in code(PAGE)]
    assert names == ["START", "run", "losses", "coords", "live", "expr"]


SAME = {
    "prose": ("More prose.", "Other prose.\n\n    plt.show()"),
    "comment": ("START = 2.0", "# Where it starts.\nSTART = 2.0  # far"),
    "docstring": ('"""One run."""', '"""From START."""'),
    "formatting": ("START + seed", "(START\n        + seed)"),
    "cells": ("\n\nlosses = ", "\n```\n\n```{code-cell} python\nlosses = "),
    "tags": ("tags: [hide-input]", "tags: [remove-cell]"),
    "import": ("import numpy as np", "import numpy as np\nimport optax"),
    "import style": ("from iterlin.steps import step", "from iterlin import step"),
    "style": ("size=2", "size=3"),
    "style of matplotlib": ('"font.size": 9', '"font.size": 11'),
    "figure before the save": ("coords = ", "fig, ax = plt.subplots()\ncoords = "),
    "figure after the save": ("COLORS[0]", "COLORS[1]"),
    "only in figures": ('"blue"', '"green"'),
    "function only for figures": ("COLORS =", "def shade(x):\n    return x / 2\n\n\nCOLORS ="),
    "assertion": ("np.isfinite(losses).all()", "len(losses) == len(periods)"),
    "refusal": ("num_seeds < 1", "num_seeds < 2"),
    "display": ('"finished", losses', '"done"'),
    "magic": ("%matplotlib inline\n", ""),
    "name of the data": ('data="made up"', 'data="drawn"'),
    "value of a parameter": ("num_seeds = 2", "num_seeds = 20"),
    "new parameter": ("num_seeds = 2", "num_seeds = 2\nwidth = 3"),
}
OTHER = {
    "constant": ("START = 2.0", "START = 2.5", {"START"}),
    "function": ("START + seed", "START - seed", {"run"}),
    "statement": ("for seed in range(num_seeds)]", "for seed in range(1)]", {"losses"}),
    "what is saved": ("page.save(live,", "page.save(live + 1,", {"expr"}),
    "order": ("coords = {", "periods = sorted(periods)\ncoords = {", {"periods"}),
    "a call": ("COLORS =", "np.random.seed(1)\nCOLORS =", {"expr"}),
    "what an import means": ("steps import step", "errors import error as step", {"run"}),
    "a rule for a definition": (
        "COLORS =",
        "@step.defjvp\ndef rule(primals, tangents):\n    return 1\n\n\nCOLORS =",
        {"rule"},
    ),
}


@pytest.mark.parametrize("change", SAME)
def test_what_makes_no_number_does_not_count(change):
    assert code(edited(*SAME[change])) == code(PAGE)


@pytest.mark.parametrize("change", OTHER)
def test_what_makes_the_record_counts(change):
    old, new, names = OTHER[change]
    before, after = code(PAGE), code(edited(old, new))
    assert {name for name, _ in set(after) - set(before)} == names


def test_a_pages_opening_does_not_count():
    library = LIBRARY | {"study/openings.py": "def show(page, finding=None):\n    pass\n"}
    opening = """
```{code-cell} python
from iterlin.study import openings


def finding(record):
    return str(record)


openings.show("trial", finding=finding)
```
"""
    assert code(edited("\n\nProse.", opening), library) == code(PAGE, library)


def test_what_cannot_be_understood_is_refused():
    with pytest.raises(ValueError, match="iterlin has no module 'gone'"):
        code(edited("iterlin.steps import step", "iterlin.gone import step"))
    with pytest.raises(ValueError, match="the page binds what it imports: step"):
        code(edited("START = 2.0", "START = 2.0\nstep = step(1)"))
    with pytest.raises(SyntaxError):
        code(edited("START = 2.0", "START = = 2.0"))


def test_a_page_without_a_save_makes_nothing():
    text = edited("live = page.save(", "live = page.keep(")
    assert page_code.saves(PAGE)
    assert page_code.saves(edited("live = page.save(", "records.save("))
    assert not page_code.saves(text)
    with pytest.raises(ValueError, match="the page saves no record"):
        code(text)


def test_parameters_are_what_their_cell_computes():
    assert page_code.defaults(PAGE) == {"tier": "quick", "num_seeds": 2, "periods": [1, 10]}
    text = edited("num_seeds = 2", "num_seeds: int = 2\nlimit = float('inf')\nrates = (0.1, 1)")
    assert page_code.defaults(text).keys() == {"tier", "num_seeds", "periods", "limit", "rates"}
    assert page_code.defaults("# Prose\n") == {}
    with pytest.raises(ValueError, match="the parameters cell fails: name 'unknown' is not"):
        page_code.defaults(edited("num_seeds = 2", "num_seeds = unknown"))


@pytest.mark.parametrize(
    "idle",
    [
        "if (START := {0}) < 1:\n    raise ValueError",
        "assert (START := {0}) > 0",
        "print(START := {0})",
        "START = len([{0}])\nprint(COLORS.append({0}))",
        "START = plotting.use_style(size={0})",
    ],
)
def test_what_shows_or_checks_counts_where_it_gives_what_is_used(idle):
    """A value that a check binds, or that a display changes on its way, is a value like others."""
    page = edited(
        "from iterlin.steps import step",
        "from iterlin import plotting\nfrom iterlin.steps import step",
    )
    one, other = (code(page.replace("START = 2.0", idle.format(k))) for k in ("2.0", "3.0"))
    assert one != other


def test_a_save_that_does_not_begin_with_the_data_set_is_refused():
    with pytest.raises(ValueError, match="must begin with the data set"):
        code(edited("page.save(live,", "page.save(live=live,"))
