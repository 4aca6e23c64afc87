"""The convex problem of a step, which optimisers such as line searches can evaluate."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, PyTree

from iterlin.linearise.linearization import tree_sub
from iterlin.training.algorithm import Algorithm


@dataclass(frozen=True)
class LinearProblem:
    """The objective of a batch, linearised at the anchor, as a function of theta.

    Args:
        algorithm: The objective, including penalty and regularizer.
        anchor: The point of expansion theta_s.
        x: Inputs of the batch.
        y: Targets of the batch.
        extra: Further arguments of the network: running statistics and a PRNG key.
        linearizing: Whether the anchor is new in this step.
    """

    algorithm: Algorithm
    anchor: PyTree
    x: PyTree
    y: PyTree
    extra: tuple[PyTree, ...]
    linearizing: Bool[Array, ""]

    def outputs(self, theta: PyTree) -> Array:
        """Return the outputs of the proxy, f(theta_s) + J_s (theta - theta_s), on the batch.

        Args:
            theta: The parameters.
        """
        network = lambda p: self.algorithm.in_training(p, self.x, self.extra)[0]  # noqa: E731
        displacement = tree_sub(theta, self.anchor)
        outputs, change = jax.jvp(network, (self.anchor,), (displacement,))
        return outputs + change

    def __call__(self, theta: PyTree) -> Array:
        """Return the objective of the proxy on the batch, a scalar.

        Args:
            theta: The parameters.
        """
        value = self.algorithm.loss(self.outputs(theta), self.y)
        if self.algorithm.has_further_terms:
            value = value + self.algorithm.further_terms(theta, self.anchor)
        return value
