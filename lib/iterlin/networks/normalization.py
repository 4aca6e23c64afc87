"""Batch normalisation, and networks that have it.

In training it couples the examples of a batch, through its mean and variance. Such a network is
still a pure function of (params, x), and what it adds is kept apart, in `Normalization`: the
statistics a batch had, and the network evaluated with running ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.parameters import bound
from iterlin.validation import open_unit

NORMALIZATIONS = (None, "batch", "frozen")

# Added to the variance before the root.
EPSILON = 1e-5


class Normalization(NamedTuple):
    """What batch normalisation adds to a network.

    initial: running statistics to begin with, a pytree of means and variances of channels.
    apply(params, x) -> (outputs, batch statistics): the network in training mode and, without a
    derivative, what `update_statistics` takes; for ``jax.linearize(..., has_aux=True)``. Of a
    network with noise it is apply(params, x, key).
    evaluate(params, statistics, x) -> outputs: with running statistics, each example by itself.
    """

    initial: PyTree
    apply: Callable[[PyTree, Array], tuple[Array, PyTree]]
    evaluate: Callable[[PyTree, PyTree, Array], Array]

    def bound(self, fixed: PyTree) -> "Normalization":
        """The same of the moving parameters, with the fixed ones as they are."""
        return self._replace(apply=bound(self.apply, fixed), evaluate=bound(self.evaluate, fixed))

    def update(self, running: PyTree, batch: PyTree) -> PyTree:
        """Running statistics after one more batch, as training keeps them."""
        return update_statistics(running, batch)


class NormalizedModel(NamedTuple):
    """A `mlp.Model` whose apply may couple its examples; normalization is None without."""

    init: Callable[[Array], PyTree]
    apply: Callable[[PyTree, Array], Array]
    normalization: Normalization | None


def normalize(
    h: Float[Array, "*N C"],
    mean: Float[Array, " C"],
    variance: Float[Array, " C"],
    scale: Float[Array, " C"],
    bias: Float[Array, " C"],
) -> Float[Array, "*N C"]:
    """scale (h - mean) / sqrt(variance + 1e-5) + bias, channel by channel."""
    align = (1,) * (h.ndim - 1) + (-1,)
    factor = (scale / jnp.sqrt(variance + EPSILON)).reshape(align)
    return (h - mean.reshape(align)) * factor + bias.reshape(align)


def update_statistics(running: PyTree, batch: PyTree, momentum: float = 0.9) -> PyTree:
    """Running statistics after one more batch: momentum * running + (1 - momentum) * batch.

    Raises ValueError unless momentum lies strictly between 0 and 1.
    """
    open_unit("momentum", momentum)
    return jax.tree.map(lambda r, b: momentum * r + (1 - momentum) * b, running, batch)
