"""The encoder: one layer against NumPy, padding, weights from a file, tokens; its sentences."""

import hashlib
import json
import math
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from refusals import fails

from book.beyond import fine_tuning_helpers as helpers

TEXTS = ["Solve a linear system.", "The mean of a sample, and no more."]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "a", ".", "-", "##b", "##a"]
SMALL = {word: number for number, word in enumerate(WORDS)}

apply_layer = jax.jit(helpers.apply_layer, static_argnums=3)


@pytest.fixture(scope="module")
def encoder():
    return helpers.load_encoder("random", TEXTS)


def layer_by_hand(p, h, mask, heads):
    """One sentence at a time, one head after another, over its tokens alone, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), p)
    erf = np.vectorize(math.erf)

    def affine(name, h):
        return h @ p[name]["weight"] + p[name]["bias"]

    def norm(name, h):
        scaled = (h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)
        return scaled * p[name]["scale"] + p[name]["bias"]

    found = []
    for tokens, real in zip(np.asarray(h, np.float64), mask, strict=True):
        tokens = tokens[real]
        parts = [np.split(affine(name, tokens), heads, 1) for name in ("query", "key", "value")]
        mixed = []
        for query, key, value in zip(*parts, strict=True):
            weights = np.exp(query @ key.T / math.sqrt(key.shape[1]))
            mixed.append(weights / weights.sum(1, keepdims=True) @ value)
        between = norm("attention_norm", tokens + affine("mixed", np.concatenate(mixed, 1)))
        wide = affine("widened", between)
        wide *= (1 + erf(wide / math.sqrt(2))) / 2
        found.append(norm("norm", between + affine("narrowed", wide)))
    return found


def test_a_layer_is_what_numpy_computes_of_each_sentence_by_itself(encoder):
    x = encoder.tokenize(TEXTS, 12)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), encoder.params)
        # No parameter is at the zero or one that it begins with.
        params = jax.tree.map(
            lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params
        )
        h = jax.jit(helpers.embed)(params["embedding"], x["ids"])
        outputs = apply_layer(params["layers"][0], h, x["mask"], encoder.heads)
        vectors = jax.jit(helpers.pool)(outputs, x["mask"])
    by_hand = layer_by_hand(params["layers"][0], h, x["mask"], encoder.heads)
    for found, mask, wanted, vector in zip(outputs, x["mask"], by_hand, vectors, strict=True):
        np.testing.assert_allclose(np.asarray(found)[mask], wanted, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(vector, wanted.mean(0), rtol=1e-10, atol=1e-12)


def test_padding_changes_nothing_and_layers_can_be_left_to_a_later_one(encoder):
    short, long = (encoder.tokenize(TEXTS, length) for length in (12, 20))
    apply, hidden = jax.jit(encoder.apply), jax.jit(encoder.hidden, static_argnums=2)
    vectors = apply(encoder.params, short)
    np.testing.assert_allclose(vectors, apply(encoder.params, long), atol=1e-5)
    below = hidden(encoder.params, short, 1)
    whole = apply_layer(encoder.params["layers"][1], below, short["mask"], encoder.heads)
    np.testing.assert_allclose(helpers.pool(whole, short["mask"]), vectors, atol=1e-5)


def test_sentences_become_ids_of_the_longest_pieces_with_a_mask():
    assert helpers.words("Unaffable, a_b 3D") == ["unaffable", ",", "a", "_", "b", "3d"]
    unknown = "unaffably a" + 100 * "b"  # no such pieces; too long
    found = helpers.encode(["Unaffable.", "a a a a a", "a-a", unknown], SMALL, 6)
    ids = [[2, 4, 5, 6, 8, 3], [2, 7, 7, 7, 7, 3], [2, 7, 9, 7, 3, 0], [2, 1, 1, 3, 0, 0]]
    assert found["ids"].tolist() == ids
    np.testing.assert_array_equal(found["mask"], np.asarray(ids) > 0)


def test_what_cannot_be_encoded_is_refused(monkeypatch):
    monkeypatch.setattr(helpers, "PACKAGE", "no_such_package")
    fails("'naïve'", helpers.encode, ["fine", "naïve"], SMALL, 6)
    fails("'gpt'", helpers.load_encoder, "gpt")
    # Without the package of the weights the error names the extra.
    fails(r"iterlin\[encoder\]", helpers.load_encoder, "all-MiniLM-L6-v2")


def as_file(arrays):
    """The safetensors format, by its description: length of the header, header, numbers."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        kind = {"float32": "F32", "int64": "I64"}[array.dtype.name]
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_file_of_weights_becomes_the_parameters(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    layer = "encoder.layer.0"
    square = ("attention.self.query", "attention.self.key", "attention.self.value")
    dense = dict.fromkeys((*square, "attention.output.dense"), (4, 4))
    dense |= {"intermediate.dense": (8, 4), "output.dense": (4, 8)}
    arrays = {"embeddings.position_ids": np.arange(3)}
    for name, shape in dense.items():
        arrays[f"{layer}.{name}.weight"] = drawn(*shape)
        arrays[f"{layer}.{name}.bias"] = drawn(shape[0])
    for name in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        arrays |= {f"{name}.LayerNorm.{part}": drawn(4) for part in ("weight", "bias")}
    for name, rows in (("word", len(WORDS)), ("position", 3), ("token_type", 2)):
        arrays[f"embeddings.{name}_embeddings.weight"] = drawn(rows, 4)

    folder = tmp_path / "toy_weights" / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "config.json").write_text('{"num_hidden_layers": 1, "num_attention_heads": 2}')
    data = as_file(arrays)
    (folder / "model.safetensors").write_bytes(data)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(helpers, "PACKAGE", "toy_weights")
    fails("is not the published file", helpers.load_encoder, "all-MiniLM-L6-v2")
    monkeypatch.setattr(helpers, "WEIGHTS_SHA256", hashlib.sha256(data).hexdigest())

    encoder = helpers.load_encoder("all-MiniLM-L6-v2")
    assert (encoder.heads, encoder.vocabulary) == (2, SMALL)
    (found,) = encoder.params["layers"]
    wide = arrays[f"{layer}.intermediate.dense.weight"].T
    np.testing.assert_array_equal(found["widened"]["weight"], wide)
    scale = arrays[f"{layer}.output.LayerNorm.weight"]
    np.testing.assert_array_equal(found["norm"]["scale"], scale)
    first = helpers.embed(encoder.params["embedding"], jnp.asarray([[5]]))[0, 0]
    rows = {"word": 5, "position": 0, "token_type": 0}
    summed = sum(arrays[f"embeddings.{name}_embeddings.weight"][row] for name, row in rows.items())
    scaled = (summed - summed.mean()) / summed.std()
    wanted = scaled * arrays["embeddings.LayerNorm.weight"] + arrays["embeddings.LayerNorm.bias"]
    np.testing.assert_allclose(first, wanted, rtol=1e-5, atol=1e-6)


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
    first, second, third, *_ = [text for _, text in helpers.sentences("first")]
    assert (first, second) == ("Compute the inversea of a given matrix.", SHARED)
    assert third == "The inverse of kind a is taken in its place."


def test_sets_are_balanced_and_share_no_function_and_no_sentence(packages):
    split = helpers.load_sentences(packages, train=54, validation=4, test=8)  # all functions
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


def test_sizes_that_do_not_fit_are_refused(packages):
    for train, message in ((7, "multiples"), (64, "too few sentences")):
        fails(message, helpers.load_sentences, packages, train=train, validation=4, test=4)


def test_the_step_size_is_chosen_by_validation_alone():
    """At 0.2 validation is best on average; the test set would take 0.3, one seed 0.1."""
    validation = [[0.9, 0.8, 0.5, np.nan], [0.1, 0.8, 0.6, np.nan]]
    test = [[0.2, 0.4, 0.9, 1.0], [0.3, 0.6, 0.9, 1.0]]
    axes = {"seed": [0, 1], "step_size": [0.1, 0.2, 0.3, 0.4]}
    curves = {"validation_accuracy": ([*axes], validation), "test_accuracy": ([*axes], test)}
    accuracy, step_size = helpers.chosen(xr.Dataset(curves, axes), "step_size")
    assert float(step_size) == 0.2
    np.testing.assert_allclose(accuracy, [40.0, 60.0])
