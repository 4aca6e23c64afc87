"""Gauss-Newton (Algorithm 1), also damped (eq. 10) or with each linear problem solved in part.

The loss is 1/2 ||f(params, x) - y||^2, summed over examples and outputs and not divided by N. As in
the paper, the solver takes full steps without a line search, so that a run may fail to converge:
`Solution.status` reports how it ended. It works under `jax.jit` and `jax.vmap`.
`truncated_gauss_newton` has Algorithm 2, and other losses.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from iterlin.curvature.outer_loop import Solution, make_problem, run_outer_loop
from iterlin.kernels.gradient_flow import eigenmodes
from iterlin.linearise.compiled import as_argument
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.linearization import Network, jacobian, require_independent
from iterlin.linearise.parameters import Trainable
from iterlin.linearise.spectral_filters import MAX_STEPS
from iterlin.linearise.validation import (
    check_bools,
    check_float32_or_wider,
    check_non_negative,
    check_one_of,
    check_positive,
    check_positive_integer,
    is_traced,
)


@on_any_device
def gauss_newton(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: Array,
    *,
    damping: float | Array | LevenbergMarquardt = 0.0,
    step_size: float | Array | None = None,
    period: int | Array | None = None,
    max_steps: int,
    tolerance: float | Array,
    target_loss: float | Array = 0.0,
    solver: Literal["svd", "cholesky"] = "svd",
    independent: bool = True,
    trainable: Trainable = None,
    memory_limit: int = 2**30,
) -> Solution:
    """Minimise 1/2 ||f(params, x) - y||^2 by full Gauss-Newton steps (Algorithm 1, eq. 10).

    Each step is theta <- theta - (J^T J + damping I)^-1 J^T (f - y). With damping 0 it is the
    minimum-norm step -J^+ (f - y), for a J of any rank. A run has converged when the loss is at
    most `target_loss`, or changes in one step by at most `tolerance` relative to itself.

    With a `period` K, a step solves its linear problem in part: by K gradient steps on
    1/2 ||f_lin - y||^2, computed at once in closed form (Lemma 3.2.1). This is Algorithm 3 on the
    full batch, as `train` runs it with the engine "closed_form". Here the whole run is one compiled
    program, also of traced periods and of periods beyond 2^31; it ends when the loss settles, and
    it records how far each linear problem was solved.

    Args:
        f: The network, f(params, x), with outputs (N, ...).
        params: Initial parameters.
        x: Inputs of N examples.
        y: Targets, of the shape of the outputs.
        damping: Non-negative number in the units of J^T J, or a `LevenbergMarquardt`, which adapts
            the damping and rejects steps that would raise the loss. Rejected steps count as steps.
        step_size: Step size eta of the gradient steps of a period, on the summed loss. For a loss
            divided by N pass eta / N.
        period: Number K of gradient steps; None solves each linear problem in full.
        max_steps: Largest number of steps, below 2^31.
        tolerance: Relative change of the loss in one step at which the run ends.
        target_loss: Loss at which the run ends.
        solver: "svd" takes the thin singular value decomposition of J, which does not square its
            condition number; or, if J takes more than memory_limit, the eigendecomposition of
            J J^T, which does. "cholesky" factorises J J^T + damping I (N O, N O) or
            J^T J + damping I (P, P), whichever is smaller. It is faster, and accurate for a
            damping well above eps lambda_max(J J^T).
        independent: False if f couples its examples (see `jacobian`).
        trainable: Which parameters are trained (`parameters.partition`); None for all.
        memory_limit: Largest size of J in bytes that the solver "svd" decomposes.

    Returns:
        A `Solution` whose params hold all parameters, also those that are not trained. Everything
        is computed in the precision of the trained parameters. With a period, its history has a
        "certificate": the tolerance beta at which each step is one of truncated Gauss-Newton
        (Algorithm 2).

    Raises:
        ValueError: If damping, tolerance or target_loss is negative or not finite, or damping is an
            array of several numbers; if damping is 0 and the solver is "cholesky"; if a period is
            given without a step_size, with a damping or with "cholesky"; if period or max_steps is
            not a positive integer, or max_steps is not below 2^31; if step_size is not positive and
            finite; if y is not one array of the shape of the outputs; if the trained parameters are
            narrower than float32; or if f couples its examples although independent is True (not
            checked under tracing).

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> run = {"max_steps": 20, "tolerance": 1e-6}
    >>> found = il.gauss_newton(f, jnp.zeros(2), x, y, **run)
    >>> print(found.params.round(3), found.num_steps)  # the logarithms of y
    [0.    1.099] 6
    >>> found = il.gauss_newton(f, jnp.zeros(2), x, y, step_size=0.01, period=100, **run)
    >>> print(found.params.round(3), found.history["certificate"][:3].round(3))
    [0.    1.099] [0.366 0.    0.   ]
    """
    check_bools(independent=independent)
    check_positive_integer("memory_limit", memory_limit)
    problem = make_problem(f, params, x, y, trainable)
    if independent:  # checked here, because the loop traces the parameters
        require_independent(problem.f, problem.initial, x)
    check_one_of("solver", solver, ("svd", "cholesky"))
    if not isinstance(damping, LevenbergMarquardt):
        check_non_negative("damping", damping, scalar=True)
        if solver == "cholesky":
            check_positive("damping of the cholesky solver", damping)
    if step_size is not None or period is not None:
        _check_period(step_size, period, damping, solver)
        step_size = as_argument(step_size)

    kept = {"independent": independent, "memory_limit": memory_limit}

    def step(theta, damping):
        if solver == "cholesky":
            return _cholesky_step(problem.f, theta, x, problem.y, damping, independent)
        modes = eigenmodes(problem.f, theta, x, problem.y, **kept)
        record = {"gradient_norm": jnp.linalg.norm(modes.singular_values * modes.coefficients)}
        if period is None:
            return modes.damped(damping), record
        ratio = modes.residual_ratio(step_size, period).astype(modes.singular_values.dtype)
        return modes.descent(step_size, period), record | {"certificate": ratio}

    return run_outer_loop(
        problem, step, damping, max_steps=max_steps, tolerance=tolerance, target_loss=target_loss
    )


def _check_period(step_size, period, damping, solver) -> None:
    if step_size is None or period is None:
        raise ValueError(f"step_size and period go together, got {step_size!r} and {period!r}")
    check_positive("step_size", step_size, scalar=True)
    check_positive_integer("period", period, below=MAX_STEPS)
    if solver != "svd" or is_traced(damping) or np.any(damping):
        raise ValueError("a period takes gradient steps, which have no damping and no other solver")


def _cholesky_step(f, theta, x, y, damping, independent):
    """Take one damped step by the smaller of the primal (P) and the dual (N O) normal equations."""
    flat, unravel = ravel_pytree(theta)
    check_float32_or_wider("params", flat.dtype)
    matrix = jacobian(f, theta, x, independent=independent)
    residual = (y - f(theta, x)).reshape(-1)
    gradient = residual @ matrix
    if matrix.shape[0] <= matrix.shape[1]:
        displacement = _solve_damped(matrix @ matrix.T, damping, residual) @ matrix
    else:
        displacement = _solve_damped(matrix.T @ matrix, damping, gradient)
    return unravel(flat + displacement), {"gradient_norm": jnp.linalg.norm(gradient)}


def _solve_damped(gram, damping, right_hand_side):
    """Solve (gram + damping I) s = right_hand_side by a Cholesky factorisation."""
    factor = jax.scipy.linalg.cho_factor(gram + damping * jnp.eye(gram.shape[0], dtype=gram.dtype))
    return jax.scipy.linalg.cho_solve(factor, right_hand_side)
