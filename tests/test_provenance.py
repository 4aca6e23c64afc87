"""The hash of the numerics follows the code and nothing else."""

import pytest
from iterlin.study import provenance

SOURCE = '''"""Module."""

import math  # for pi

LABEL = "# not a comment"


def area(radius):
    """Of a circle.

    # not code
    """
    # pi r^2
    text = f"{radius}#"  # a hash in a string
    return math.pi * radius**2, text


class Shape:
    """Nothing."""

    sides = 3
'''

SAME = {
    "comment": ("# pi r^2", "# by Archimedes"),
    "comment gone": ("    # pi r^2\n", ""),
    "trailing comment": ("  # for pi", ""),
    "docstring": ("Of a circle.", "The area of a disc."),
    "docstring gone": ('    """Nothing."""\n', ""),
    "module docstring": ('"""Module."""\n', '"""A longer\n\ndocstring."""\n'),
    "blank line": ("\n\nclass", "\n\n\n\nclass"),
    "blank line in a body": ("    text =", "\n    text ="),
    "trailing space": ("sides = 3", "sides = 3  "),
}
OTHER = {
    "number": ("sides = 3", "sides = 4"),
    "operator": ("radius**2", "radius**3"),
    "string that looks like a comment": ("# not a comment", "# not a remark"),
    "string with a hash": ('{radius}#"', '{radius}#!"'),
    "name": ("area", "surface"),
    "indentation of a return": ("    return", "    if radius:\n        return"),
    "docstring that is a value": ("sides = 3", 'sides = 3\n    doc = """Nothing."""'),
}


@pytest.mark.parametrize("change", SAME)
def test_explanations_do_not_count(change):
    old, new = SAME[change]
    assert SOURCE.count(old) == 1
    assert provenance.code_of(SOURCE.replace(old, new)) == provenance.code_of(SOURCE)


@pytest.mark.parametrize("change", OTHER)
def test_code_counts(change):
    old, new = OTHER[change]
    assert SOURCE.count(old) == 1
    assert provenance.code_of(SOURCE.replace(old, new)) != provenance.code_of(SOURCE)


def test_what_is_left_is_the_code():
    code = provenance.code_of(SOURCE)
    assert "circle" not in code
    assert "Nothing" not in code
    assert "pi r^2" not in code
    assert 'LABEL = "# not a comment"' in code
    assert 'text = f"{radius}#"' in code
    assert "def area(radius):" in code


def test_code_beside_a_docstring_on_one_line_counts():
    one, two = (f'def f(x): "doc"; return x + {k}\n' for k in (1, 2))
    assert provenance.code_of(one) != provenance.code_of(two)


def test_blank_lines_inside_a_string_count():
    one, two = (f'TEXT = """a\n{gap}b"""\n' for gap in ("", "\n"))
    assert provenance.code_of(one) != provenance.code_of(two)


@pytest.fixture
def texts():
    return {
        "leaf": "VALUE = 1\n",
        "middle": "from iterlin.leaf import VALUE\n",
        "top": "from iterlin import middle\n",
        "late": "def f():\n    import iterlin.leaf\n",
        "loop": "from iterlin import pool\n",
        "pool": "from iterlin import loop\nimport numpy\n",
        "alone": "import math\nfrom pathlib import Path\n",
    }


@pytest.mark.parametrize(
    ("modules", "closure"),
    [
        (["leaf"], ["leaf"]),
        (["top"], ["leaf", "middle", "top"]),
        (["late"], ["late", "leaf"]),
        (["loop"], ["loop", "pool"]),
        (["alone", "middle"], ["alone", "leaf", "middle"]),
        ([], []),
    ],
)
def test_dependencies_are_followed(texts, modules, closure):
    assert provenance.dependencies(modules, texts) == closure


def test_unknown_module_is_refused(texts):
    with pytest.raises(ValueError, match="iterlin has no module 'gone'"):
        provenance.dependencies(["gone"], texts)
    with pytest.raises(ValueError, match="iterlin has no module 'gone'"):
        provenance.dependencies(["top"], texts | {"leaf": "from iterlin import gone\n"})


def test_hash_follows_the_dependencies_and_nothing_else(texts):
    before = provenance.source_hash(["top"], texts)
    assert provenance.source_hash(["top"], texts | {"leaf": "VALUE = 2\n"}) != before
    assert provenance.source_hash(["top"], texts | {"alone": "import cmath\n"}) == before
    assert provenance.source_hash(["top"], texts | {"leaf": "VALUE = 1  # one\n"}) == before
    assert provenance.source_hash(["top", "alone"], texts) != before


def test_the_library_itself():
    assert "linearization" in provenance.dependencies(["training"])
    assert "plotting" not in provenance.dependencies(["training"])
    assert provenance.sources().keys() >= {"training", "ntk", "provenance"}
    assert len(provenance.source_hash(["training"])) == 64
    assert (provenance.project_root() / "lib" / "iterlin").samefile(provenance.PACKAGE)


def test_every_module_can_be_hashed_alone():
    for module in provenance.sources():
        if not module.startswith("_"):
            assert module in provenance.dependencies([module])


def test_versions_and_device_are_words():
    assert provenance.versions().keys() >= {"python", "jax", "numpy"}
    assert provenance.device()


def test_commit_outside_git_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "project_root", lambda: tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit() == "unknown"
