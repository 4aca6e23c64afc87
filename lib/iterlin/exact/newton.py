"""The minimum of a damped linearised problem (K = infinity), by Newton's method and CG.

loss(f_s + J d) + lambda ||d||^2 is strictly convex in d for a convex loss and lambda > 0, so it has
one minimum, which lies in the range of J^T. Without a penalty cross-entropy has none once the
linearised model separates the data: the parameters run away, and 'solved' needs another rule.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from iterlin.exact.flow import Objective
from iterlin.linearise.krylov import axpy, conjugate_gradients
from iterlin.linearise.validation import (
    check_open_unit_interval,
    check_positive,
    check_positive_integer,
    is_traced,
)

# Armijo's fraction of the predicted decrease, and how often a Newton step may be halved.
SUFFICIENT, HALVINGS = 1e-4, 30
# Units in the last place by which a mean of many terms may be off.
UNITS = 4


class Minimum(NamedTuple):
    """coordinates and image of the displacement (`linear_model`), and how good it is.

    certificate: ||gradient|| / ||gradient at theta_s|| of the penalised objective in parameter
    space, recomputed at the end: for the squared loss the tolerance beta for which the step is one
    of truncated Gauss-Newton (Algorithm 2). newton_steps, evaluations: products with J J^T.
    """

    coordinates: PyTree
    image: Float[Array, "N ..."]
    certificate: Float[Array, ""]
    newton_steps: Int[Array, ""]
    evaluations: Int[Array, ""]


def minimize(
    objective: Objective, *, tolerance: float, max_steps: int = 50, max_inner_steps: int = 500
) -> Minimum:
    """Newton's method from theta_s until the certificate is at most `tolerance`.

    Each Newton system (J^T H J + 2 lambda) s = -gradient is solved by conjugate gradients from 0 to
    a residual of min(1/2, sqrt(certificate)) of its own gradient, superlinear convergence without
    solving early ones too well (Eisenstat & Walker 1996), and steps are halved until they decrease
    the objective. In both spaces the iterates are the same; what differs is what a vector is.

    Raises ValueError unless tolerance is in (0, 1) and the penalty positive. It may stop early, at
    max_steps or where rounding leaves nothing to gain: the certificate says so.
    """
    check_open_unit_interval("tolerance", tolerance)
    check_positive_integer("max_steps", max_steps)
    check_positive_integer("max_inner_steps", max_inner_steps)
    if not is_traced(objective.penalty):
        check_positive("penalty, without which there may be no minimum,", objective.penalty)
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
        # Near the minimum the objective's own rounding hides the decrease: the slope decides.
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

    one = jnp.where(first == 0, 0.0, 1.0).astype(zero.dtype)  # 1 of what is no number
    start = ((model.origin, zero), slope, one, jnp.asarray(True), 0, 1)
    point, slope, certificate, _, steps, evaluations = jax.lax.while_loop(going, newton, start)
    return Minimum(*point, certificate, jnp.asarray(steps), jnp.asarray(evaluations))


def within_rounding(objective: Objective) -> Bool[Array, ""]:
    """Whether theta_s is the minimum as far as its precision can tell.

    The quadratic model there falls along the slope by ||g||^4 / (2 <g, A g>), A = J^T H J +
    2 lambda: to be seen, that must exceed how the loss is rounded, by a few units in the last place
    of itself or of the largest output. False where nothing is a number.
    """
    model = objective.model
    zero = jnp.zeros_like(model.outputs)
    slope = objective.slope(model.origin, zero)
    squared, curvature = _along_the_slope(objective, zero, slope)
    loss = objective.loss(model.outputs, objective.targets)
    unit = jnp.finfo(zero.dtype).eps * jnp.maximum(jnp.abs(loss), jnp.abs(model.outputs).max())
    return squared**2 <= 2 * curvature * UNITS * unit


def _along_the_slope(objective: Objective, image, slope):
    """||g||^2 and <g, A g> of the gradient g."""
    inner, applied = objective.model.inner, _hessian(objective, image)(slope)
    return inner(*slope, *slope), inner(*slope, *applied)


def _hessian(objective: Objective, image):
    """v -> (J^T H J + 2 lambda) v, coordinates and image."""

    def apply(direction):
        pushed = objective.model.push(objective.hessian_product(image, direction[1]))
        return axpy(2 * objective.penalty, direction, pushed)

    return apply


def _newton_step(objective: Objective, image, slope, forcing, max_steps):
    """Solve (J^T H J + 2 lambda) s = -slope to a relative residual; s and products spent."""
    model, apply = objective.model, _hessian(objective, image)

    def cauchy():
        squared, curvature = _along_the_slope(objective, image, slope)
        return jax.tree.map(lambda leaf: -squared / curvature * leaf, slope)

    step, count = conjugate_gradients(
        jax.tree.map(jnp.negative, slope),
        image=apply,
        gradient=lambda residual: residual,
        curvature=lambda direction, applied: model.inner(*direction, *applied),
        inner=lambda a, b: model.inner(*a, *b),
        tolerance=forcing,
        max_steps=max_steps,
    )
    # Where the loss is saturated, rounding may lead conjugate gradients uphill: then the minimum of
    # the quadratic model along the slope, which leads down.
    downhill = model.inner(*slope, *step) < 0
    return jax.lax.cond(downhill, lambda: (step, count), lambda: (cauchy(), count + 1))
