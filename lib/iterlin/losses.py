"""Losses of outputs (N, O), summed over the examples; `mean` divides by N.

`mean` of a loss is what an image experiment trains on (a minibatch is then an unbiased estimate);
the theory of Gauss-Newton and of the closed forms uses the sums.
"""

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Shaped

from iterlin.validation import same_shape

Loss = Callable[[Array, Array], Array]


def squared_error(outputs: Float[Array, "N O"], targets: Float[Array, "N O"]) -> Float[Array, ""]:
    """1/2 ||outputs - targets||^2, summed over examples and outputs; not divided by N.

    Raises ValueError if the shapes differ: broadcasting (N, 1) with (N,) would hide an error.
    """
    same_shape(outputs, targets)
    return 0.5 * jnp.sum((outputs - targets) ** 2)


def cross_entropy(outputs: Float[Array, "N O"], targets: Shaped[Array, " N"]) -> Float[Array, ""]:
    """-sum_n log softmax(outputs_n)[targets_n] for integer labels (N,); not divided by N.

    The softmax belongs to the loss, so that linearising the network leaves probabilities intact
    (paper, section 3 and appendix A). Raises ValueError if targets are not N integers.
    """
    if targets.shape != outputs.shape[:1] or not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"targets must be {outputs.shape[0]} integer labels, "
            f"got shape {targets.shape} of {targets.dtype}"
        )
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(outputs, targets))


def mean(loss: Loss) -> Loss:
    """The same loss divided by the number of examples N."""

    def mean_loss(outputs, targets):
        return loss(outputs, targets) / outputs.shape[0]

    return mean_loss


def accuracy(outputs: Float[Array, "N O"], targets: Shaped[Array, " N"]) -> Float[Array, ""]:
    """Fraction of examples whose largest output is the labelled one."""
    return jnp.mean(jnp.argmax(outputs, axis=-1) == targets)
