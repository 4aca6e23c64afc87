"""J J^T cached for many products with it: as a matrix, or as the factors of its layers.

A product with the matrix reads (N O)^2 numbers. The factors are the inputs and cotangents of each
layer or, for a small layer with many positions, its rows of J. Their size is proportional to N. A
product reads them twice, for J^T v and for J (J^T v). For more than some hundred examples this is
less to read, and the products of all pairs of examples are not computed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.factors import PRODUCT, Factors, TracedNetwork
from iterlin.linearise import examples
from iterlin.linearise.devices import on_any_device


class CachedKernel(NamedTuple):
    """J J^T of N examples with O outputs each, in one of two forms.

    Attributes:
        matrix: The matrix (N O, N O), or None.
        factors: The factors of the layers, or None.
    """

    matrix: Float[Array, "NO NO"] | None = None
    factors: Factors | None = None

    @on_any_device
    def product(self, v: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """Return J J^T v, not divided by N, for an array v shaped as the outputs (N, ...)."""
        if self.matrix is not None:
            return (self.matrix @ v.reshape(-1)).reshape(v.shape)
        assert self.factors is not None
        return _multiply(self.factors, v.reshape(len(v), -1)).reshape(v.shape)


class CacheSizes(NamedTuple):
    """The size of J J^T in each form, and the form to cache.

    Attributes:
        matrix: The number of entries of the matrix.
        factors: The number of entries of the factors.
        form: "matrix" or "factors", or None if neither fits into the memory limit.
    """

    matrix: int
    factors: int
    form: str | None


def cache_sizes(network: TracedNetwork, x: PyTree, outputs: int, memory_limit: int) -> CacheSizes:
    """Compute the sizes of both forms from shapes, and choose the one that a product reads less of.

    memory_limit: the largest size of the cache, in bytes.
    """
    matrix, factors = (examples.num_examples(x) * outputs) ** 2, factors_size(network, x, outputs)
    candidates = {"matrix": (matrix, matrix), "factors": (2 * factors, factors)}
    limit = memory_limit // network.dtype.itemsize
    fitting = [(read, form) for form, (read, size) in candidates.items() if size <= limit]
    return CacheSizes(matrix, factors, min(fitting)[1] if fitting else None)


def cache_factors(network: TracedNetwork, x: PyTree, outputs: int) -> Factors:
    """Compute the factors of all N examples, for the given number of outputs of an example."""
    count = examples.num_examples(x)
    settings = {"form": PRODUCT, "count": count, "total": outputs}
    return network.factors(x, jnp.arange(outputs), **settings)


def factors_size(network: TracedNetwork, x: PyTree, outputs: int) -> int:
    """Return the number of entries of the factors of `cache_factors`, from their shapes."""
    one = jax.eval_shape(lambda: cache_factors(network, examples.take_slice(x, 0, 1), outputs))
    return examples.num_examples(x) * sum(leaf.size for leaf in jax.tree.leaves(one))


def _multiply(factors: Factors, v: Float[Array, "N o"]) -> Float[Array, "N o"]:
    """Compute J (J^T v), summed over layers. J^T v has the shape of the layer's parameters."""
    total = jnp.zeros_like(v)
    for a, g in factors.dense:
        weight = a.T @ jnp.einsum("noe,no->ne", g, v)
        total += jnp.einsum("noe,ne->no", g, a @ weight)
    for a, g in factors.positions:
        weight = jnp.einsum("nsd,nse->de", a, jnp.einsum("nsoe,no->nse", g, v))
        total += jnp.einsum("nsoe,nse->no", g, jnp.einsum("nsd,de->nse", a, weight))
    for rows in factors.rows:
        rows = rows.reshape(v.size, -1)
        total += (rows @ (v.reshape(-1) @ rows)).reshape(v.shape)
    for indices, g in factors.lookups:
        # Only rows that are looked up need a slot, which are no more than there are positions.
        flat = indices.reshape(-1)
        slots = jnp.searchsorted(jnp.sort(flat), flat).reshape(indices.shape)
        pulled = jnp.einsum("nsoe,no->nse", g, v)
        table = jnp.zeros((indices.size, g.shape[3]), g.dtype).at[slots].add(pulled)
        total += jnp.einsum("nsoe,nse->no", g, table[slots])
    return total
