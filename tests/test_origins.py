"""A record is stale once a definition, a statement or a parameter that made it has changed."""

import ast
import functools
import json
import re

import pytest
import yaml
from iterlin.study import origins, provenance, record_file
from toy_sources import LIBRARY, SOURCES, edited


def attributes(experiment="trial", tier="laptop", found=SOURCES):
    """Those of a record that such sources made."""
    return {
        "experiment": experiment,
        "tier": tier,
        "parameters": json.dumps(origins.parameters(experiment, tier, found)),
        **origins.of_page(experiment, found).attributes(),
    }


def stale(found, experiment="trial", tier="laptop", before=SOURCES):
    return origins.changes(attributes(experiment, tier, before), found)


def test_an_origin_names_what_the_page_reaches():
    origin = origins.of_page("trial", SOURCES)
    names = [name for name, _ in origin.library]
    assert names == ["RATE", "effect on square", "square", "step"]
    assert [name for name, _ in origin.page][:2] == ["START", "run"]
    assert [name for name, _ in origins.of_page("other", SOURCES).library] == ["LIMIT", "error"]
    assert origins.of_page("index", SOURCES) is None
    assert origins.of_page("nowhere", SOURCES) is None
    digests = json.loads(origin.attributes()["definitions"])
    assert digests == json.loads(json.dumps({"library": origin.library, "page": origin.page}))


CHANGES = {
    # What, file, old, new, and what is then said of the records of `trial` and `other`.
    "nothing": ("steps.py", "x", "x", [], []),
    "docstring": ("steps.py", "One step.", "A step.", [], []),
    "constant": ("steps.py", "= 0.5", "= 0.25", ["changed: RATE (steps)"], []),
    "default": ("steps.py", "power=2", "power=3", ["changed: square (steps)"], []),
    "operator": ("steps.py", "x - RATE", "x + RATE", ["changed: step (steps)"], []),
    "decorator": ("steps.py", "@jax.custom_jvp", "@jax.jit", ["changed: square (steps)"], []),
    "rule": ("steps.py", "return 2 *", "return 3 *", ["changed: effect on square (steps)"], []),
    "rule gone": ("steps.py", "@square.defjvp", "", None, []),
    "other module": ("errors.py", "LIMIT = 3", "LIMIT = 4", [], ["changed: LIMIT (errors)"]),
    "more is reached": (
        "steps.py",
        "def step(x):",
        "STEPS = 3\n\n\ndef step(x, count=STEPS):",
        ["new: STEPS (steps)"],
        [],
    ),
    "less is reached": (
        "steps.py",
        "RATE * square(x)",
        "square(x)",
        ["changed: step (steps)", "no longer reached: RATE"],
        [],
    ),
    "statement": ("experiments/trial.md", "START = 2.0", "START = 2", ["on the page: START"], []),
    "statement gone": ("experiments/other.md", "x = START + seed", "x = seed", [], None),
    "figure": ("experiments/trial.md", "COLORS[0]", "COLORS[1]", [], []),
    "default of the page": (
        "experiments/trial.md",
        "num_seeds = 2",
        "num_seeds = 2\nwidth = 8",
        ["parameter width: not recorded then, 8 now"],
        [],
    ),
    "default that the tier replaces": (
        "experiments/trial.md",
        "num_seeds = 2",
        "num_seeds = 5",
        [],
        [],
    ),
    "tier's file, which another is like": (
        "experiments/trial.laptop.yml",
        "[5, 20]",
        "[5, 40]",
        ["parameter periods: [5, 20] then, [5, 40] now"],
        ["parameter periods: [5, 20] then, [5, 40] now"],
    ),
    "tier's file where another says otherwise": (
        "experiments/trial.laptop.yml",
        "num_seeds: 3",
        "num_seeds: 6",
        ["parameter num_seeds: 3 then, 6 now"],
        [],
    ),
    "own file of one that is like another": (
        "experiments/other.laptop.yml",
        "num_seeds: 4",
        "num_seeds: 6",
        [],
        ["parameter num_seeds: 4 then, 6 now"],
    ),
    "no save": (
        "experiments/trial.md",
        "page.save(",
        "page.keep(",
        ["no page saves a record of trial"],
        [],
    ),
    "broken library": ("errors.py", "def error", "deff error", None, None),
    "broken page": ("experiments/trial.md", "START = 2.0", "START = ", None, []),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_told_for_the_records_that_it_made(change):
    *edit, trial, other = CHANGES[change]
    for experiment, expected in (("trial", trial), ("other", other)):
        said = stale(edited(edit), experiment)
        if expected is None:
            assert said
        else:
            assert len(said) == len(expected), said
            assert all(line.endswith(end) for line, end in zip(said, expected, strict=True)), said


def test_a_parameter_of_the_page_counts_where_no_file_replaces_it():
    found = edited(("experiments/trial.md", "num_seeds = 2", "num_seeds = 5"))
    assert stale(found, tier="quick") == ["parameter num_seeds: 2 then, 5 now"]
    gone = edited(("experiments/trial.md", "periods = [1, 10]\n", ""))
    assert stale(gone, tier="quick") == ["parameter periods: [1, 10] then, gone now"]
    assert origins.parameters("trial", "quick", found) == {
        "tier": "quick",
        "num_seeds": 5,
        "periods": [1, 10],
    }
    assert origins.parameters("other", "laptop", found)["num_seeds"] == 4
    assert origins.parameters("nowhere", "laptop", found) is None


def test_a_moved_and_a_renamed_definition_change_nothing():
    library = dict(LIBRARY)
    library["deep/__init__.py"] = ""
    library["deep/descent.py"] = library.pop("steps.py").replace("square", "power_of")
    library["__init__.py"] = "from iterlin.deep.descent import step\n"
    found = edited(("experiments/trial.md", "iterlin.steps import", "iterlin.deep.descent import"))
    found = found._replace(library=library)
    assert stale(found) == []
    renamed = library["deep/descent.py"].replace("step(", "advance(")
    found = found._replace(library=library | {"deep/descent.py": renamed, "__init__.py": ""})
    found = edited(("experiments/trial.md", "import step", "import advance as step"), found=found)
    assert stale(found) == []
    found = edited(("deep/descent.py", "0.5", "0.25"), found=found)
    assert "changed: RATE (deep.descent)" in stale(found)


def test_a_change_among_definitions_that_call_each_other_is_told():
    """Reached by way of an effect alone: neither a root nor a statement of the page differs."""
    rule = "def _rule(p, t):\n    return back(p, 2) * t\n"
    back = "\n\ndef back(p, n):\n    return n and forth(p, n)\n"
    forth = "\n\ndef forth(p, n):\n    return back(p, n - 1)\n"
    old = "def _rule(primals, tangents):\n    return 2 * primals[0] * tangents[0]\n"
    before = edited(("steps.py", old, rule + back + forth))
    after = edited(("steps.py", "n - 1", "n - 2"), found=before)
    assert origins.of_page("trial", before).page == origins.of_page("trial", after).page
    said = stale(after, before=before)
    assert {"changed: back", "changed: forth"} <= set(said)


def test_one_of_two_effects_that_goes_is_told():
    two = "RATE = 0.5\n\nsquare.scale = 1\nsquare.other = 2\n"
    before = edited(("steps.py", "RATE = 0.5\n", two))
    assert stale(edited(("steps.py", "square.other = 2\n", ""), found=before), before=before)


def test_a_file_that_is_like_itself_ends():
    found = edited(("experiments/trial.laptop.yml", "num_seeds: 3", "like: other\nnum_seeds: 3"))
    assert origins.parameters("trial", "laptop", found)["num_seeds"] == 3


def test_a_file_that_holds_no_parameters_is_told():
    found = edited(("experiments/trial.laptop.yml", "num_seeds: 3\nperiods: [5, 20]", "[1, 2]"))
    (line,) = stale(found)
    assert "trial.laptop.yml: expected lines of the form" in line


def test_what_measures_the_library_counts_by_what_it_reaches():
    def of(text, **changes):
        return origins.of_code([text], SOURCES._replace(**changes))

    text = "from iterlin import steps\n\n\ndef case():\n    return steps.step(2.0)\n"
    before = of(text)
    assert before.page == []
    assert [n for n, _ in before.library][-1] == "step"
    assert of(text.replace("2.0", "3.0")) == before
    changed = edited(("steps.py", "0.5", "0.25")).library
    assert of(text, library=changed) != before
    a = {
        "experiment": "speed",
        "tier": "laptop",
        "parameters": "{}",
        "measured": "bench/peers/ours",
        **before.attributes(),
    }
    found = SOURCES._replace(measured={"bench/peers/ours": [text]})
    assert origins.changes(a, found) == []
    assert origins.changes(a, found._replace(library=changed)) == ["changed: RATE (steps)"]


def test_files_of_data_count_by_their_hashes():
    registry = "toy:\n  examples: 3\n  files: [{name: a, sha256: %s}]\n"
    library = LIBRARY | {
        "study/downloads.py": "def fetch(name):\n    return name\n",
        "errors.py": "from iterlin.study import downloads\n\n\n"
        "def error(x):\n    return downloads.fetch('toy')\n",
    }
    before = SOURCES._replace(library=library, registry=registry % "aa")
    assert stale(before._replace(registry=registry % "bb"), "other", before=before)
    assert not stale(before._replace(registry=registry % "bb"), before=before)
    fetched = edited(("study/downloads.py", "return name", "return name.upper()"), found=before)
    assert not stale(fetched, "other", before=before)
    assert not stale(before._replace(registry=registry % "aa" + "# a remark\n"), before=before)


# The project's own records: which of them a change of the library or of a file makes stale.

ROOT = provenance.PACKAGE.parents[1]
RECORDED = sorted(path.parent.name for path in (ROOT / "data" / "results").glob("*/laptop.nc"))


@functools.cache
def real():
    return origins.sources(ROOT)


def made_by(experiment, found):
    """The digests of what makes the experiment's record, and its parameters."""
    origin = origins.of_page(experiment, found)
    if origin is None:
        origin = origins.of_code(found.measured[origins.MEASURED[0]], found)
    digests = {digest for _, digest in origin.library}, [digest for _, digest in origin.page]
    return digests, origins.parameters(experiment, "laptop", found)


@functools.cache
def made_now(experiment):
    return made_by(experiment, real())


def affected(path, old, new):
    found = edited((path, old, new), found=real())
    return {e for e in RECORDED if made_by(e, found) != made_now(e)}


def test_the_rule_of_the_maximum_is_in_the_records_of_networks_that_take_it():
    text = real().library["networks/convolution.py"]
    tree = ast.parse(text)
    rule = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "defjvp" in ast.unparse(node.decorator_list)
    )
    code = ast.get_source_segment(text, rule)
    found = affected("networks/convolution.py", code, code.rstrip() + "  # the same")
    assert found == set()
    head, separator, value = code.rpartition("return ")
    found = affected("networks/convolution.py", code, f"{head}{separator}2 * ({value}),")
    assert found >= {"few_updates", "probes", "filters", "damping_cnn"}
    assert found.isdisjoint({"xor", "regimes", "damping_quintic"})


def test_gauss_newton_is_in_the_records_that_use_it():
    text = real().library["iteration.py"]
    (constant,) = re.findall(r"^RUNNING = .*$", text, re.MULTILINE)
    found = affected("iteration.py", constant, f"{constant} - 1")
    assert "xor" in found
    assert found.isdisjoint({"few_updates", "probes", "filters"})


def test_a_tiers_file_is_in_the_records_of_the_pages_that_are_like_it():
    path = "experiments/few_updates.laptop.yml"
    line = next(s for s in real().tiers[path].splitlines() if s.startswith("step_size:"))
    assert affected(path, line, "step_size: 0.0123") == {"few_updates", "probes", "filters"}


def test_a_page_is_in_its_own_record_alone():
    path = "experiments/few_updates.md"
    assert affected(path, "```{code-cell}", "Prose.\n\n```{code-cell}") == set()
    assert affected(path, "page.save(\n    live", "page.save(\n    2 * live") == {"few_updates"}


def test_the_record_of_every_page_holds_all_of_its_parameters():
    """The names of the page's cell, unless it waits to be made anew; `changes` tells the rest."""
    pages = [e for e in RECORDED if origins.of_page(e, real()) is not None]
    assert len(pages) == 21
    waiting = yaml.safe_load((ROOT / "data" / "results" / "renewal.yml").read_text("utf8")) or {}
    for experiment in set(pages) - set(waiting):
        path = ROOT / "data" / "results" / experiment / "laptop.nc"
        held = json.loads(record_file.texts(path)["parameters"])
        assert held.keys() == origins.parameters(experiment, "laptop", real()).keys()
