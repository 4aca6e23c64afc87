"""Truncated Gauss-Newton (Algorithm 2), for the squared error and for any convex loss.

The steps are found by conjugate gradients, from products with the Jacobian, which is never formed.
The solver works under `jax.jit` and `jax.vmap`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from iterlin.curvature.outer_loop import Solution, make_problem, run_outer_loop
from iterlin.curvature.products import loss_gradient_and_hessian
from iterlin.linearise.compiled import as_argument
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.krylov import axpy, conjugate_gradients, dot, norm
from iterlin.linearise.linearization import Network, jacobian_products
from iterlin.linearise.parameters import Trainable
from iterlin.linearise.validation import (
    check_non_negative,
    check_open_unit_interval,
    check_positive_integer,
    is_traced,
)
from iterlin.training.losses import Loss, as_sum, squared_error


@on_any_device
def truncated_gauss_newton(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    *,
    beta: float | Array,
    max_steps: int,
    tolerance: float | Array,
    target_loss: float | Array | None = None,
    max_inner_steps: int | None = None,
    loss: Loss = squared_error,
    damping: float | Array | LevenbergMarquardt = 0.0,
    trainable: Trainable = None,
) -> Solution:
    """Minimise a loss by inexact Gauss-Newton steps of tolerance beta (Algorithm 2).

    For the squared error with residual z = f - y, each step s solves (J^T J) s = -J^T z + r with
    ||r|| <= beta ||J^T z||, by conjugate gradients for least squares (CGLS) from 0. For another
    loss, or with a damping, it solves (J^T H J + damping I) s = -J^T g + r, where g and H are the
    gradient and the Hessian of the loss in the outputs, and ||r|| <= beta ||J^T g|| (Schraudolph
    2002; Martens 2010). The run ends as `gauss_newton` does.

    Args:
        f: The network, f(params, x), with outputs (N, ...).
        params: Initial parameters.
        x: Inputs of N examples.
        y: Targets of N examples, as the loss takes them.
        beta: Relative tolerance of each step, in (0, 1).
        max_steps: Largest number of steps, below 2^31.
        tolerance: Relative change of the loss in one step at which the run ends.
        target_loss: Loss at which the run ends. By default it is 0 for the losses of
            `iterlin.training.losses`, and there is none for other losses, which may be negative.
        max_inner_steps: Largest number of conjugate-gradient steps in a step, by default
            10 min(N O, P).
        loss: Function of (outputs, y) that returns one number, convex in the outputs.
        damping: Non-negative number in the units of J^T H J, or a `LevenbergMarquardt`, which
            adapts the damping and rejects steps that would raise the loss. Rejected steps count as
            steps. For a loss divided by N, divide the damping, too.
        trainable: Which parameters are trained (`parameters.partition`); None for all.

    Returns:
        A `Solution`. The "certificate" in its history is ||r|| / ||J^T z||, recomputed from each
        step s. It exceeds beta only if the inner iteration ended at max_inner_steps.

    Raises:
        ValueError: If beta is not in (0, 1); if damping is negative or not finite; if the loss is
            not a function, or does not return one number; if the loss is not the squared error and
            neither damping nor max_inner_steps is given, because J^T H J may then be singular (for
            the cross-entropy it is once the classes are separated); and as `gauss_newton`.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"beta": 0.1, "max_steps": 20, "tolerance": 1e-6}
    >>> found = il.truncated_gauss_newton(f, jnp.zeros(2), x, y, **settings)
    >>> print(found.params.round(3), found.num_steps)
    [0.    1.099] 6
    """
    check_open_unit_interval("beta", beta, scalar=True)
    problem = make_problem(f, params, x, y, trainable, loss)
    undamped = False
    if not isinstance(damping, LevenbergMarquardt):
        check_non_negative("damping", damping, scalar=True)
        undamped = not is_traced(damping) and not np.any(damping)
    if max_inner_steps is None:
        if undamped and as_sum(loss) is not squared_error:
            raise ValueError(
                "a loss other than the squared error needs a positive damping, such as "
                "LevenbergMarquardt(), or max_inner_steps: J^T H J may be singular"
            )
        size = jax.eval_shape(problem.f, problem.initial, x).size
        max_inner_steps = 10 * min(size, optax.tree.size(problem.initial))
    check_positive_integer("max_inner_steps", max_inner_steps, below=2**31)
    limits = {"tolerance": as_argument(beta), "max_steps": max_inner_steps}

    def step(theta, damping):
        products = jacobian_products(problem.f, theta, x)
        if loss is squared_error and undamped:
            solution = _least_squares_step(products, problem.y, limits)
        else:
            solution = _normal_equations_step(products, loss, problem.y, damping, limits)
        displacement, inner_steps, descent, left = solution
        size = norm(descent)
        record = {
            "gradient_norm": size,
            "certificate": jnp.where(size > 0, norm(left) / jnp.where(size > 0, size, 1), 0),
            "inner_steps": inner_steps * 1.0,
        }
        return optax.tree.add(theta, displacement), record

    return run_outer_loop(
        problem, step, damping, max_steps=max_steps, tolerance=tolerance, target_loss=target_loss
    )


# A step, the number of conjugate-gradient steps, and the negative gradient of the quadratic model
# before and after the step.
_InnerSolution = tuple[PyTree, Array, PyTree, PyTree]


def _least_squares_step(products, y, limits) -> _InnerSolution:
    """Minimise ||J s + z|| over s by CGLS, which does not square the condition number of J."""
    outputs, jvp, vjp = products
    residual = y - outputs
    displacement, inner_steps = conjugate_gradients(
        residual, image=jvp, gradient=vjp, inner=dot, **limits
    )
    return displacement, inner_steps, vjp(residual), vjp(residual - jvp(displacement))


def _normal_equations_step(products, loss, y, damping, limits) -> _InnerSolution:
    """Solve (J^T H J + damping I) s = -J^T g by conjugate gradients."""
    outputs, jvp, vjp = products
    gradient, hessian = loss_gradient_and_hessian(loss, outputs, y)
    descent = vjp(-gradient)

    def damped_product(direction):
        return axpy(damping, direction, vjp(hessian(jvp(direction))))

    displacement, inner_steps = conjugate_gradients(
        descent, image=damped_product, inner=dot, **limits
    )
    return displacement, inner_steps, descent, optax.tree.sub(descent, damped_product(displacement))
