"""Sentences in ASCII as the ids of word pieces, as BERT's uncased tokeniser makes them."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from iterlin.validation import positive_integer

PADDING, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (PADDING, UNKNOWN, FIRST, LAST)
WORD = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")
LONGEST = 100  # characters; a longer word is unknown


def encode(
    sentences: Sequence[str], vocabulary: Mapping[str, int], length: int
) -> dict[str, np.ndarray]:
    """{"ids": (N, length) int32, "mask": (N, length) bool}: cut, or padded where mask is false.

    Raises ValueError for a sentence that is not ASCII, by its place, or a length below 3.
    """
    positive_integer("length", length)
    if length < 3:
        raise ValueError(f"length {length} leaves no room between the first and the last token")
    ids = np.full((len(sentences), length), vocabulary[PADDING], np.int32)
    mask = np.zeros(ids.shape, bool)
    for row, sentence in enumerate(sentences):
        if not sentence.isascii():
            raise ValueError(f"sentence {row} is not in ASCII: {sentence!r}")
        found = [piece for word in words(sentence) for piece in pieces(word, vocabulary)]
        found = [FIRST, *found[: length - 2], LAST]
        ids[row, : len(found)] = [vocabulary[piece] for piece in found]
        mask[row, : len(found)] = True
    return {"ids": ids, "mask": mask}


def words(sentence: str) -> list[str]:
    """Runs of letters and digits in lower case; each other sign is a word of its own."""
    return WORD.findall(sentence.lower())


def pieces(word: str, vocabulary: Mapping[str, int]) -> list[str]:
    """A word as the longest piece of the vocabulary that it begins with, and so on; those after
    the first are marked by ##. A word that does not come out is unknown."""
    found, start = [], 0
    while start < len(word) <= LONGEST:
        mark = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if mark + word[start:end] in vocabulary), None)
        if end is None:
            return [UNKNOWN]
        found.append(mark + word[start:end])
        start = end
    return found or [UNKNOWN]


def whole_words(sentences: Iterable[str]) -> dict[str, int]:
    """The vocabulary of all words of some sentences, none of them in pieces."""
    return {
        word: number
        for number, word in enumerate(
            [*SPECIAL, *sorted({word for sentence in sentences for word in words(sentence)})]
        )
    }
