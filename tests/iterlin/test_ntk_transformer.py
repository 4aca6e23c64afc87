"""Kernels of a small transformer: pytrees in, outputs of any rank, embeddings, some parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import jacobian, ntk_matrix
from iterlin.kernels.factors import TracedNetwork
from iterlin.linearise.programs import trace_program
from problems import assert_forms, normal

WORDS, LENGTH, WIDTH, CLASSES = 40, 3, 4, 3

PARAMS = {
    "words": normal(WORDS, WIDTH),
    "positions": normal(2 * LENGTH, WIDTH),
    "kinds": normal(2, WIDTH),
    "norm": {"scale": 1 + normal(WIDTH), "shift": normal(WIDTH)},
    "query": {"weight": normal(WIDTH, WIDTH), "bias": normal(WIDTH)},
    "out": {"weight": normal(WIDTH, CLASSES), "bias": normal(CLASSES)},
    "scores": jnp.arange(3),
    "key": jax.random.key(0),
}
X = {
    "ids": jnp.asarray([[1, 5, 1], [5, 5, 0], [39, 2, 1], [7, 1, 5], [0, 2, 5]]),
    "mask": jnp.asarray([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1.0]]),
}


def aligned(vector, array):
    return vector.reshape((1,) * (array.ndim - 1) + (-1,))


def dense(p, h):
    return h @ p["weight"] + aligned(p["bias"], h)


def transformer(p, x):
    """Logits of each token, (N, T, classes)."""
    ids, mask = x["ids"], x["mask"]
    h = p["words"][ids] + p["positions"][None, : ids.shape[1]] + p["kinds"][ids % 2]
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-3)
    h = h * aligned(p["norm"]["scale"], h) + aligned(p["norm"]["shift"], h)
    scores = jnp.einsum("ntd,nsd->nts", dense(p["query"], h), h) - 9 * (1 - mask[:, None])
    h = h + jnp.einsum("nts,nsd->ntd", jax.nn.softmax(scores, -1), h)
    return dense(p["out"], jax.nn.gelu(h))


def pooled(p, x):
    return jnp.einsum("ntc,nt->nc", transformer(p, x), x["mask"])


def first(p, x):
    return pooled(p, x)[:, 0]


@pytest.mark.parametrize(
    ("f", "forms"), [(transformer, ("full", "diagonal", "trace")), (first, ("matrix", "trace"))]
)
def test_outputs_of_any_rank_in_every_form(f, forms):
    assert_forms(f, PARAMS, X, forms=forms)


TRAINABLE = {
    "embeddings": lambda path: path in ("words", "kinds", "positions"),
    "biases": lambda path: path.endswith(("bias", "shift")),
}


@pytest.mark.parametrize("name", TRAINABLE)
def test_fixed_parameters_give_nothing(name):
    """They may be arrays of NumPy that are indexed."""
    params = PARAMS | {"words": np.asarray(PARAMS["words"])}
    assert_forms(pooled, params, X, forms=("full",), trainable=TRAINABLE[name])


def factors_of(f, params, x):
    program = trace_program(f, params, jax.tree.map(lambda leaf: leaf[:1], x))
    network = TracedNetwork(program, jax.tree.leaves(params))
    return network.factors(x, jnp.arange(CLASSES), form="full", count=5)


FEATURES_FIRST = jax.lax.GatherDimensionNumbers(
    offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0,)
)
LOOKUPS = {
    "take": lambda table, ids: jnp.take(table, ids, axis=0),
    "negative": lambda table, ids: table[-ids],
    # Rows -10, 0, 9, 39, 58, 370 of 40.
    "outside, clipped": lambda table, ids: table.at[39 * (ids - 1) // 4].get(
        mode="clip", wrap_negative_indices=False
    ),
    # Rows -1, 7, 15, 40, 56, 318 of 40.
    "outside, filled": lambda table, ids: table.at[41 * ids // 5 - 1].get(
        mode="fill", fill_value=0, wrap_negative_indices=False
    ),
    "copied, features first": lambda table, ids: jax.lax.gather(
        jnp.copy(table), ids[..., None], FEATURES_FIRST, (1, WIDTH)
    ).transpose(1, 2, 0),
}
ANOTHER_AXIS = jax.lax.GatherDimensionNumbers(
    offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(1,)
)
OTHERWISE = {
    "through integers": lambda table, ids: table.astype(int).astype(float)[ids],
    "of the first row": lambda table, ids: jax.lax.gather(
        table, ids[..., None], ANOTHER_AXIS, (1, WIDTH), mode="clip"
    ),
    "tied": lambda table, ids: table[ids] @ (table.T @ table),
    "twice": lambda table, ids: table[ids] + table[ids - 1],
    "columns": lambda table, ids: table.T[:, ids].transpose(1, 2, 0),
    "entries": lambda table, ids: table[ids, 0][:, :, None] * jnp.arange(1.0, 5)[None, None],
    "windows": lambda table, ids: jax.vmap(
        jax.vmap(lambda i: jax.lax.dynamic_slice(table, (i, 0), (2, WIDTH)).sum(0))
    )(ids),
}


@pytest.mark.parametrize("name", [*LOOKUPS, *OTHERWISE])
def test_any_lookup_gives_the_products_of_the_jacobian(name):
    look_up = (LOOKUPS | OTHERWISE)[name]

    def f(p, x):
        return jnp.sin(look_up(p["words"], x["ids"])).sum(1) @ p["out"]["weight"]

    params = {"words": PARAMS["words"], "out": PARAMS["out"]}
    assert bool(factors_of(f, params, X).lookups) == (name in LOOKUPS)
    assert_forms(f, params, X, forms=("matrix",))


def test_indices_of_a_type_that_cannot_count_the_rows():
    ids = jnp.asarray([[100, 3, 7], [120, 9, 1], [100, 9, 43]], jnp.int8)
    table = normal(300, WIDTH)
    f = lambda table, ids: jnp.take(table, ids, axis=0).sum(1)  # noqa: E731
    assert factors_of(f, table, ids).lookups
    # Not by the ids themselves: gathering by them is what XLA's generators do differently.
    rows = jacobian(f, table, ids.astype(jnp.int32))
    kernel = jax.jit(lambda table: ntk_matrix(f, table, ids))(table)
    np.testing.assert_allclose(kernel, rows @ rows.T, atol=1e-12)
