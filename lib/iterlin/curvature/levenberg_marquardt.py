"""Damping that follows how well the linearised model predicts what a step does."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from iterlin.linearise.validation import check_positive, check_scalar


class Damping(NamedTuple):
    """The damping of the next step, and what a rejection of that step would multiply it by."""

    value: Float[Array, ""]
    growth: Float[Array, ""]


@dataclass(frozen=True)
class LevenbergMarquardt:
    """The damping of a step is chosen by how the step before turned out; the first is `start`.

    With the gain rho = actual / predicted decrease of the loss, the prediction being that of the
    undamped quadratic model, an accepted step multiplies the damping by
    max(1/3, 1 - (2 rho - 1)^3). A step that would not decrease the loss is rejected, and multiplies
    the damping by 2, the next one in a row by 4, then by 8 (Marquardt 1963; Nielsen 1999). It is in
    the units of J^T H J: for a loss divided by N, divide `start` by N, too.

    Raises ValueError for a start that is not one positive and finite number.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"damping": il.LevenbergMarquardt(10.0), "max_steps": 50, "tolerance": 1e-6}
    >>> print(il.gauss_newton(f, jnp.zeros(2), x, y, **settings).params.round(3))
    [0.    1.099]
    """

    start: float = 1.0

    def __post_init__(self):
        check_positive("start of the damping", self.start)
        check_scalar("start of the damping", self.start)

    def begin(self, dtype) -> Damping:
        return Damping(jnp.asarray(self.start, dtype), jnp.asarray(2, dtype))

    def after(self, damping: Damping, gain: Float[Array, ""], accepted: Bool[Array, ""]) -> Damping:
        """What follows a step of that gain."""
        value, growth = damping
        factor = jnp.where(accepted, jnp.maximum(1 / 3, 1 - (2 * gain - 1) ** 3), growth)
        return Damping(value * factor, jnp.where(accepted, 2, 2 * growth).astype(growth.dtype))
