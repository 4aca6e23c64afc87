"""The convex problem that a step of iterative linearisation works on, as optimisers may ask it."""

from dataclasses import dataclass
from typing import Any

import jax
import optax
from jaxtyping import Array, Bool, PyTree

from iterlin.linearization import tree_sub


@dataclass(frozen=True)
class LinearProblem:
    """What a step minimises, as a function of theta: the objective of its batch, linearised at the
    anchor, penalty and regularizer included. linearizing: whether the anchor is of this step."""

    algorithm: Any  # `algorithm.Algorithm`
    anchor: PyTree
    x: PyTree
    y: PyTree
    drawn: tuple[Array, ...]
    linearizing: Bool[Array, ""]

    def outputs(self, theta: PyTree) -> Array:
        """Those of the proxy."""
        network = lambda p: self.algorithm.trained(p, self.x, self.drawn)[0]  # noqa: E731
        displacement = tree_sub(theta, self.anchor)
        outputs, moved = jax.jvp(network, (self.anchor,), (displacement,))
        return outputs + moved

    def __call__(self, theta: PyTree) -> Array:
        algorithm = self.algorithm
        value = algorithm.loss(self.outputs(theta), self.y)
        if algorithm.penalized:
            squared = optax.tree.norm(tree_sub(theta, self.anchor), squared=True)
            value = value + algorithm.penalty * squared
        return value if algorithm.regularizer is None else value + algorithm.regularizer(theta)
