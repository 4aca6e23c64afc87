"""The minimum of a damped linearised problem (K = infinity), by Newton's method and CG.

For a convex loss and lambda > 0, loss(f_s + J d) + lambda ||d||^2 is strictly convex in d. It has
one minimum, which lies in the range of J^T. Without a penalty, cross-entropy has no minimum once
the linearised model separates the data: the parameters diverge. 'Solved' then needs another rule.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from iterlin.exact.flow import Objective
from iterlin.linearise.krylov import axpy, conjugate_gradients

# Armijo's fraction of the predicted decrease, and the largest number of halvings of a Newton step.
SUFFICIENT, HALVINGS = 1e-4, 30
# Rounding error of a mean of many terms, in units in the last place.
UNITS = 4


class Minimum(NamedTuple):
    """The minimum that Newton's method has found, and its accuracy.

    Attributes:
        coordinates: Coordinates of the displacement (`linear_model.LinearModel`).
        image: Change of the outputs, (N, ...).
        certificate: ||gradient|| / ||gradient at theta_s|| of the penalised objective in parameter
            space. For the squared loss, the step is a truncated Gauss-Newton step of this tolerance
            beta (Algorithm 2).
        newton_steps: Newton steps taken.
        evaluations: Products with J J^T.
    """

    coordinates: PyTree
    image: Float[Array, "N ..."]
    certificate: Float[Array, ""]
    newton_steps: Int[Array, ""]
    evaluations: Int[Array, ""]


def minimize(
    objective: Objective, *, tolerance: float, max_steps: int = 50, max_inner_steps: int = 500
) -> Minimum:
    """Minimise a linearised objective by Newton's method, starting at theta_s.

    Conjugate gradients solve each Newton system (J^T H J + 2 lambda) s = -gradient, up to a
    relative residual of min(1/2, sqrt(certificate)). Convergence is superlinear, and early systems
    are not solved more accurately than needed (Eisenstat & Walker 1996). A step is halved until it
    decreases the objective. Both forms of the linear model give the same iterates.

    The objective must have a convex loss and a positive penalty. The certificate of the result
    exceeds the tolerance, in (0, 1), if the method has stopped early: after max_steps Newton steps
    or because rounding hides any further decrease.
    """
    model = objective.model
    zero = jnp.zeros_like(model.outputs)
    slope = objective.slope(model.origin, zero)
    first = objective.gradient_norm(*slope)

    def value_at(point):
        distance = model.inner(*point, *point)
        return (
            objective.loss(model.outputs + point[1], objective.targets)
            + objective.penalty * distance
        )

    def going(carry):
        _, _, certificate, moving, steps, _ = carry
        return moving & (certificate > tolerance) & (steps < max_steps)

    def newton(carry):
        point, slope, certificate, _, steps, evaluations = carry
        forcing = jnp.minimum(0.5, jnp.sqrt(certificate))
        step, inner = _newton_step(objective, point[1], slope, forcing, max_inner_steps)
        value, descent = value_at(point), model.inner(*slope, *step)

        def too_long(search):
            factor, halvings = search
            new = value_at(axpy(factor, step, point))
            enough = new <= value + SUFFICIENT * factor * descent
            return ~enough & (halvings < HALVINGS)

        factor, halvings = jax.lax.while_loop(
            too_long, lambda s: (s[0] / 2, s[1] + 1), (jnp.ones((), zero.dtype), 0)
        )
        # Near the minimum, rounding hides the decrease of the objective. Then take the full step,
        # and keep it only if the gradient has become smaller.
        factor = jnp.where(halvings < HALVINGS, factor, 1.0)
        coordinates, _ = axpy(factor, step, point)
        new = (coordinates, model.image(coordinates))
        new_slope = objective.slope(*new)
        found = objective.gradient_norm(*new_slope) / first
        better = (halvings < HALVINGS) | (found < certificate)
        point, slope = jax.tree.map(
            lambda a, b: jnp.where(better, a, b), (new, new_slope), (point, slope)
        )
        certificate = jnp.where(better, found, certificate)
        return point, slope, certificate, better, steps + 1, evaluations + inner + 2

    one = jnp.where(first == 0, 0.0, 1.0).astype(zero.dtype)  # A NaN gives 1.
    start = ((model.origin, zero), slope, one, jnp.asarray(True), 0, 1)
    point, slope, certificate, _, steps, evaluations = jax.lax.while_loop(going, newton, start)
    return Minimum(*point, certificate, jnp.asarray(steps), jnp.asarray(evaluations))


def within_rounding(objective: Objective) -> Bool[Array, ""]:
    """Return whether theta_s is the minimum up to rounding; False if a value is NaN.

    Along the gradient g, the quadratic model at theta_s decreases by ||g||^4 / (2 <g, A g>), with
    A = J^T H J + 2 lambda. This is compared with the rounding error of the loss: a few units in the
    last place of the loss or of the largest output.
    """
    model = objective.model
    zero = jnp.zeros_like(model.outputs)
    slope = objective.slope(model.origin, zero)
    squared, curvature = _slope_curvature(objective, zero, slope)
    loss = objective.loss(model.outputs, objective.targets)
    unit = jnp.finfo(zero.dtype).eps * jnp.maximum(jnp.abs(loss), jnp.abs(model.outputs).max())
    return squared**2 <= 2 * curvature * UNITS * unit


def _slope_curvature(objective: Objective, image, slope):
    """Return ||g||^2 and <g, A g> of the gradient g."""
    inner, applied = objective.model.inner, _hessian(objective, image)(slope)
    return inner(*slope, *slope), inner(*slope, *applied)


def _hessian(objective: Objective, image):
    """Return the map v -> (J^T H J + 2 lambda) v, of coordinates and image."""

    def apply(direction):
        pushed = objective.model.push(objective.hessian_product(image, direction[1]))
        return axpy(2 * objective.penalty, direction, pushed)

    return apply


def _newton_step(objective: Objective, image, slope, forcing, max_steps):
    """Solve (J^T H J + 2 lambda) s = -slope; return s and the number of products with J J^T."""
    model, apply = objective.model, _hessian(objective, image)

    def cauchy():
        squared, curvature = _slope_curvature(objective, image, slope)
        return jax.tree.map(lambda leaf: -squared / curvature * leaf, slope)

    step, count = conjugate_gradients(
        jax.tree.map(jnp.negative, slope),
        image=apply,
        inner=lambda a, b: model.inner(*a, *b),
        tolerance=forcing,
        max_steps=max_steps,
    )
    # If the loss is saturated, rounding may turn the step of conjugate gradients uphill. Then take
    # the minimum of the quadratic model along the gradient, which is downhill.
    downhill = model.inner(*slope, *step) < 0
    return jax.lax.cond(downhill, lambda: (step, count), lambda: (cauchy(), count + 1))
