"""The faults that are put into the library are faults, and what comes of each is told rightly."""

import ast
import hashlib
from collections import Counter

import faults
import mutants
import pytest

SOURCE = '''\
"""Says: 1 + 1."""

import math as m


def area(r: "float" = 2.0, *, square=False) -> "1 + 1":
    """The area; not r * r."""
    if r < 0 and not square:
        raise ValueError(f"{r + 1} is negative")
    return r**2 if square else m.pi * abs(r) ** 2


DAYS = dict(a=1, b=not_there) if not m else 7


def ends(n):
    while n > 0:
        n = n - 1
    return n == 0
'''
TESTS = """\
from iterlin.shapes import area, ends


def test_shapes():
    assert area(1.0, square=True) == 1
    assert 3.1 < area(1.0) < 3.2
    assert ends(3)
"""


def lines(source):
    return {(mutant.before, mutant.after) for mutant in faults.mutants(source)}


def test_faults_change_what_is_computed_and_nothing_that_is_said():
    found = faults.mutants(SOURCE)
    assert len({mutant.of(SOURCE) for mutant in found}) == len(found) > 15
    for mutant in found:
        changed = mutant.of(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        differing = [
            a for a, b in zip(SOURCE.split("\n"), changed.split("\n"), strict=True) if a != b
        ]
        assert len(differing) == 1
        assert " ".join(differing[0].split()) == mutant.before
        for words in ('"""', "import", "raise", "1 + 1"):
            assert words not in differing[0].partition(" -> ")[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = a + b", "y = (a - b)"),
        ("y = a + b", "y = a"),
        ("y = a * b", "y = b"),
        ("y = x.T @ x", "y = x @ x"),
        ("y = a < b", "y = (a <= b)"),
        ("y = a < b", "y = (a >= b)"),
        ("y = -a", "y = a"),
        ("y = a and b", "y = (a or b)"),
        ("y = a and b", "y = (b)"),
        ("y = 3", "y = 4"),
        ("y = 3", "y = (2)"),
        ("y = True", "y = False"),
        ("y = f(a, b)", "y = f(b, a)"),
        ("y = max(a, b)", "y = min(a, b)"),
        ("y = jnp.sqrt(a)", "y = a"),
        ("y = a if b else c", "y = c"),
        ("ä = 'ü'; y = a - b", "ä = 'ü'; y = (a + b)"),
    ],
)
def test_each_kind_of_fault(before, after):
    assert (before, after) in lines(before + "\n")


def test_the_strictness_of_a_zip_is_no_fault_to_be_noticed():
    assert not lines("y = zip(a, *b, strict=True)\n")
    assert ("y = f(a, loose=True)", "y = f(a, loose=False)") in lines("y = f(a, loose=True)\n")


def test_a_sample_is_the_same_for_the_same_seed(tmp_path):
    (tmp_path / "shapes.py").write_text(SOURCE)
    first, again, other = (mutants.sample(tmp_path, ["shapes"], seed, 8) for seed in (0, 0, 1))
    assert first == again != other
    whole = mutants.sample(tmp_path, ["shapes"], 0, None)
    assert {mutant for _, mutant in whole} == set(faults.mutants(SOURCE))


def test_every_module_named_is_there_with_its_tests_and_has_faults():
    tests, equivalent = mutants.table()
    drawn = mutants.sample(mutants.LIBRARY, tests, 0, None)
    assert len(drawn) > 5000
    assert {module for module, _ in drawn} == set(tests)
    for module, mutant in drawn[:100]:
        ast.parse(mutant.of((mutants.LIBRARY / f"{module}.py").read_text("utf8")))
    assert all((mutants.TESTS / file).is_file() for files in tests.values() for file in files)
    there = {(module, mutant.before, mutant.after) for module, mutant in drawn}
    assert equivalent.keys() <= there  # of lines that are still there
    assert all(len(why) > 20 for why in equivalent.values())


@pytest.fixture
def workshop(tmp_path):
    """One whose library is a toy, and whose tests are its own."""
    library, tests, copy = (tmp_path / name for name in ("iterlin", "tests", "copy"))
    for folder in (library, tests, copy):
        folder.mkdir()
    (library / "__init__.py").write_text("")
    (library / "shapes.py").write_text(SOURCE)
    (tests / "test_shapes.py").write_text(TESTS)
    profile = 'from hypothesis import settings\n\nsettings.register_profile("unshrunk")\n'
    (tests / "conftest.py").write_text(profile)
    found = mutants.Workshop(library, copy, tests)
    yield found
    found.close()


def test_faults_are_noticed_or_not_or_run_for_ever_and_leave_nothing(workshop, monkeypatch):
    monkeypatch.setattr(mutants, "TIMES", 1)
    monkeypatch.setattr(mutants, "SECONDS", 5)
    before = digest(mutants.LIBRARY), digest(workshop.package)
    by_line = {mutant.after: mutant for mutant in faults.mutants(SOURCE)}
    for after, expected in (
        ("return r**2 if square else (m.pi / (abs(r) ** 2))", mutants.SURVIVED),  # only r = 1
        ("return r**2 if square else (abs(r) ** 2)", mutants.KILLED),
        ("return r**2 if square else m.pi * r ** 2", mutants.SURVIVED),
        ("n = (n + 1)", mutants.TIMEOUT),
        ("DAYS = dict(a=1, b=not_there)", mutants.KILLED),  # as it is imported
        ("return (n != 0)", mutants.KILLED),
    ):
        outcome, _ = workshop.outcome("shapes", by_line[after], ["test_shapes.py"])
        assert (after, outcome) == (after, expected)
    assert (digest(mutants.LIBRARY), digest(workshop.package)) == before


def test_tests_that_fail_without_a_fault_judge_none(workshop, capfd):
    (workshop.tests / "test_shapes.py").write_text("def test():\n    assert False\n")
    with pytest.raises(SystemExit, match=r"test_shapes\.py fails without a fault"):
        workshop.outcome("shapes", faults.mutants(SOURCE)[0], ["test_shapes.py"])


def test_the_score_counts_what_could_have_been_noticed():
    counts = {
        "a": Counter({mutants.KILLED: 6, mutants.SURVIVED: 1, mutants.EQUIVALENT: 5}),
        "b": Counter({mutants.TIMEOUT: 1}),
    }
    table, score = mutants.report(counts)
    assert score == 7 / 8
    assert table.splitlines()[-1] == "noticed: 7 of 8 = 87.5 %"
    assert table.splitlines()[-2].split() == ["all", "13", "6", "1", "1", "5"]


def digest(folder):
    texts = (path.read_bytes() for path in sorted(folder.rglob("*.py")))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
