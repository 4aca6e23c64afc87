"""A task for sentences: which of scipy's subpackages is the docstring from that one stands in?

Sentences of one function stay together when they are split into training, validation and test sets,
and those that stand in several docstrings are left out, so that nothing is seen twice.
"""

import hashlib
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from iterlin.validation import positive_integer

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
SHORTEST, LONGEST = 4, 40  # words


class Sentences(NamedTuple):
    """texts; labels (N,), the places of their subpackages; functions, such as "linalg.solve"."""

    texts: list[str]
    labels: np.ndarray
    functions: list[str]


class Split(NamedTuple):
    train: Sentences
    validation: Sentences
    test: Sentences


def load(
    packages: Sequence[str], *, train: int, validation: int, test: int, seed: int = 0
) -> Split:
    """That many sentences of each set, as many of one subpackage as of another.

    Functions are shuffled by the seed; a set takes whole functions until it has enough, the rest of
    the last one is in no set.

    Raises ValueError for a size that is not a positive multiple of the number of subpackages, or
    sentences that do not suffice.
    """
    for name, size in (("train", train), ("validation", validation), ("test", test)):
        positive_integer(name, size)
        if size % len(packages):
            raise ValueError(f"{name} must be a multiple of {len(packages)}, got {size}")
    rng = np.random.default_rng(seed)
    parts = ([], [], [])
    for label, package in enumerate(packages):
        by_function = _once(package, packages)
        order = iter(rng.permutation(sorted(by_function)).tolist())
        for part, size in zip(parts, (test, validation, train), strict=True):
            wanted, found = size // len(packages), []
            for function in order:
                found += [(text, label, function) for text in by_function[function]]
                if len(found) >= wanted:
                    break
            if len(found) < wanted:
                raise ValueError(f"scipy.{package} has too few sentences: {len(found)} are left")
            part += found[:wanted]
    columns = [zip(*part, strict=True) for part in parts]
    held = [Sentences(list(t), np.asarray(y, np.int32), list(f)) for t, y, f in columns]
    return Split(held[2], held[1], held[0])


def describe(split: Split) -> str:
    """One line for a record: sizes, the version of scipy, and a digest of the sentences."""
    lines = [text for part in split for text in part.texts]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    sizes = f"{len(split.train.texts)} sentences to train on, {len(split.validation.texts)} for "
    sizes += f"validation, {len(split.test.texts)} to test"
    return f"docstrings of scipy {scipy.__version__}, {sizes} (SHA-256 {digest}...)"


def sentences(package: str) -> Iterator[tuple[str, str]]:
    """(function, sentence) of the prose of all docstrings of a subpackage: the text before the
    parameters, and the notes."""
    module = importlib.import_module(f"scipy.{package}")
    for name in sorted(module.__all__):
        value = getattr(module, name)
        documented = inspect.isroutine(value) or inspect.isclass(value) or hasattr(value, "nin")
        head, *rest = HEADING.split((documented and inspect.getdoc(value)) or "")
        sections = zip(rest[::2], rest[1::2], strict=True)
        for text in (head, *(body for title, body in sections if title == "Notes")):
            for paragraph in re.split(r"\n\s*\n", text.strip()):
                if not paragraph[:1].isalpha() or "::" in paragraph:
                    continue  # a list, a directive, a formula
                for sentence in END.split(" ".join(paragraph.split())):
                    if _is_plain(sentence):
                        yield f"{package}.{name}", sentence


def _is_plain(sentence: str) -> bool:
    count = len(sentence.split())
    letters = sum(sign.isalpha() or sign in " ,.-'" for sign in sentence)
    return (
        SHORTEST <= count <= LONGEST
        and sentence.isascii()
        and sentence[0].isupper()
        and sentence.endswith(".")
        and letters >= 0.85 * len(sentence)
        and "scipy" not in sentence.lower()
    )


def _once(package: str, packages: Sequence[str]) -> dict[str, list[str]]:
    """Function -> its sentences that stand in no other docstring of the packages, each once."""
    places = {}
    for each in packages:
        for function, text in sentences(each):
            places.setdefault(_alike(text), set()).add(function)
    counts = Counter({form: len(functions) for form, functions in places.items()})
    found, seen = {}, set()
    for function, text in sentences(package):
        form = _alike(text)
        if counts[form] == 1 and form not in seen:
            seen.add(form)
            found.setdefault(function, []).append(text)
    return found


def _alike(text: str) -> str:
    """What sentences have in common that differ in numbers and names of arguments alone."""
    return re.sub(r"`[^`]*`|\d+|[^a-z ]", "", text.lower())
