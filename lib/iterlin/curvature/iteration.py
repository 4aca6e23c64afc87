"""Steps on a loss until it settles: what the forms of Gauss-Newton have in common."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from iterlin.curvature.products import loss_derivatives
from iterlin.linearise import examples
from iterlin.linearise.krylov import norm
from iterlin.linearise.linearization import Network, output_shape, tree_sub
from iterlin.linearise.parameters import Trainable, bind_fixed, combine, partition
from iterlin.linearise.validation import (
    check_non_negative,
    check_positive_integer,
    check_targets,
    is_traced,
)
from iterlin.training.losses import Loss, as_sum, check_loss, squared_error


class Status(IntEnum):
    """How a run ended; diverged means non-finite, or settled at a loss above the first."""

    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2


RUNNING = -1
# Iterates whose history is kept, so that max_steps may mean "as many as it takes".
MOST_KEPT = 100_000


class Solution(NamedTuple):
    """Where a run ended, how, after how many steps, and what it went through.

    params is the last finite iterate; status a `Status`. Entry t of each history
    (min(max_steps, 100,000) + 1,) belongs to iterate t and is NaN beyond the last; of later
    iterates none is kept. They are: "loss" (1/2 ||z||^2 unless another was given),
    "gradient_norm" ||J^T z||, "step_norm" (the step taken from t) and, for the truncated form,
    "certificate" ||r|| / ||J^T z|| and "inner_steps" of the step taken from t. Where the damping
    adapts: the "damping" of the step tried from t, and whether it was "accepted" (1) or left the
    parameters where they were (0). Of a loss divided by N, "loss", "gradient_norm" and "damping"
    are, too.
    """

    params: PyTree
    status: Int[Array, ""]
    num_steps: Int[Array, ""]
    history: dict[str, Float[Array, " T"]]


class Problem(NamedTuple):
    """loss(f(theta, x), y) of the parameters theta that are trained (made by `prepare`)."""

    f: Network
    start: PyTree
    fixed: PyTree
    x: PyTree
    y: PyTree
    loss: Loss

    def value(self, theta: PyTree) -> Float[Array, ""]:
        return self.loss(self.f(theta, self.x), self.y)

    def predicted_decrease(self, theta: PyTree, step: PyTree) -> Float[Array, ""]:
        """Of the loss, by its quadratic model -<g, J s> - 1/2 <J s, H J s> at theta."""
        outputs, moved = jax.jvp(lambda p: self.f(p, self.x), (theta,), (step,))
        slope, hessian = loss_derivatives(self.loss, outputs, self.y)
        return -jnp.vdot(slope + 0.5 * hessian(moved), moved)


def prepare(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    trainable: Trainable,
    loss: Loss = squared_error,
) -> Problem:
    """Parameters parted, everything in the precision of those that are trained, shapes checked.

    Raises ValueError for an f that does not return one array (N, ...), a loss that is no number, or
    targets that the loss refuses.
    """
    moving, fixed = partition(params, trainable)
    moving = jax.tree.map(jnp.asarray, moving)
    dtype = jnp.result_type(*jax.tree.leaves(moving))
    f = bind_fixed(f, fixed)
    outputs = output_shape(f, moving, x)

    def converted(leaf):
        leaf = jnp.asarray(leaf)
        numbers = loss is squared_error or jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(dtype) if numbers else leaf

    if loss is squared_error:
        check_targets(outputs, y)
    elif as_sum(loss) is not None:  # of another loss the targets may be anything
        examples.num_examples((x, y), "inputs and targets")
    y = jax.tree.map(converted, y)
    same = f if outputs.dtype == dtype else lambda p, x: f(p, x).astype(dtype)
    check_loss(loss, outputs.update(dtype=dtype), y)
    return Problem(same, moving, fixed, x, y, loss)


def iterate(
    problem: Problem,
    step: Callable[[PyTree, Any], tuple[PyTree, dict[str, Array]]],
    damping: Any,
    *,
    max_steps,
    tolerance,
    target_loss,
) -> Solution:
    """Repeat `step` (theta, damping -> new theta, info) until the loss settles or blows up.

    Without a target_loss it is 0 for a loss that is known not to be negative, -infinity for others.
    """
    check_positive_integer("max_steps", max_steps, below=2**31)
    check_non_negative("tolerance", tolerance)
    if as_sum(problem.loss) is not None:
        target_loss = 0.0 if target_loss is None else target_loss
        check_non_negative("target_loss", target_loss)
    elif target_loss is None:
        target_loss = -jnp.inf
    elif not is_traced(target_loss):
        value = np.asarray(target_loss)
        if not (np.issubdtype(value.dtype, np.number) and np.all(np.isfinite(value))):
            raise ValueError(f"target_loss must be a finite real number, got {target_loss!r}")
    adaptive = isinstance(damping, LevenbergMarquardt)

    def going(carry):
        return carry[1] == RUNNING

    def advance(carry):
        theta, _, count, loss, history, state = carry
        proposal, info = step(theta, state.value if adaptive else damping)
        displacement = tree_sub(proposal, theta)
        info["step_norm"] = norm(displacement)
        new_loss = problem.value(proposal).astype(loss.dtype)
        accepted = jnp.isfinite(new_loss) & jnp.isfinite(info["step_norm"])
        settled = (jnp.abs(new_loss - loss) <= tolerance * jnp.abs(loss)) | (
            new_loss <= target_loss
        )
        # A flat region far above the start (an unbounded step into saturation) is no solution.
        lost = ~accepted | (settled & (new_loss > history["loss"][0]))
        if adaptive:
            accepted &= new_loss <= loss
            settled &= accepted
            predicted = problem.predicted_decrease(theta, displacement)
            info |= {"damping": state.value, "accepted": accepted}
            state = damping.after(state, _ratio(loss - new_loss, predicted), accepted)
            new_loss = jnp.where(accepted, new_loss, loss)
            lost = ~jnp.isfinite(state.value)
        history = {
            # Beyond the last entry nothing is written.
            k: v.at[count].set(jnp.asarray(info[k], v.dtype), mode="drop") if k in info else v
            for k, v in history.items()
        }
        history["loss"] = history["loss"].at[count + 1].set(new_loss, mode="drop")
        status = jnp.where(
            lost,
            int(Status.DIVERGED),
            jnp.where(
                settled,
                int(Status.CONVERGED),
                jnp.where(count + 1 >= max_steps, int(Status.MAX_STEPS), RUNNING),
            ),
        )
        theta = jax.tree.map(
            lambda a, b: jnp.where(accepted, a, b).astype(b.dtype), proposal, theta
        )
        return theta, status, count + 1, new_loss, history, state

    loss = problem.value(problem.start)
    state = damping.begin(loss.dtype) if adaptive else None
    names = jax.eval_shape(step, problem.start, state.value if adaptive else damping)[1].keys()
    names |= {"step_norm", "loss"} | ({"damping", "accepted"} if adaptive else set())
    kept = min(max_steps, MOST_KEPT) + 1
    history = {name: jnp.full(kept, jnp.nan, loss.dtype) for name in sorted(names)}
    history["loss"] = history["loss"].at[0].set(loss)
    started = jnp.where(loss <= target_loss, int(Status.CONVERGED), RUNNING)
    status = jnp.where(jnp.isfinite(loss), started, int(Status.DIVERGED))
    theta, status, count, _, history, _ = jax.lax.while_loop(
        going, advance, (problem.start, status, jnp.asarray(0), loss, history, state)
    )
    return Solution(combine(theta, problem.fixed), status, count, history)


def _ratio(a, b):
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
