"""Gradient flow of the linearised model, for any smooth loss and over very long times.

With u the outputs on the training examples and g the gradient of the loss, gradient flow of the
linearised model obeys du/dt = -J J^T g(u). The kernel's eigenvalues span many decades, so the flow
is stiff, but all its rates are real and negative. Stabilised explicit methods suit such problems. A
Runge-Kutta-Chebyshev step of s stages is stable up to h lambda_max = 0.65 (s^2 - 1), and thus
covers some s/3 times the time of s Euler steps. `advance` is RKC2 (Sommeijer, Shampine & Verwer
1998) with its error estimate. Power iteration tracks lambda_max: as the examples are fitted, the
Hessian of cross-entropy shrinks and the steps grow.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from iterlin.exact.linear_model import LinearModel
from iterlin.linearise.krylov import power_iteration

# Damping epsilon of the Chebyshev polynomials, as in RKC2.
DAMPING = 2 / 13
# h lambda_max <= REACH (s^2 - 1) keeps a step of s stages stable.
REACH = 2 / 3 * (1 - 2 / 15 * DAMPING)
# Power iteration underestimates lambda_max, so the estimate is multiplied by SAFETY.
SAFETY = 1.1
# Power iterations at theta_s, and after each later step.
FIRST_ITERATIONS, ITERATIONS = 10, 2
# Largest and smallest factor between one step size and the next.
GROWTH, SHRINKAGE = 5.0, 0.1


class Flow(NamedTuple):
    """State of a gradient flow.

    Attributes:
        time: Time since theta_s; K steps of size eta take the time eta K.
        coordinates: Coordinates of the displacement (`LinearModel`).
        image: Change of the outputs, (N, ...).
        slope: Coordinates of the objective's gradient.
        slope_image: Image of the objective's gradient, (N, ...).
        step: Time step to try next.
        direction: Approximate eigenvector of J J^T H for `curvature`, (N, ...).
        curvature: lambda_max(J J^T H) + 2 penalty, with H the Hessian of the loss.
        evaluations: Products with J J^T so far.
        solved: Whether the rule given to `advance` holds.
    """

    time: Float[Array, ""]
    coordinates: PyTree
    image: Float[Array, "N ..."]
    slope: PyTree
    slope_image: Float[Array, "N ..."]
    step: Float[Array, ""]
    direction: Float[Array, "N ..."]
    curvature: Float[Array, ""]
    evaluations: Int[Array, ""]
    solved: Bool[Array, ""]


class Objective(NamedTuple):
    """The objective loss(outputs, y) + penalty ||theta - theta_s||^2 of a linearised model.

    Attributes:
        model: The linearised model on the N training examples.
        loss: loss(outputs, y) -> a number.
        targets: Targets y.
        penalty: Factor of ||theta - theta_s||^2.
    """

    model: LinearModel
    loss: Callable[[Array, PyTree], Array]
    targets: PyTree
    penalty: float | Array = 0.0

    def gradient(self, image: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """Return the gradient of the loss in the outputs."""
        return jax.grad(self.loss)(self.model.outputs + image, self.targets)

    def hessian_product(self, image: Float[Array, "N ..."], v: Array) -> Float[Array, "N ..."]:
        """Return H v, with H the Hessian of the loss in the outputs."""
        return jax.jvp(self.gradient, (image,), (v,))[1]

    def slope(self, coordinates: PyTree, image: Array) -> tuple[PyTree, Array]:
        """Return the gradient of the objective in the parameters, as coordinates and image."""
        c, i = self.model.push(self.gradient(image))
        return jax.tree.map(lambda a, b: a + 2 * self.penalty * b, (c, i), (coordinates, image))

    def gradient_norm(self, slope: PyTree, slope_image: Array) -> Float[Array, ""]:
        """Return the norm of a gradient in parameter space."""
        squared = self.model.inner(slope, slope_image, slope, slope_image)
        return jnp.sqrt(jnp.maximum(squared, 0))


def begin(objective: Objective, before: Flow | None = None) -> Flow:
    """Return the flow at theta_s, where it starts.

    before: the flow at the end of the previous linearisation. Its step and direction are the first
    guesses of this flow. If None, the first step is 0.1 / lambda_max.
    """
    zero = jnp.zeros_like(objective.model.outputs)
    slope, slope_image = objective.slope(objective.model.origin, zero)
    iterations = FIRST_ITERATIONS if before is None else ITERATIONS
    direction = jax.random.normal(jax.random.key(0), zero.shape, zero.dtype)
    if before is not None:
        direction = before.direction
    direction, curvature = _curvature(objective, zero, direction, iterations)
    step = 0.1 / jnp.maximum(curvature, jnp.finfo(zero.dtype).tiny)
    return Flow(
        time=jnp.zeros((), zero.dtype),
        coordinates=objective.model.origin,
        image=zero,
        slope=slope,
        slope_image=slope_image,
        step=jnp.asarray(step if before is None else before.step, zero.dtype),
        direction=direction,
        curvature=curvature,
        evaluations=jnp.asarray(1 + iterations, jnp.int32),
        solved=jnp.asarray(False),
    )


def advance(
    objective: Objective,
    flow: Flow,
    until: Float[Array, ""],
    *,
    tolerance: float,
    max_steps: int,
    solved: Callable[[Flow], Bool[Array, ""]] = lambda flow: flow.solved,
) -> Flow:
    """Follow the flow up to a time, with RKC2 and adaptive steps.

    A step whose estimated error exceeds the tolerance is repeated with a smaller size. The error is
    a root mean square over the outputs, relative to the outputs' root mean square or 1, whichever
    is larger. The flow stops earlier after max_steps attempts, or where solved(flow) holds.
    """
    # The rounding error of a step grows like s^2 eps, which must stay below the tolerance.
    eps = float(jnp.finfo(flow.image.dtype).eps)
    limit = int(max(4, min(1000, (tolerance / (10 * eps)) ** 0.5)))
    scale = jnp.sqrt(jnp.mean(objective.model.outputs**2))

    def going(carry):
        flow, count = carry
        return (flow.time < until) & (count < max_steps) & ~flow.solved

    def attempt(carry):
        flow, count = carry
        # A step may exceed neither the stable size at `limit` stages nor the time that is left.
        # It takes all of the time that is left if it takes nearly all of it.
        stable = REACH * (limit**2 - 1) / jnp.maximum(SAFETY * flow.curvature, 1e-30)
        wanted = jnp.minimum(flow.step, stable)
        left = until - flow.time
        last = wanted >= 0.999 * left
        h = jnp.where(last, left, wanted)
        stages = jnp.ceil(jnp.sqrt(1 + h * SAFETY * flow.curvature / REACH))
        stages = jnp.clip(stages.astype(jnp.int32), 2, limit)
        coordinates, image = _stages(objective, flow, h, stages)
        slope, slope_image = objective.slope(coordinates, image)
        # RKC2's error estimate, of third order in h, from the values and slopes at both ends.
        error = 0.8 * (flow.image - image) - 0.4 * h * (flow.slope_image + slope_image)
        size = jnp.maximum(1.0, jnp.maximum(scale, jnp.sqrt(jnp.mean(image**2))))
        ratio = jnp.sqrt(jnp.mean(error**2)) / (tolerance * size)
        accepted = ratio <= 1  # False for NaN.
        factor = 0.8 * jnp.maximum(ratio, 1e-9) ** (-1 / 3)
        factor = jnp.where(jnp.isfinite(ratio), jnp.clip(factor, SHRINKAGE, GROWTH), SHRINKAGE)
        # The last step is cut short by `until`; the next step need not be as short.
        proposal = jnp.where(accepted & last, jnp.maximum(h * factor, wanted), h * factor)
        direction, curvature = _curvature(objective, image, flow.direction, ITERATIONS)
        moved = Flow(
            time=jnp.where(last, until, flow.time + h),
            coordinates=coordinates,
            image=image,
            slope=slope,
            slope_image=slope_image,
            step=proposal,
            direction=direction,
            curvature=curvature,
            evaluations=flow.evaluations,
            solved=flow.solved,
        )
        moved = moved._replace(solved=solved(moved))
        stayed = flow._replace(step=proposal)
        new = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), moved, stayed)
        spent = flow.evaluations + stages + ITERATIONS
        return new._replace(evaluations=spent), count + 1

    return jax.lax.while_loop(going, attempt, (flow, jnp.asarray(0, jnp.int32)))[0]


def _stages(objective: Objective, flow: Flow, h, stages):
    """Take one RKC2 step of size h with `stages` >= 2 stages; return coordinates and image."""
    dtype = flow.image.dtype
    w0 = 1 + DAMPING / stages.astype(dtype) ** 2
    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)

    def chebyshev(now, before):
        """Return the next Chebyshev polynomial and its two derivatives at w0.

        They follow from those of the last two polynomials by the three-term recursion.
        """
        (t, d, dd), (t0, d0, dd0) = now, before
        return 2 * w0 * t - t0, 2 * w0 * d - d0 + 2 * t, 2 * w0 * dd - dd0 + 4 * d

    first, second = (one, zero, zero), (w0, one, zero)
    top, _ = jax.lax.fori_loop(
        1, stages, lambda _, pair: (chebyshev(*pair), pair[0]), (second, first)
    )
    w1 = top[1] / top[2]

    start = (flow.coordinates, flow.image)
    rate = (flow.slope, flow.slope_image)
    t2 = chebyshev(second, first)
    b2 = t2[2] / t2[1] ** 2
    b1 = 1 / w0

    def combine(weights, *trees):
        return jax.tree.map(
            lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)), *trees
        )

    y1 = combine((one, -b1 * w1 * h), start, rate)

    def stage(_, carry):
        y, y0, polynomial, polynomial0, b, b0 = carry
        new = chebyshev(polynomial, polynomial0)
        b_new = new[2] / new[1] ** 2
        mu, nu = 2 * b_new * w0 / b, -b_new / b0
        mu_slope = 2 * b_new * w1 / b
        gamma = -(1 - b * polynomial[0]) * mu_slope
        slope = objective.slope(*y)
        y_new = combine((1 - mu - nu, mu, nu, -mu_slope * h, -gamma * h), start, y, y0, slope, rate)
        return y_new, y, new, polynomial, b_new, b

    carry = (y1, start, second, first, b1, b2)
    return jax.lax.fori_loop(2, stages + 1, stage, carry)[0]


def _curvature(objective: Objective, image, direction, iterations):
    """Return an eigenvector (N, ...) of J J^T H, and lambda_max + 2 penalty, by power iteration."""

    def product(v):
        return objective.model.push(objective.hessian_product(image, v))[1]

    # Where all outputs are saturated H is 0, and so is what the iteration leaves there.
    other = jnp.sin(1 + jnp.arange(direction.size, dtype=direction.dtype)).reshape(direction.shape)
    direction = jnp.where(jnp.any(direction != 0), direction, other)
    value, direction = power_iteration(product, direction, iterations)
    return direction, value + 2 * objective.penalty
