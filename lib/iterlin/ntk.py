"""The empirical neural tangent kernel J J^T (eq. 5) within a memory bound; measures of its change.

Examples must not be coupled by f (no batch normalisation in training mode): each row of J is
taken from its own example.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from iterlin.kernels.blocks import assemble
from iterlin.kernels.factors import PAIRWISE, factors
from iterlin.linearization import Network, jacobian_products, require_independent
from iterlin.runtime.precision import full_precision


@full_precision()
def empirical_ntk(
    f: Network,
    params: PyTree,
    x1: Shaped[Array, "N1 ..."],
    x2: Shaped[Array, "N2 ..."] | None = None,
    *,
    trace: bool = False,
    diagonal: bool = False,
    memory_limit: int = 2**28,
) -> Float[Array, "..."]:
    """Theta(x1, x2) = J(x1) J(x2)^T, eq. (5); nothing is divided by N or by the outputs O.

    Returns (N1, N2, O, O); with `diagonal` each output with itself alone, (N1, N2, O); with `trace`
    the sum of these over outputs, (N1, N2). x2=None means x1, and then each pair of blocks is
    computed once. f may be any function, but its dense and convolutional layers never have their
    rows of J formed where their inputs and cotangents do with less (see `kernels.layers`). As under
    ``jax.jit``, f is compiled once: what it closes over must not change.

    `memory_limit` bounds, in bytes, the inputs, cotangents and rows of J kept at a time; the result
    and the activations of a few examples come on top. Not for f that couples examples.

    Raises ValueError if both trace and diagonal are asked for, if the bound does not hold one
    output of two examples, or if f couples its examples.
    """
    if trace and diagonal:
        raise ValueError("trace and diagonal are two forms of the kernel: ask for one of them")
    form = "trace" if trace else "diagonal" if diagonal else "full"
    return _kernel(f, params, x1, x2, form, memory_limit)


@full_precision()
def ntk_matrix(
    f: Network,
    params: PyTree,
    x1: Shaped[Array, "N1 ..."],
    x2: Shaped[Array, "N2 ..."] | None = None,
    *,
    memory_limit: int = 2**28,
) -> Float[Array, "N1O N2O"]:
    """`kernel_matrix` of the full `empirical_ntk`, at once: without its copy in another order."""
    kernel = _kernel(f, params, x1, x2, "matrix", memory_limit)
    return kernel.reshape(kernel.shape[0] * kernel.shape[1], -1)


def _kernel(f, params, x1, x2, form: str, memory_limit: int) -> Array:
    """In parts of the outputs, if the factors of all of them do not fit into the bound at once."""
    f = _hashable(f)
    compiled = jax.jit(f)
    require_independent(compiled, params, x1)
    outputs = compiled.eval_shape(params, x1)
    basis = jnp.eye(outputs.shape[1], dtype=outputs.dtype)
    count = len(x1 if x2 is None else x2)
    factors_of = partial(factors, f, params, form=form, count=count, total=len(basis))
    part, size = _largest_part(factors_of, x1, basis, memory_limit)
    whole = len(x1) + (0 if x2 is None else count)
    group = whole if size * whole <= memory_limit else memory_limit // (2 * size)
    dtype = jnp.result_type(*jax.tree.leaves(params))

    def between(first, second):
        same = x2 is None and first is second
        other = None if same else (x1 if x2 is None else x2, second)
        return assemble(factors_of, (x1, first), other, group, form, dtype)

    parts = [basis[start : start + part] for start in range(0, len(basis), part)]
    if form in PAIRWISE:
        axes = (2, 3) if form == "full" else (1, 3)
        rows = [jnp.concatenate([between(a, b) for b in parts], axes[1]) for a in parts]
        return jnp.concatenate(rows, axes[0])
    found = [between(outputs, outputs) for outputs in parts]
    return sum(found[1:], found[0]) if form == "trace" else jnp.concatenate(found, 2)


def _hashable(f: Network) -> Network:
    try:
        hash(f)
    except TypeError:
        return lambda params, x: f(params, x)
    return f


def _largest_part(factors_of, x, basis, memory_limit: int) -> tuple[int, int]:
    """How many outputs at a time, and the bytes that one example's factors then take."""

    def size(part):
        shapes = jax.eval_shape(factors_of, x[:1], basis[:part])
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    part = len(basis)
    while (taken := 2 * size(part)) > memory_limit and part > 1:
        part = (part + 1) // 2
    if taken > memory_limit:
        raise ValueError(
            f"memory_limit of {memory_limit} bytes is below the {taken} that one output of two "
            "examples takes"
        )
    return part, max(1, taken // 2)


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


def kernel_matrix(kernel: Float[Array, "N1 N2 O O"]) -> Float[Array, "N1O N2O"]:
    """The (N1 O, N2 O) matrix form of a full kernel, rows ordered as those of the Jacobian."""
    n1, n2, o1, o2 = kernel.shape
    return kernel.transpose(0, 2, 1, 3).reshape(n1 * o1, n2 * o2)
