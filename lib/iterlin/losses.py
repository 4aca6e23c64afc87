"""Losses of outputs (N, O), summed over the examples; `mean` divides by N.

`mean` of a loss is what an image experiment trains on (a minibatch is then an unbiased estimate);
the theory of Gauss-Newton and of the closed forms uses the sums.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree, Shaped

from iterlin.runtime.slices import sum_over_slices
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


@dataclass(frozen=True)
class Mean:
    """A loss that is a sum over the examples, divided by their number N."""

    total: Loss

    def __call__(self, outputs, targets):
        return self.total(outputs, targets) / outputs.shape[0]


def mean(loss: Loss) -> Loss:
    """The same loss divided by the number of examples N."""
    return Mean(loss)


def as_sum(loss: Loss) -> Loss | None:
    """The sum over examples that `loss` is, or is the mean of; None if it is not known to be one.

    Only of such a loss may the gradient be had from some examples at a time.
    """
    total = loss.total if isinstance(loss, Mean) else loss
    return total if total in (squared_error, cross_entropy) else None


def loss_over_slices(
    term: Callable[[Loss, Array, Array], PyTree], loss: Loss, size: int | None, x: Array, y: Array
) -> PyTree:
    """term(loss, x, y), a pytree linear in the loss such as its gradient, slice by slice.

    That needs a loss known to be a sum over examples or the mean of one (`as_sum`); with any
    other, or with size None, it is term(loss, x, y) itself.
    """
    total = as_sum(loss)
    if total is None or size is None:
        return term(loss, x, y)
    summed = sum_over_slices(lambda *part: term(total, *part), size, x, y)
    if isinstance(loss, Mean):
        summed = jax.tree.map(lambda leaf: leaf / len(y), summed)
    return summed


def accuracy(outputs: Float[Array, "N O"], targets: Shaped[Array, " N"]) -> Float[Array, ""]:
    """Fraction of examples whose largest output is the labelled one."""
    return jnp.mean(jnp.argmax(outputs, axis=-1) == targets)
