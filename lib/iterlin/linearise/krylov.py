"""Conjugate gradients and power iteration for operators given by their products alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearise.precision import widened
from iterlin.linearise.validation import check_positive_integer


def conjugate_gradients(
    residual: Any,
    *,
    image: Callable[[PyTree], Any],
    inner: Callable[[Any, Any], Array],
    tolerance,
    max_steps: int,
    gradient: Callable[[Any], PyTree] | None = None,
) -> tuple[PyTree, Array]:
    """Solve a linear system or a least-squares problem by conjugate gradients, starting at 0.

    A step takes the solution s to s + alpha d and the residual r to r - alpha image(d).

    - For A s = b with A symmetric positive definite: r = b - A s, image d -> A d, no gradient
      (Hestenes & Stiefel 1952).
    - For least squares ||J s - b||: r = b - J s, image d -> J d, gradient r -> J^T r (CGLS, same
      source). J^T J is not formed, and s stays in the range of J^T.

    It stops when the norm of the gradient, or of the residual if there is none, is at most the
    tolerance times its first value. Returns the solution s and the number of steps taken.
    """
    first = gradient(residual) if gradient else residual
    squared = inner(first, first)
    target = tolerance**2 * squared

    def unfinished(carry):
        *_, squared, count = carry
        return (squared > target) & (count < max_steps)

    def step(carry):
        s, residual, direction, squared, count = carry
        moved = image(direction)
        alpha = squared / inner(moved if gradient else direction, moved)
        s, residual = axpy(alpha, direction, s), axpy(-alpha, moved, residual)
        slope = gradient(residual) if gradient else residual
        new = inner(slope, slope)
        return s, residual, axpy(new / squared, direction, slope), new, count + 1

    start: tuple[Any, ...] = (jax.tree.map(jnp.zeros_like, first), residual, first, squared, 0)
    s, *_, count = jax.lax.while_loop(unfinished, step, start)
    return s, count


def power_iteration(
    product: Callable[[Array], Array], start: Float[Array, "..."], iterations: int
) -> tuple[Float[Array, ""], Float[Array, "..."]]:
    """Estimate the largest eigenvalue of a positive semidefinite operator by power iteration.

    Returns ||product(v)|| for the last direction v of norm 1, which is at most the largest
    eigenvalue, and product(v). The first direction, `start`, may have any norm.
    """
    check_positive_integer("iterations", iterations)

    def iterate(_, carry):
        v, _ = carry
        wide = widened(v)
        unit = wide / jnp.maximum(jnp.linalg.norm(wide), jnp.finfo(wide.dtype).tiny)
        moved = product(unit.astype(v.dtype))
        return moved, jnp.linalg.norm(widened(moved))

    zero = widened(jnp.zeros((), start.dtype))
    direction, value = jax.lax.fori_loop(0, iterations, iterate, (start, zero))
    return value, direction


def axpy(scale, a: PyTree, b: PyTree) -> PyTree:
    """Return scale a + b for two pytrees of the same structure, in the types of b."""
    return jax.tree.map(lambda u, v: (scale * u + v).astype(v.dtype), a, b)


def dot(a: PyTree, b: PyTree) -> Array:
    """Return the inner product of two pytrees of the same structure, a scalar."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    products = [jnp.sum(widened(u) * widened(v)) for u, v in pairs]
    return sum(products[1:], products[0])


def norm(tree: PyTree) -> Array:
    """Return the Euclidean norm of all entries of a pytree, a scalar."""
    return jnp.sqrt(dot(tree, tree))
