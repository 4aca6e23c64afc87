"""The empirical neural tangent kernel J J^T (eq. 5) within a memory bound; measures of its change.

Examples must not be coupled by f (no batch normalisation in training mode): each row of J is
taken from its own example.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearization import (
    Network,
    jacobian_products,
    jacobian_rows,
    require_independent,
)


def empirical_ntk(
    f: Network,
    params: PyTree,
    x1: Float[Array, "N1 ..."],
    x2: Float[Array, "N2 ..."] | None = None,
    *,
    trace: bool = False,
    memory_limit: int = 2**28,
) -> Float[Array, "..."]:
    """Theta(x1, x2) = J(x1) J(x2)^T, eq. (5); nothing is divided by N or by the outputs O.

    Returns (N1, N2, O, O), or with `trace` the sum over outputs of its diagonal, (N1, N2).
    x2=None means x1, and then each pair of blocks is computed once. `memory_limit` bounds, in
    bytes, the rows of J alive at a time; the result comes on top. Not for f that couples examples.

    Raises ValueError if the bound does not hold even two rows of J, or f couples its examples.
    """
    require_independent(f, params, x1)
    rows = _block_rows(params, memory_limit)
    blocks1 = list(_blocks(f, params, x1, rows))
    symmetric = x2 is None
    blocks2 = blocks1 if symmetric else list(_blocks(f, params, x2, rows))
    outputs = jax.eval_shape(f, params, x1).shape[1]
    n1, n2 = x1.shape[0], (x1 if symmetric else x2).shape[0]
    dtype = jnp.result_type(*jax.tree.leaves(params))
    kernel = jnp.zeros((n1, n2) if trace else (n1, n2, outputs, outputs), dtype)
    for i, (e1, o1) in enumerate(blocks1):
        rows1 = jacobian_rows(f, params, x1[e1], o1)
        for j, (e2, o2) in enumerate(blocks2):
            if (trace and o1 != o2) or (symmetric and j < i):
                continue
            shared = symmetric and i == j
            rows2 = rows1 if shared else jacobian_rows(f, params, (x1 if symmetric else x2)[e2], o2)
            if trace:
                block = jnp.einsum("iop,jop->ij", rows1, rows2)
                kernel = kernel.at[e1, e2].add(block)
                if symmetric and not shared:
                    kernel = kernel.at[e2, e1].add(block.T)
            else:
                block = jnp.einsum("iop,jqp->ijoq", rows1, rows2)
                kernel = kernel.at[e1, e2, o1, o2].set(block)
                if symmetric and not shared:
                    kernel = kernel.at[e2, e1, o2, o1].set(block.transpose(1, 0, 3, 2))
    return kernel


def _block_rows(params, memory_limit) -> int:
    """Rows of J that fit twice (one block from each side) into the bound."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    rows = memory_limit // (2 * size)
    if rows < 1:
        raise ValueError(
            f"memory_limit of {memory_limit} bytes is below the {2 * size} that two rows of the "
            "Jacobian take"
        )
    return rows


def _blocks(f, params, x, rows):
    """Slices (examples, outputs) that hold at most `rows` rows of J each."""
    count, outputs = jax.eval_shape(f, params, x).shape
    output_step = min(outputs, rows)
    example_step = max(1, rows // output_step)
    for example in range(0, count, example_step):
        for output in range(0, outputs, output_step):
            yield (
                slice(example, min(example + example_step, count)),
                slice(output, min(output + output_step, outputs)),
            )


def ntk_product(f: Network, params: PyTree, x: Array) -> Callable[[Array], Array]:
    """The map v -> J J^T v on (N, O) arrays, without forming J: one VJP and one JVP a product."""
    products = jacobian_products(f, params, x)
    return lambda v: products.jvp(products.vjp(v))


def kernel_alignment(k1: Float[Array, "..."], k2: Float[Array, "..."]) -> Float[Array, ""]:
    """<K1, K2> / (||K1|| ||K2||) in the Frobenius inner product: 1 for proportional kernels."""
    return jnp.sum(k1 * k2) / (jnp.linalg.norm(k1.ravel()) * jnp.linalg.norm(k2.ravel()))


def kernel_drift(k0: Float[Array, "..."], k1: Float[Array, "..."]) -> Float[Array, ""]:
    """||K1 - K0|| / ||K0|| in the Frobenius norm: the relative change of the kernel."""
    return jnp.linalg.norm((k1 - k0).ravel()) / jnp.linalg.norm(k0.ravel())


def largest_eigenvalue(
    f: Network, params: PyTree, x: Array, key: Array, *, iterations: int = 30
) -> Float[Array, ""]:
    """lambda_max(J J^T) by power iteration from a random start; not divided by N."""
    product = ntk_product(f, params, x)
    shape = jax.eval_shape(f, params, x)
    start = jax.random.normal(key, shape.shape, shape.dtype)

    def step(v, _):
        w = product(v / jnp.linalg.norm(v))
        return w, jnp.linalg.norm(w)

    return jax.lax.scan(step, start, length=iterations)[1][-1]


def kernel_matrix(kernel: Float[Array, "N1 N2 O O"]) -> Float[Array, "N1O N2O"]:
    """The (N1 O, N2 O) matrix form of a full kernel, rows ordered as those of the Jacobian."""
    n1, n2, o1, o2 = kernel.shape
    return kernel.transpose(0, 2, 1, 3).reshape(n1 * o1, n2 * o2)
