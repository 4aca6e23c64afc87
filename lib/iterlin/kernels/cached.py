"""J J^T cached for many products with it: as a matrix, or as the factors of its layers.

A product with the matrix reads (N O)^2 numbers. The factors are the inputs and cotangents of each
layer or, for a small layer with many positions, its rows of J. Their size is proportional to N. A
product reads them twice, for J^T v and for J (J^T v). For more than some hundred examples this is
less to read, and the products of all pairs of examples are not computed.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from iterlin.kernels.factors import Factors, TracedNetwork
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


class CachePlan(NamedTuple):
    """The form in which to cache J J^T.

    Attributes:
        network: The network traced for one example.
        matrix: The size of the matrix, in bytes.
        factors: The size of the factors, in bytes.
        form: "matrix" or "factors", or None if neither fits into the memory limit.
    """

    network: TracedNetwork
    matrix: int
    factors: int
    form: str | None


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
