"""Sentences of docstrings: what counts as one, and that nothing is in two sets."""

import sys
import types

import numpy as np
import pytest
from iterlin.study import docstrings

SUMMARY = "Compute the {} of a given matrix."
SHARED = "The following combinations of backend and device are supported."


def documented(text):
    def function():
        pass

    function.__doc__ = text
    return function


@pytest.fixture
def packages(monkeypatch):
    """Two subpackages of 12 functions, each with a sentence of its own and one that all share."""
    for package, word in (("first", "inverse"), ("second", "root")):
        module = types.ModuleType(f"scipy.{package}")
        letters = "abcdefghijkl"
        for letter in letters:
            text = f"{SUMMARY.format(word + letter)}\n\nParameters\n----------\nx : array\n"
            text += (
                f"    Not one of the sentences that are wanted here.\n\nNotes\n-----\n{SHARED}\n"
            )
            text += f"The {word} of kind {letter}\nis taken in its place.\n\n"
            text += "- A list of this and that.\n"
            setattr(module, f"{word}_{letter}", documented(text))
        module.constant = 3.0
        module.__all__ = [*(f"{word}_{letter}" for letter in letters), "constant"]
        monkeypatch.setitem(sys.modules, f"scipy.{package}", module)
    return ["first", "second"]


def test_prose_is_what_stands_before_the_parameters_and_in_the_notes(packages):
    found = list(docstrings.sentences("first"))
    assert found[:3] == [
        ("first.inverse_a", "Compute the inversea of a given matrix."),
        ("first.inverse_a", SHARED),
        ("first.inverse_a", "The inverse of kind a is taken in its place."),
    ]
    assert len(found) == 36


def test_sets_are_balanced_and_share_no_function_and_no_sentence(packages):
    split = docstrings.load(packages, train=16, validation=4, test=8)
    assert [len(part.texts) for part in split] == [16, 4, 8]
    for part in split:
        assert np.bincount(part.labels).tolist() == [len(part.texts) // 2] * 2
        assert all(packages[y] in f for y, f in zip(part.labels, part.functions, strict=True))
    for what in ("texts", "functions"):
        sets = [set(getattr(part, what)) for part in split]
        assert len(set.union(*sets)) == sum(map(len, sets))
    texts = [text for part in split for text in part.texts]
    assert SHARED not in texts
    assert len(set(texts)) == len(texts)


def test_the_seed_decides_which_functions_are_where(packages):
    sizes = {"train": 8, "validation": 4, "test": 4}
    again, other = (docstrings.load(packages, **sizes, seed=seed) for seed in (0, 1))
    assert docstrings.load(packages, **sizes).test.texts == again.test.texts
    assert again.test.texts != other.test.texts
    assert docstrings.describe(again) != docstrings.describe(other)


def test_sentences_that_differ_in_numbers_or_arguments_count_as_one():
    alike = docstrings._alike("The `x` of 3 samples.")
    assert docstrings._alike("The `weights` of 10 samples.") == alike
    assert docstrings._alike("The mean of 3 samples.") != alike


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((7, 4, 4), "train must be a multiple of 2, got 7"),
        ((8, 0, 4), "validation must be a positive integer"),
        ((44, 4, 4), "scipy.first has too few sentences"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(packages, sizes, message):
    train, validation, test = sizes
    with pytest.raises(ValueError, match=message):
        docstrings.load(packages, train=train, validation=validation, test=test)
