"""Batch normalisation, and networks that have it.

In training it couples the examples of a batch, through their mean and variance. Such a network is
still a pure function, of (params, statistics, x): `Normalization` has its two modes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearise.parameters import bind_fixed

NORMALIZATIONS = (None, "batch", "frozen")

# Added to the variance before the root.
EPSILON = 1e-5


class Normalization(NamedTuple):
    """The two modes of a network with running statistics.

    initial: the running statistics to begin with, a pytree of arrays.
    apply(params, statistics, x) -> (outputs, statistics): the network in training, and the running
    statistics after this batch, which carry no derivative. Of a network with noise it is
    apply(params, statistics, x, key).
    evaluate(params, statistics, x) -> outputs: the network in evaluation, each example by itself.
    """

    initial: PyTree
    apply: Callable[..., tuple[Array, PyTree]]
    evaluate: Callable[[PyTree, PyTree, Array], Array]

    def bind_fixed(self, fixed: PyTree) -> "Normalization":
        """The same of the moving parameters, with the fixed ones as they are."""
        return self._replace(
            apply=bind_fixed(self.apply, fixed), evaluate=bind_fixed(self.evaluate, fixed)
        )


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
