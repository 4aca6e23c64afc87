"""Networks in plain JAX, for peers with a JAX of their own, and the results of the quintic."""

import jax
import jax.numpy as jnp
import numpy as np

from bench.worker import Prepared

HEADS = 4  # of attention


def mlp(params, x):
    for index, layer in enumerate(params):
        x = (jax.nn.relu(x) if index else x) @ layer["weight"] + layer["bias"]
    return x


def lenet(params, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    for layer in (params["conv1"], params["conv2"]):
        x = jax.lax.conv_general_dilated(
            x, layer["kernel"], (1, 1), "VALID", dimension_numbers=numbers
        )
        x = jax.nn.relu(x + layer["bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1) @ params["dense1"]["kernel"] + params["dense1"]["bias"]
    for layer in (params["dense2"], params["dense3"]):
        x = jax.nn.relu(x) @ layer["kernel"] + layer["bias"]
    return x


def transformer(params, tokens):
    """Logits (N, T, V) of the next token: blocks of causal attention and an MLP, norms first."""

    def attention(x, p):
        parts = jnp.split(x @ p["in"], 3, -1)
        q, k, v = (part.reshape(*x.shape[:2], HEADS, -1) for part in parts)
        scores = jnp.einsum("nthc,nshc->nhts", q, k) / q.shape[-1] ** 0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        return jnp.einsum("nhts,nshc->nthc", weights, v).reshape(x.shape) @ p["out"]

    def norm(x, scale):
        return jax.nn.standardize(x, epsilon=1e-5) * scale

    x = params["embed"]["table"][tokens] + params["places"]["table"]
    for p in (params[name] for name in sorted(params) if name.startswith("block")):
        x = x + attention(norm(x, p["scale1"]), p)
        x = x + jax.nn.gelu(norm(x, p["scale2"]) @ p["up"]) @ p["down"]
    return norm(x, params["head"]["scale"]) @ params["head"]["kernel"]


def network(settings):
    """Return the function that settings name; with "outputs" so many logits of the last token."""
    f = {"lenet": lenet, "transformer": transformer}.get(str(settings["network"]), mlp)
    chosen = settings.get("outputs")
    return f if chosen is None else lambda params, x: f(params, x)[:, -1, :chosen]


def prepared(solve, given: tuple, target: float) -> Prepared:
    """Prepare solve(*given), which returns the losses that the initialisations end with."""
    return Prepared(
        run=lambda: jax.block_until_ready(solve(*given)),
        results=lambda found: {"reached": 1.0 * (np.asarray(found) <= target)},
    )
