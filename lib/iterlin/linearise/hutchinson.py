"""Stochastic estimates of the trace and the diagonal of a matrix that is known by its products."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from iterlin.linearise.compiled import SharedJit
from iterlin.linearise.precision import widened
from iterlin.linearise.validation import (
    check_positive_integer,
    check_random_key,
    check_same_tree,
)


class Estimate(NamedTuple):
    """Estimates of the trace and the diagonal of a matrix, with their standard errors.

    Attributes:
        trace: The trace, a scalar.
        trace_error: The standard error of the trace.
        diagonal: The diagonal, a pytree like the vectors.
        diagonal_error: The standard errors of the diagonal, a pytree like the vectors.
    """

    trace: Float[Array, ""]
    trace_error: Float[Array, ""]
    diagonal: PyTree
    diagonal_error: PyTree


def hutchinson(
    product: Callable[[PyTree], PyTree], like: PyTree, *, key: Array, num_samples: int
) -> Estimate:
    """Estimate the trace and the diagonal of a square matrix A from products v -> A v.

    Random signs v give the diagonal as the mean of v * (A v), and the trace as the mean of v . A v
    (Hutchinson 1990; Bekas, Kokiopoulou & Saad 2007). For a symmetric A the trace has the standard
    error sqrt(2 / num_samples) times the norm of what is off the diagonal. A is never formed:
    memory holds a few vectors.

    Args:
        product: The function v -> A v, such as `ntk_product`, `ggn_product`, `hessian_product` or
            `empirical_fisher_product` return. v is a pytree like `like`.
        like: A pytree of arrays (or of their shapes and dtypes) that a vector looks like: the
            outputs for a kernel, the trained parameters for a curvature matrix.
        key: PRNG key of the signs.
        num_samples: Number of products, at least 2.

    Returns:
        The estimates and their standard errors.

    Raises:
        ValueError: If num_samples is not an integer of at least 2, key is not a PRNG key, `like`
            does not hold floating point numbers, or product(v) is not a pytree of its shapes.

    >>> matrix = jnp.array([[3.0, 0.1], [0.1, 1.0]])
    >>> key = jax.random.key(0)
    >>> found = il.hutchinson(lambda v: matrix @ v, jnp.zeros(2), key=key, num_samples=100)
    >>> print(found.trace.round(1), found.diagonal.round(1), found.trace_error < 0.03)
    4.0 [3. 1.] True
    """
    check_positive_integer("num_samples", num_samples)
    num_samples = int(num_samples)
    if num_samples < 2:
        raise ValueError("num_samples must be at least 2, so that there is a standard error")
    check_random_key("key", key)
    shapes = jax.eval_shape(lambda tree: tree, like)
    if not jax.tree.leaves(shapes):
        raise ValueError("like holds no array")
    for leaf in jax.tree.leaves(shapes):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"like must hold floating point numbers, got {leaf.dtype}")
    check_same_tree("product(v)", jax.eval_shape(product, shapes), shapes)

    def sample(key):
        keys = optax.tree.split_key_like(key, shapes)
        v = jax.tree.map(lambda k, s: jax.random.rademacher(k, s.shape, s.dtype), keys, shapes)
        diagonal = jax.tree.map(lambda a, b: widened(a * b), v, product(v))
        return sum(map(jnp.sum, jax.tree.leaves(diagonal))), diagonal

    def add(carry, index_and_key):
        """Update mean and sum of squares by Welford's recurrence, which does not cancel."""
        mean, squares = carry
        index, key = index_and_key
        found = sample(key)
        moved = optax.tree.sub(found, mean)
        mean = jax.tree.map(lambda m, d: m + d / (index + 1), mean, moved)
        further = jax.tree.map(jnp.multiply, moved, optax.tree.sub(found, mean))
        return (mean, optax.tree.add(squares, further)), None

    def estimate(key):
        keys = jax.random.split(key, num_samples)
        shapes = jax.eval_shape(sample, keys[0])
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (mean, squares), _ = jax.lax.scan(add, (zeros, zeros), (jnp.arange(num_samples), keys))
        scale = float(num_samples) * (num_samples - 1)
        errors = jax.tree.map(lambda square: jnp.sqrt(square / scale), squares)
        return Estimate(mean[0], errors[0], mean[1], errors[1])

    return SharedJit(estimate)(key)
