"""J J^T kept for many products with it: as a matrix, or as the factors of its layers.

A product with the matrix reads (N O)^2 numbers. The factors, which are the inputs and cotangents of
each layer or, of small layers with many positions, its rows of J, are proportional to N. They are
read twice, for J^T v and for J of that, and nothing is computed anew. From some hundred examples on
that is less to read, and it takes no products of all pairs of examples to begin with.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.factors import PRODUCT, Factors, TracedNetwork
from iterlin.linearise import examples
from iterlin.linearise.devices import with_auto_axes


class CachedKernel(NamedTuple):
    """J J^T of N examples with O outputs each: one of a matrix (N O, N O) and factors."""

    matrix: Float[Array, "NO NO"] | None = None
    factors: Factors | None = None

    @with_auto_axes
    def product(self, v: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """J J^T v, of an array like the outputs; not divided by N."""
        if self.factors is None:
            return (self.matrix @ v.reshape(-1)).reshape(v.shape)
        return _product(self.factors, v.reshape(len(v), -1)).reshape(v.shape)


class CacheSizes(NamedTuple):
    """Numbers that J J^T takes as a matrix and as factors; which of these it is to be kept as, or
    None if neither is within the memory limit."""

    matrix: int
    factors: int
    form: str | None

    @property
    def read(self) -> int:
        """Numbers that a product reads."""
        return self.matrix if self.form == "matrix" else 2 * self.factors


def cache_sizes(network: TracedNetwork, x: PyTree, outputs: int, memory_limit: int) -> CacheSizes:
    """What keeping it takes, from the shapes alone; kept as what a product reads less of."""
    matrix, factors = (examples.num_examples(x) * outputs) ** 2, numbers_kept(network, x, outputs)
    reads = {"matrix": (matrix, matrix), "factors": (2 * factors, factors)}
    limit = memory_limit // network.result.dtype.itemsize
    within = [(read, form) for form, (read, held) in reads.items() if held <= limit]
    return CacheSizes(matrix, factors, min(within)[1] if within else None)


def cache_factors(network: TracedNetwork, x: PyTree, outputs: int) -> Factors:
    """The factors of all examples, of a network traced for a batch of one."""
    count = examples.num_examples(x)
    settings = {"form": PRODUCT, "count": count, "total": outputs}
    return network.factors(x, jnp.arange(outputs), **settings)


def numbers_kept(network: TracedNetwork, x: PyTree, outputs: int) -> int:
    """How many numbers these are, from their shapes."""
    one = jax.eval_shape(lambda: cache_factors(network, examples.take_slice(x, 0, 1), outputs))
    return examples.num_examples(x) * sum(leaf.size for leaf in jax.tree.leaves(one))


def _product(kept: Factors, v: Float[Array, "N o"]) -> Float[Array, "N o"]:
    """Layer by layer: J^T v, in the shape of the layer's parameters, and J of it."""
    total = jnp.zeros_like(v)
    for a, g in kept.dense:
        weight = a.T @ jnp.einsum("noe,no->ne", g, v)
        total += jnp.einsum("noe,ne->no", g, a @ weight)
    for a, g in kept.positions:
        weight = jnp.einsum("nsd,nse->de", a, jnp.einsum("nsoe,no->nse", g, v))
        total += jnp.einsum("nsoe,nse->no", g, jnp.einsum("nsd,de->nse", a, weight))
    for rows in kept.rows:
        rows = rows.reshape(v.size, -1)
        total += (rows @ (v.reshape(-1) @ rows)).reshape(v.shape)
    for taken, g in kept.lookups:
        # Rows that are taken have a place each; there are no more of them than there are positions.
        place = jnp.searchsorted(jnp.sort(taken.reshape(-1)), taken.reshape(-1)).reshape(
            taken.shape
        )
        pulled = jnp.einsum("nsoe,no->nse", g, v)
        table = jnp.zeros((taken.size, g.shape[3]), g.dtype).at[place].add(pulled)
        total += jnp.einsum("nsoe,nse->no", g, table[place])
    return total
