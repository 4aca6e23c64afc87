"""When a linear problem counts as solved."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree

from iterlin.linearization import Network
from iterlin.losses import Loss
from iterlin.slices import in_slices, loss_over_slices


class Solved(NamedTuple):
    """When a linear problem counts as solved, looked at every `check_every` steps.

    accuracy: the proxy classifies at least this fraction of the training examples; None leaves it
    out. gradient: the norm of the proxy objective's gradient over all examples, penalty included,
    has fallen to this fraction of what it was at theta_s; None leaves it out. Either suffices. With
    cross-entropy and no penalty a linear model that separates the data has no minimiser, so that
    'solve completely' means nothing without such a rule. slice_size: examples looked at together.
    """

    check_every: int
    accuracy: float | None = 1.0
    gradient: float | None = None
    slice_size: int = 500

    def met(
        self,
        proxy: Network,
        loss: Loss,
        add_penalty: Callable[[PyTree, PyTree], PyTree],
        params: PyTree,
        anchor: PyTree,
        data: tuple[Array, Array],
    ) -> Bool[Array, ""]:
        """Whether params solve the problem of the proxy at the anchor, on all of data = (x, y).

        add_penalty(gradient, theta) adds the penalty's gradient at theta.
        """
        x, y = data
        solved = jnp.asarray(False)
        if self.accuracy is not None:
            sliced = in_slices(proxy, self.slice_size)
            solved |= jnp.mean(jnp.argmax(sliced(params, x), -1) == y) >= self.accuracy
        if self.gradient is not None:

            def norm(theta):
                def gradient_of(loss, x, y):
                    return jax.grad(lambda p: loss(proxy(p, x), y))(theta)

                gradient = loss_over_slices(gradient_of, loss, self.slice_size, x, y)
                return optax.tree.norm(add_penalty(gradient, theta))

            solved |= norm(params) <= self.gradient * norm(anchor)
        return solved
