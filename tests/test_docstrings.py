"""Sentences of docstrings: what counts as one, and that nothing is in two sets."""

import sys
import types

import numpy as np
import pytest
from iterlin.study import docstrings

SHARED = "The following combinations of backend and device are supported."
LETTERS, CODE = "abcdefghijkl", (lambda: None).__code__
DOCSTRING = """Compute the {0}{1} of a given matrix.

Parameters
----------
x : array
    Not one of the sentences that are wanted here.

Notes
-----
{2}
The {0} of kind {1}
is taken in its place.

The `x` of 3 samples is the {0}{1}.

The `weights` of 10 samples is the {0}{1}.

- A list of this and that.
"""


@pytest.fixture
def packages(monkeypatch):
    """Two subpackages of 12 functions, with sentences of their own and one that all share."""
    for package, word in (("first", "inverse"), ("second", "root")):
        module = types.ModuleType(f"scipy.{package}")
        functions = {f"{word}_{letter}": types.FunctionType(CODE, {}) for letter in LETTERS}
        for name, function in functions.items():
            function.__doc__ = DOCSTRING.format(word, name[-1], SHARED)
        vars(module).update(functions, constant=3.0, __all__=[*functions, "constant"])
        monkeypatch.setitem(sys.modules, f"scipy.{package}", module)
    return ["first", "second"]


def test_prose_is_what_stands_before_the_parameters_and_in_the_notes(packages):
    found = list(docstrings.sentences("first"))
    assert len(found) == 60
    assert found[:3] == [
        ("first.inverse_a", "Compute the inversea of a given matrix."),
        ("first.inverse_a", SHARED),
        ("first.inverse_a", "The inverse of kind a is taken in its place."),
    ]


def test_sets_are_balanced_and_share_no_function_and_no_sentence(packages):
    split = docstrings.load(packages, train=54, validation=4, test=8)  # all functions
    assert [len(part.texts) for part in split] == [54, 4, 8]
    for part in split:
        assert np.bincount(part.labels).tolist() == [len(part.texts) // 2] * 2
        assert all(packages[y] in f for y, f in zip(part.labels, part.functions, strict=True))
    for what in ("texts", "functions"):
        sets = [set(getattr(part, what)) for part in split]
        assert len(set.union(*sets)) == sum(map(len, sets))
    texts = [text for part in split for text in part.texts]
    assert SHARED not in texts
    assert len(set(texts)) == len(texts)
    # Of sentences that differ in numbers or arguments alone there is one.
    assert any("of 3 samples" in text for text in texts)
    assert not any("of 10 samples" in text for text in texts)


def test_the_seed_decides_which_functions_are_where(packages):
    sizes = {"train": 8, "validation": 4, "test": 4}
    again, other = (docstrings.load(packages, **sizes, seed=seed) for seed in (0, 1))
    assert docstrings.load(packages, **sizes).test.texts == again.test.texts
    assert again.test.texts != other.test.texts
    assert docstrings.describe(again) != docstrings.describe(other)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((7, 4, 4), "train must .* got 7"),
        ((8, 0, 4), "validation must"),
        ((64, 4, 4), "scipy.first has too few sentences"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(packages, sizes, message):
    train, validation, test = sizes
    with pytest.raises(ValueError, match=message):
        docstrings.load(packages, train=train, validation=validation, test=test)
