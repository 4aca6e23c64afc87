"""Gauss-Newton (Algorithm 1), its damped form (eq. 10) and Algorithm 3 in closed form.

All minimise 1/2 ||f(params, x) - y||^2 (a sum, not divided by N) by full steps, without line
search, as the paper does; a run that does not converge says so. All can be vmapped and jitted.
Algorithm 2, and other losses, are in `truncated_gauss_newton`.
"""

import math

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from iterlin.curvature.iteration import Solution, Status, iterate, prepare
from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from iterlin.curvature.truncated_gauss_newton import truncated_gauss_newton
from iterlin.kernels.gradient_flow import eigenmodes
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.linearization import Network, jacobian, require_independent
from iterlin.linearise.parameters import Trainable
from iterlin.linearise.precision import full_precision
from iterlin.linearise.spectral_filters import MAX_STEPS
from iterlin.linearise.validation import (
    check_bools,
    check_float32_or_wider,
    check_non_negative,
    check_one_of,
    check_positive,
    check_positive_integer,
    check_scalar,
    is_traced,
)

__all__ = [
    "Solution",
    "Status",
    "gauss_newton",
    "iterative_linearization",
    "truncated_gauss_newton",
]


@with_auto_axes
@full_precision()
def gauss_newton(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: Array,
    *,
    damping=0.0,
    max_steps: int,
    tolerance: float,
    target_loss: float = 0.0,
    solver: str = "svd",
    independent: bool = True,
    trainable: Trainable = None,
) -> Solution:
    """Full steps theta <- theta - (J^T J + damping I)^-1 J^T (f - y), eq. (10).

    Both solvers work on the smaller of the primal (P x P) and dual (N O x N O) problems. "svd"
    takes the thin singular value decomposition of J: J's condition number is not squared, and
    damping 0 gives the minimum-norm step -J^+ (f - y) at any rank. "cholesky" factorises
    J J^T + damping I (or its primal): faster, for a damping well above eps lambda_max. Stops as
    converged when the loss is at most `target_loss`, or when it changes by at most `tolerance`
    relative to itself in one step. A damping that is a `LevenbergMarquardt` adapts to how the steps
    turn out, and rejects those that would raise the loss; a rejected one counts as a step.
    `independent=False` is for an f that couples its examples (see `jacobian`).

    x is an array or a pytree of arrays that lead with N; outputs and y have one shape, of any rank.
    Only what is `trainable` moves (`linearise.parameters`); the Solution's params are whole.
    Everything is computed in the precision of the trained parameters.

    Raises ValueError for a negative or non-finite damping, tolerance or target_loss, a damping that
    is an array, a max_steps that is not a positive integer below 2^31, targets that are not one
    array of the shape of the outputs, parameters narrower than float32, or (unless traced) an f
    that couples examples said to be independent.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> found = il.gauss_newton(f, jnp.zeros(2), x, y, max_steps=20, tolerance=1e-6)
    >>> print(found.params.round(3), found.num_steps)  # the logarithms of y
    [0.    1.099] 6
    """
    check_bools(independent=independent)
    problem = prepare(f, params, x, y, trainable)
    if independent:  # here, because inside the loop there is no concrete value to check
        require_independent(problem.f, problem.start, x)
    check_one_of("solver", solver, ("svd", "cholesky"))
    if not isinstance(damping, LevenbergMarquardt):
        check_non_negative("damping", damping)
        check_scalar("damping", damping)
        if solver == "cholesky":
            check_positive("damping of the cholesky solver", damping)

    def step(theta, damping):
        if solver == "cholesky":
            return _damped_step(problem.f, theta, x, problem.y, damping, independent)
        modes = eigenmodes(problem.f, theta, x, problem.y, independent=independent)
        gradient_norm = jnp.linalg.norm(modes.singular_values * modes.coefficients)
        return modes.damped(damping), {"gradient_norm": gradient_norm}

    return iterate(
        problem,
        step,
        damping,
        max_steps=max_steps,
        tolerance=tolerance,
        target_loss=target_loss,
    )


def _damped_step(f, theta, x, y, damping, independent):
    """One step by the normal equations of the smaller problem; damping must be positive."""
    flat, unravel = ravel_pytree(theta)
    check_float32_or_wider("params", flat.dtype)
    matrix = jacobian(f, theta, x, independent=independent)
    residual = (y - f(theta, x)).reshape(-1)
    gradient = residual @ matrix
    if matrix.shape[0] <= matrix.shape[1]:
        displacement = _solve(matrix @ matrix.T, damping, residual) @ matrix
    else:
        displacement = _solve(matrix.T @ matrix, damping, gradient)
    info = {"gradient_norm": jnp.linalg.norm(gradient)}
    return unravel(flat + displacement), info


def _solve(gram, damping, right_hand_side):
    factor = jax.scipy.linalg.cho_factor(gram + damping * jnp.eye(gram.shape[0], dtype=gram.dtype))
    return jax.scipy.linalg.cho_solve(factor, right_hand_side)


@with_auto_axes
@full_precision()
def iterative_linearization(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: Array,
    *,
    step_size: float,
    period,
    max_steps: int,
    tolerance: float = 0.0,
    target_loss: float = 0.0,
    independent: bool = True,
    trainable: Trainable = None,
) -> Solution:
    """Algorithm 3 for full batch and squared loss, each period of K gradient steps in closed form.

    One step of the Solution is one linearisation: K steps of size `step_size` on the summed loss
    (for a loss divided by N pass eta / N), at a cost independent of K; `period` may be traced, and
    infinite for the minimum-norm Gauss-Newton step. "certificate" in the history is the tolerance
    beta at which each of them is a step of truncated Gauss-Newton. Arguments and when it stops: as
    `gauss_newton`.

    Raises ValueError for a step size that is not positive and finite, or a period that is not a
    positive integer or infinity, and as `gauss_newton`.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"step_size": 0.01, "period": 100, "max_steps": 20}
    >>> found = il.iterative_linearization(f, jnp.zeros(2), x, y, **settings)
    >>> print(found.params.round(3), found.history["certificate"][:3].round(3))
    [0.    1.099] [0.366 0.    0.   ]
    """
    check_positive("step_size", step_size)
    check_positive_integer("period", period, infinity=True, below=MAX_STEPS)
    check_bools(independent=independent)
    problem = prepare(f, params, x, y, trainable)
    if independent:
        require_independent(problem.f, problem.start, x)
    solved = not is_traced(period) and math.isinf(period)

    def step(theta, _):
        modes = eigenmodes(problem.f, theta, x, problem.y, independent=independent)
        ratio = jnp.zeros(()) if solved else modes.residual_ratio(step_size, period)
        info = {
            "gradient_norm": jnp.linalg.norm(modes.singular_values * modes.coefficients),
            "certificate": ratio.astype(modes.singular_values.dtype),
        }
        return modes.damped(0.0) if solved else modes.descent(step_size, period), info

    return iterate(
        problem, step, None, max_steps=max_steps, tolerance=tolerance, target_loss=target_loss
    )
