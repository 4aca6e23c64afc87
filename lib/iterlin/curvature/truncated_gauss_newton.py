"""Truncated Gauss-Newton (Algorithm 2) for the squared error, and for any convex loss.

By products with the Jacobian alone, which is never formed. Can be vmapped and jitted.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin.curvature.iteration import Solution, iterate, prepare
from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from iterlin.curvature.products import loss_derivatives, require_function
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.krylov import axpy, conjugate_gradients, dot, norm
from iterlin.linearise.linearization import Network, jacobian_products, tree_add, tree_sub
from iterlin.linearise.parameters import Trainable
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import (
    check_non_negative,
    check_open_unit_interval,
    check_positive_integer,
    check_scalar,
    is_traced,
)
from iterlin.training.losses import Loss, as_sum, squared_error


@with_auto_axes
@full_precision()
def truncated_gauss_newton(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    beta: float,
    max_steps: int,
    tolerance: float,
    target_loss: float | None = None,
    max_inner_steps: int | None = None,
    loss: Loss = squared_error,
    damping=0.0,
    trainable: Trainable = None,
) -> Solution:
    """Steps s with (J^T J) s = -J^T z + r and ||r|| <= beta ||J^T z|| (Algorithm 2).

    s is found by conjugate gradients on the least-squares problem (CGLS) from 0, with Jacobian
    products only; J is never formed. The history's "certificate" is the ||r|| / ||J^T z|| that was
    reached, recomputed from s after the inner iteration; it exceeds beta only if `max_inner_steps`
    (default 10 min(N O, P)) came first. Stops as `gauss_newton` does.

    With another `loss` of (outputs, y), convex in the outputs, or with a damping the steps solve
    (J^T H J + damping I) s = -J^T g + r: g and H are gradient and Hessian of the loss in the
    outputs (`curvature`; Schraudolph 2002, Martens 2010), and g takes the place of z in the norms
    above. For a loss divided by N divide the damping, too. A `LevenbergMarquardt` adapts it: then
    steps that would raise the loss are rejected, and count as steps. A `target_loss` may be any
    number for a loss that may be negative, and without one such a run ends by `tolerance`, relative
    to the size of the loss; for the losses of `iterlin.training.losses` it is 0 unless given.

    x, outputs, `trainable` and the precision are as in `gauss_newton`; y is what the loss takes.

    Raises ValueError if beta is not in (0, 1); for a negative or non-finite damping; for a loss
    other than the squared error with neither a damping nor max_inner_steps, where the equations may
    have no solution (cross-entropy, once the examples are told apart); for a loss that is no
    function, or does not give one number; and as `gauss_newton`.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"beta": 0.1, "max_steps": 20, "tolerance": 1e-6}
    >>> found = il.truncated_gauss_newton(f, jnp.zeros(2), x, y, **settings)
    >>> print(found.params.round(3), found.num_steps)
    [0.    1.099] 6
    """
    check_open_unit_interval("beta", beta)
    require_function(loss)
    problem = prepare(f, params, x, y, trainable, loss)
    adaptive = isinstance(damping, LevenbergMarquardt)
    if not adaptive:
        check_non_negative("damping", damping)
        check_scalar("damping", damping)
    undamped = not adaptive and not is_traced(damping) and not np.any(damping)
    if max_inner_steps is None:
        if undamped and as_sum(loss) is not squared_error:
            raise ValueError(
                "a loss other than the squared error needs a positive damping, such as "
                "LevenbergMarquardt(), or max_inner_steps: without, J^T H J may be singular"
            )
        size = jax.eval_shape(problem.f, problem.start, x).size
        max_inner_steps = 10 * min(size, sum(leaf.size for leaf in jax.tree.leaves(problem.start)))
    check_positive_integer("max_inner_steps", max_inner_steps, below=2**31)
    inner = dict(tolerance=beta, max_steps=max_inner_steps)

    def step(theta, damping):
        products = jacobian_products(problem.f, theta, x)
        if loss is squared_error and undamped:
            found = _least_squares(products, problem.y, inner)
        else:
            found = _normal_equations(products, loss, problem.y, damping, inner)
        displacement, count, gradient, left = found
        size = norm(gradient)
        certificate = jnp.where(size > 0, norm(left) / jnp.where(size > 0, size, 1), 0)
        info = {"gradient_norm": size, "certificate": certificate, "inner_steps": count * 1.0}
        return tree_add(theta, displacement), info

    return iterate(
        problem, step, damping, max_steps=max_steps, tolerance=tolerance, target_loss=target_loss
    )


def _least_squares(products, y, inner):
    """min ||J s + z||: s, its inner steps, -J^T z and what s leaves of it. Nothing is squared."""
    outputs, jvp, vjp = products
    residual = y - outputs
    displacement, count = conjugate_gradients(
        residual,
        image=jvp,
        gradient=vjp,
        curvature=lambda direction, moved: jnp.sum(moved**2),
        inner=dot,
        **inner,
    )
    return displacement, count, vjp(residual), vjp(residual - jvp(displacement))


def _normal_equations(products, loss, y, damping, inner):
    """The same of (J^T H J + damping I) s = -J^T g."""
    outputs, jvp, vjp = products
    slope, hessian = loss_derivatives(loss, outputs, y)
    downhill = vjp(-slope)

    def curvature(direction):
        return axpy(damping, direction, vjp(hessian(jvp(direction))))

    displacement, count = conjugate_gradients(
        downhill,
        image=curvature,
        gradient=lambda residual: residual,
        curvature=dot,
        inner=dot,
        **inner,
    )
    return displacement, count, downhill, tree_sub(downhill, curvature(displacement))
