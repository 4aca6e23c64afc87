"""The convex problem that a step of iterative linearisation works on, as optimisers may ask it."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, PyTree

from iterlin.linearise.linearization import tree_sub
from iterlin.training.algorithm import Algorithm


@dataclass(frozen=True)
class LinearProblem:
    """The objective of a batch, linearised at the anchor, as a function of theta.

    Args:
        algorithm: What is minimised, penalty and regularizer included.
        anchor: The point of expansion theta_s.
        x: Inputs of the batch.
        y: Targets of the batch.
        extra: What the network takes beside params and x: running statistics and a key.
        linearizing: Whether the anchor is new in this step.
    """

    algorithm: Algorithm
    anchor: PyTree
    x: PyTree
    y: PyTree
    extra: tuple[PyTree, ...]
    linearizing: Bool[Array, ""]

    def outputs(self, theta: PyTree) -> Array:
        """Return the outputs of the proxy."""
        network = lambda p: self.algorithm.in_training(p, self.x, self.extra)[0]  # noqa: E731
        displacement = tree_sub(theta, self.anchor)
        outputs, moved = jax.jvp(network, (self.anchor,), (displacement,))
        return outputs + moved

    def __call__(self, theta: PyTree) -> Array:
        value = self.algorithm.loss(self.outputs(theta), self.y)
        if self.algorithm.has_further_terms:
            value = value + self.algorithm.further_terms(theta, self.anchor)
        return value
