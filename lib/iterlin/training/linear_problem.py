"""The convex problem that a step of iterative linearisation works on, as optimisers may ask it."""

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Bool, PyTree

from iterlin.linearise.linearization import tree_sub


@dataclass(frozen=True)
class LinearProblem:
    """What a step minimises, as a function of theta: the objective of its batch, linearised at the
    anchor, penalty and regularizer included. extra: what the network takes beside params and x, the
    running statistics and a key. linearizing: whether the anchor is of this step."""

    algorithm: Any  # `algorithm.Algorithm`
    anchor: PyTree
    x: PyTree
    y: PyTree
    extra: tuple[PyTree, ...]
    linearizing: Bool[Array, ""]

    def outputs(self, theta: PyTree) -> Array:
        """Those of the proxy."""
        network = lambda p: self.algorithm.trained(p, self.x, self.extra)[0]  # noqa: E731
        displacement = tree_sub(theta, self.anchor)
        outputs, moved = jax.jvp(network, (self.anchor,), (displacement,))
        return outputs + moved

    def __call__(self, theta: PyTree) -> Array:
        value = self.algorithm.loss(self.outputs(theta), self.y)
        if self.algorithm.has_further_terms:
            value = value + self.algorithm.further_terms(theta, self.anchor)
        return value
