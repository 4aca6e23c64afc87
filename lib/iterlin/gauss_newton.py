"""Gauss-Newton (Algorithm 1), its damped form (eq. 10) and truncated Gauss-Newton (Algorithm 2).

Both minimise 1/2 ||f(params, x) - y||^2 (a sum, not divided by N) by full steps, without line
search, as the paper does; a run that does not converge says so. Both can be vmapped and jitted.
"""

from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from iterlin.gradient_flow import eigenmodes
from iterlin.krylov import conjugate_gradients
from iterlin.linearization import (
    Network,
    jacobian,
    jacobian_products,
    require_independent,
    tree_add,
    tree_sub,
)
from iterlin.runtime.precision import full_precision
from iterlin.validation import (
    is_traced,
    non_negative,
    one_of,
    open_unit,
    positive,
    positive_integer,
    same_shape,
)


class Status(IntEnum):
    """How a run ended; diverged means non-finite, or settled at a loss above the first."""

    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2


RUNNING = -1


class Solution(NamedTuple):
    """Where a run ended, how, after how many steps, and what it went through.

    params is the last finite iterate; status a `Status`. Entry t of each history (max_steps + 1,)
    belongs to iterate t and is NaN beyond the last: "loss" 1/2 ||z||^2, "gradient_norm" ||J^T z||,
    "step_norm" (the step taken from t) and, for the truncated form, "certificate" ||r|| / ||J^T z||
    and "inner_steps" of the step taken from t.
    """

    params: PyTree
    status: Int[Array, ""]
    num_steps: Int[Array, ""]
    history: dict[str, Float[Array, " T"]]


@full_precision()
def gauss_newton(
    f: Network,
    params: PyTree,
    x: Array,
    y: Array,
    *,
    damping=0.0,
    max_steps: int,
    tolerance: float,
    target_loss: float = 0.0,
    solver: str = "svd",
    independent: bool = True,
) -> Solution:
    """Full steps theta <- theta - (J^T J + damping I)^-1 J^T (f - y), eq. (10).

    Both solvers work on the smaller of the primal (P x P) and dual (N O x N O) problems. "svd"
    takes the thin singular value decomposition of J: J's condition number is not squared, and
    damping 0 gives the minimum-norm step -J^+ (f - y) at any rank. "cholesky" factorises
    J J^T + damping I (or its primal): faster, for a damping well above eps lambda_max. Stops as
    converged when the loss is at most `target_loss`, or when it changes by at most `tolerance`
    relative to itself in one step.
    `independent=False` is for an f that couples its examples (see `jacobian`).

    Raises ValueError for a negative or non-finite damping or tolerance, a max_steps that is not a
    positive integer, targets (N, O) that have not the shape of the outputs, or (unless traced) an f
    that couples examples said to be independent.
    """
    if independent:  # here, because inside the loop there is no concrete value to check
        require_independent(f, params, x)
    non_negative("damping", damping)
    one_of("solver", solver, ("svd", "cholesky"))
    if solver == "cholesky":
        positive("damping of the cholesky solver", damping)

    def step(theta):
        if solver == "cholesky":
            return _damped_step(f, theta, x, y, damping, independent)
        modes = eigenmodes(f, theta, x, y, independent=independent)
        gradient_norm = jnp.linalg.norm(modes.singular_values * modes.coefficients)
        return modes.damped(damping), {"gradient_norm": gradient_norm}

    return _iterate(f, params, x, y, step, max_steps, tolerance, target_loss)


def _damped_step(f, theta, x, y, damping, independent):
    """One step by the normal equations of the smaller problem; damping must be positive."""
    flat, unravel = ravel_pytree(theta)
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


@full_precision()
def iterative_linearization(
    f: Network,
    params: PyTree,
    x: Array,
    y: Array,
    *,
    step_size: float,
    period,
    max_steps: int,
    tolerance: float = 0.0,
    target_loss: float = 0.0,
    independent: bool = True,
) -> Solution:
    """Algorithm 3 for full batch and squared loss, each period of K gradient steps in closed form.

    One step of the Solution is one linearisation: K steps of size `step_size` on the summed loss
    (for a loss divided by N pass eta / N), at a cost independent of K; `period` may be traced, and
    infinite for the minimum-norm Gauss-Newton step. "certificate" in the history is the tolerance
    beta at which each of them is a step of truncated Gauss-Newton. Stops as `gauss_newton` does.

    Raises ValueError for a step size that is not positive and finite, or a period that is not a
    positive integer or infinity, and as `gauss_newton`.
    """
    positive("step_size", step_size)
    positive_integer("period", period, infinity=True)
    if independent:
        require_independent(f, params, x)
    solved = not is_traced(period) and isinstance(period, float)

    def step(theta):
        modes = eigenmodes(f, theta, x, y, independent=independent)
        ratio = jnp.zeros(()) if solved else modes.residual_ratio(step_size, period)
        info = {
            "gradient_norm": jnp.linalg.norm(modes.singular_values * modes.coefficients),
            "certificate": ratio.astype(modes.singular_values.dtype),
        }
        return modes.damped(0.0) if solved else modes.descent(step_size, period), info

    return _iterate(f, params, x, y, step, max_steps, tolerance, target_loss)


@full_precision()
def truncated_gauss_newton(
    f: Network,
    params: PyTree,
    x: Array,
    y: Array,
    *,
    beta: float,
    max_steps: int,
    tolerance: float,
    target_loss: float = 0.0,
    max_inner_steps: int | None = None,
) -> Solution:
    """Steps s with (J^T J) s = -J^T z + r and ||r|| <= beta ||J^T z|| (Algorithm 2).

    s is found by conjugate gradients on the least-squares problem (CGLS) from 0, with Jacobian
    products only; J is never formed. The history's "certificate" is the ||r|| / ||J^T z|| that was
    reached, recomputed from s after the inner iteration; it exceeds beta only if `max_inner_steps`
    (default 10 min(N O, P)) came first. Stops as `gauss_newton` does.

    Raises ValueError if beta is not in (0, 1), and as `gauss_newton`.
    """
    open_unit("beta", beta)
    if max_inner_steps is None:
        max_inner_steps = 10 * min(y.size, sum(leaf.size for leaf in jax.tree.leaves(params)))
    positive_integer("max_inner_steps", max_inner_steps)

    def step(theta):
        outputs, jvp, vjp = jacobian_products(f, theta, x)
        residual = y - outputs
        gradient = vjp(residual)
        displacement, inner = conjugate_gradients(
            residual,
            image=jvp,
            gradient=vjp,
            curvature=lambda direction, moved: jnp.sum(moved**2),
            inner=_dot,
            tolerance=beta,
            max_steps=max_inner_steps,
        )
        left = vjp(residual - jvp(displacement))
        norm = _norm(gradient)
        certificate = jnp.where(norm > 0, _norm(left) / jnp.where(norm > 0, norm, 1), 0)
        info = {"gradient_norm": norm, "certificate": certificate, "inner_steps": inner * 1.0}
        return tree_add(theta, displacement), info

    return _iterate(f, params, x, y, step, max_steps, tolerance, target_loss)


def _dot(a, b):
    return sum(jnp.sum(u * v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _norm(tree):
    return jnp.sqrt(_dot(tree, tree))


def _iterate(f, params, x, y, step, max_steps, tolerance, target_loss) -> Solution:
    """Repeat `step` (theta -> new theta, info) until the loss settles or blows up."""
    positive_integer("max_steps", max_steps)
    non_negative("tolerance", tolerance)
    non_negative("target_loss", target_loss)
    same_shape(jax.eval_shape(f, params, x), y)

    def loss_of(theta):
        return 0.5 * jnp.sum((f(theta, x) - y) ** 2)

    def going(carry):
        return carry[1] == RUNNING

    def advance(carry):
        theta, _, count, history = carry
        loss = history["loss"][count]
        proposal, info = step(theta)
        info["step_norm"] = _norm(tree_sub(proposal, theta))
        new_loss = loss_of(proposal)
        finite = jnp.isfinite(new_loss) & jnp.isfinite(info["step_norm"])
        settled = (jnp.abs(new_loss - loss) <= tolerance * loss) | (new_loss <= target_loss)
        history = {k: v.at[count].set(info[k]) if k in info else v for k, v in history.items()}
        history["loss"] = history["loss"].at[count + 1].set(new_loss)
        # A flat region far above the start (an unbounded step into saturation) is no solution.
        lost = ~finite | (settled & (new_loss > history["loss"][0]))
        status = jnp.where(
            lost,
            int(Status.DIVERGED),
            jnp.where(
                settled,
                int(Status.CONVERGED),
                jnp.where(count + 1 >= max_steps, int(Status.MAX_STEPS), RUNNING),
            ),
        )
        theta = jax.tree.map(lambda a, b: jnp.where(finite, a, b), proposal, theta)
        return theta, status, count + 1, history

    loss = loss_of(params)
    names = jax.eval_shape(step, params)[1].keys() | {"step_norm", "loss"}
    history = {name: jnp.full(max_steps + 1, jnp.nan, loss.dtype) for name in sorted(names)}
    history["loss"] = history["loss"].at[0].set(loss)
    started = jnp.where(loss <= target_loss, int(Status.CONVERGED), RUNNING)
    status = jnp.where(jnp.isfinite(loss), started, int(Status.DIVERGED))
    theta, status, count, history = jax.lax.while_loop(
        going, advance, (params, status, jnp.asarray(0), history)
    )
    return Solution(theta, status, count, history)
