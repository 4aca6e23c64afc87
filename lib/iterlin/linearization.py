"""First-order expansion of a network in its parameters, and products with its Jacobian.

f(params, x) is any pure function from inputs (N, ...) to outputs (N, O); params is any pytree.
The Jacobian J = d f / d params, of shape (N O, P), is never formed unless `jacobian` is called.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, Shaped

from iterlin.validation import is_traced

Network = Callable[[PyTree, Any], Array]


def tree_sub(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, a, b)


def tree_add(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)


def linearize(f: Network, params: PyTree) -> Network:
    """The proxy model f_lin(theta, x) = f(params, x) + J(x) (theta - params), eq. (1) of the paper.

    Returns a pure function of the same signature as f; one Jacobian-vector product a call, and
    nothing is stored. It is exact where f is affine in its parameters.
    """

    def f_lin(theta: PyTree, x: Any) -> Array:
        outputs, tangents = jax.jvp(lambda p: f(p, x), (params,), (tree_sub(theta, params),))
        return outputs + tangents

    return f_lin


class JacobianProducts(NamedTuple):
    """Outputs f(params, x) of shape (N, O) and the two products with J at that point.

    jvp maps a pytree like params to J v, of shape (N, O); vjp maps (N, O) to J^T u, a pytree.
    """

    outputs: Array
    jvp: Callable[[PyTree], Array]
    vjp: Callable[[Array], PyTree]


def jacobian_products(f: Network, params: PyTree, x: Any) -> JacobianProducts:
    """J v and J^T u at (params, x), both from one primal pass, whose activations they share."""
    outputs, jvp = jax.linearize(lambda p: f(p, x), params)
    transpose = jax.linear_transpose(jvp, params)
    return JacobianProducts(outputs, jvp, lambda u: transpose(u)[0])


def jacobian(
    f: Network, params: PyTree, x: Any, *, independent: bool = True
) -> Float[Array, "NO P"]:
    """The dense Jacobian, rows ordered example by example, columns as `ravel_pytree` orders params.

    Takes N O P numbers of memory. With `independent` examples each row is taken from its own
    example, which costs N O backward passes of one example rather than of N; pass False for an f
    that couples its examples (batch normalisation in training mode, or an f that ignores x).

    Raises ValueError if `independent` is claimed of an f that couples its examples.
    """
    if independent:
        require_independent(f, params, x)
        rows = jacobian_rows(f, params, x)
        return rows.reshape(-1, rows.shape[-1])
    flat, unravel = ravel_pytree(params)
    outputs = jax.eval_shape(f, params, x)
    differentiate = jax.jacrev if outputs.size <= flat.size else jax.jacfwd
    return differentiate(lambda p: f(unravel(p), x).reshape(-1))(flat)


def jacobian_rows(
    f: Network, params: PyTree, x: Shaped[Array, "N ..."], outputs: slice = slice(None)
) -> Float[Array, "N o P"]:
    """Rows of J for the examples x and a slice of the outputs, each from its own example."""
    flat, unravel = ravel_pytree(params)

    def rows_of(example):
        value, vjp = jax.vjp(lambda p: f(unravel(p), example[None])[0], flat)
        basis = jnp.eye(value.size, dtype=value.dtype)[outputs]
        return jax.vmap(lambda u: vjp(u)[0])(basis)

    return jax.vmap(rows_of)(x)


def require_independent(f: Network, params: PyTree, x: Shaped[Array, "N ..."]) -> None:
    """Refuses an f whose output for one example depends on the others; ValueError says so.

    Shapes are always checked, values only where they are concrete (not while JAX traces).
    """
    batch, single = jax.eval_shape(f, params, x), jax.eval_shape(f, params, x[:1])
    coupled = single.shape != (1, *batch.shape[1:])
    if not coupled and not any(is_traced(leaf) for leaf in [x, *jax.tree.leaves(params)]):
        # Two of them show a coupling as well as all, whose activations may not fit.
        alone, together = f(params, x[:1])[0], f(params, x[:2])[0]
        scale = jnp.max(jnp.abs(together)) + jnp.max(jnp.abs(alone))
        tolerance = 1e3 * jnp.finfo(batch.dtype).eps * jnp.maximum(scale, 1e-30)
        agree = jnp.all(jnp.abs(alone - together) <= tolerance)
        # One example alone may be NaN (a batch of one has no variance); a NaN network is no proof.
        coupled = bool(~agree & jnp.all(jnp.isfinite(together)))
    if coupled:
        raise ValueError(
            "f couples its examples: its outputs for one of them depend on the others, so rows of "
            "the Jacobian cannot be taken example by example; pass independent=False to `jacobian`"
        )
