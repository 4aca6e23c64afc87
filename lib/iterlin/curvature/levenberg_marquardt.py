"""Levenberg-Marquardt rule: a damping that adapts to how well the linearised model predicts."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from iterlin.linearise.compiled import as_argument
from iterlin.linearise.validation import check_positive


class DampingState(NamedTuple):
    """The damping of the next step.

    Attributes:
        value: The damping, in the units of J^T H J.
        growth: Factor by which a rejection of the next step multiplies the damping.
    """

    value: Float[Array, ""]
    growth: Float[Array, ""]

    def update(self, gain_ratio: Float[Array, ""], accepted: Bool[Array, ""]) -> "DampingState":
        """Return the damping after a step, from its actual / predicted decrease of the loss."""
        shrink = jnp.maximum(1 / 3, 1 - (2 * gain_ratio - 1) ** 3)
        growth = jnp.where(accepted, 2, 2 * self.growth).astype(self.growth.dtype)
        return DampingState(self.value * jnp.where(accepted, shrink, self.growth), growth)


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Adaptive damping for `gauss_newton` and `truncated_gauss_newton`.

    The gain ratio rho of a step is the actual decrease of the loss over the decrease that the
    undamped quadratic model predicts. An accepted step multiplies the damping by
    max(1/3, 1 - (2 rho - 1)^3). A step that would raise the loss is rejected: the parameters stay,
    and the damping is multiplied by 2, then by 4, 8, ... for further rejections in a row.

    Source: Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters;
    Nielsen (1999), Damping parameter in Marquardt's method.

    Args:
        start: Damping of the first step, in the units of J^T H J. For a loss divided by N, divide
            `start` by N, too.

    Raises:
        ValueError: If start is not one positive and finite number.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"damping": il.LevenbergMarquardt(10.0), "max_steps": 50, "tolerance": 1e-6}
    >>> print(il.gauss_newton(f, jnp.zeros(2), x, y, **settings).params.round(3))
    [0.    1.099]
    """

    start: float = 1.0

    def __post_init__(self):
        check_positive("start of the damping", self.start, scalar=True)

    def initial_state(self, dtype) -> DampingState:
        """Return the damping of the first step, in the given floating point type."""
        return DampingState(as_argument(self.start, dtype), jnp.asarray(2, dtype))
