"""Conjugate gradients and power iteration, for operators that are known by their products alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearise.validation import check_positive_integer


def conjugate_gradients(
    residual: Any,
    *,
    image: Callable[[PyTree], Any],
    gradient: Callable[[Any], PyTree],
    curvature: Callable[[PyTree, Any], Array],
    inner: Callable[[PyTree, PyTree], Array],
    tolerance,
    max_steps: int,
) -> tuple[PyTree, Array]:
    """s from 0 until ||gradient(r)|| is at most `tolerance` of what it was; s and its steps.

    A step takes s to s + alpha d and the residual r to r - alpha image(d), with the direction's
    curvature(d, image(d)). For A s = b with A symmetric, r = b - A s: image A d, the gradient r
    itself, the curvature <d, A d> (Hestenes & Stiefel 1952). For least squares ||J s - b||, r lives
    in the range of J: image J d, gradient J^T r, curvature ||J d||^2 (CGLS, there too); nothing is
    squared, and the iterates stay in the range of J^T.
    """
    first = gradient(residual)
    squared = inner(first, first)
    target = tolerance**2 * squared

    def going(carry):
        *_, squared, count = carry
        return (squared > target) & (count < max_steps)

    def step(carry):
        s, residual, direction, squared, count = carry
        moved = image(direction)
        alpha = squared / curvature(direction, moved)
        s, residual = axpy(alpha, direction, s), axpy(-alpha, moved, residual)
        slope = gradient(residual)
        new = inner(slope, slope)
        return s, residual, axpy(new / squared, direction, slope), new, count + 1

    start = (jax.tree.map(jnp.zeros_like, first), residual, first, squared, 0)
    s, *_, count = jax.lax.while_loop(going, step, start)
    return s, count


def power_iteration(
    product: Callable[[Array], Array], start: Float[Array, "..."], iterations: int
) -> tuple[Float[Array, ""], Float[Array, "..."]]:
    """The largest eigenvalue of a positive semidefinite operator, from below, and its direction:
    ||product(v)|| for the v of norm 1 that the products before have led to. Raises ValueError for
    a number of iterations that is not a positive integer."""
    check_positive_integer("iterations", iterations)

    def iterate(_, carry):
        v, _ = carry
        moved = product(v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny))
        return moved, jnp.linalg.norm(moved)

    zero = jnp.zeros((), start.dtype)
    direction, value = jax.lax.fori_loop(0, iterations, iterate, (start, zero))
    return value, direction


def axpy(scale, a: PyTree, b: PyTree) -> PyTree:
    """scale a + b."""
    return jax.tree.map(lambda u, v: scale * u + v, a, b)


def dot(a: PyTree, b: PyTree) -> Array:
    """The inner product of two pytrees of one structure."""
    return sum(jnp.sum(u * v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def norm(tree: PyTree) -> Array:
    return jnp.sqrt(dot(tree, tree))
