"""Outer loop shared by the Gauss-Newton solvers.

A solver supplies the computation of one step. The loop takes the steps, accepts or rejects each of
them, adapts the damping, records the history and decides when the run ends.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from iterlin.curvature.levenberg_marquardt import DampingState, LevenbergMarquardt
from iterlin.curvature.products import loss_gradient_and_hessian
from iterlin.linearise import examples
from iterlin.linearise.compiled import SharedJit, as_argument
from iterlin.linearise.devices import to_array
from iterlin.linearise.krylov import norm
from iterlin.linearise.linearization import Network, check_finite_examples, output_shape
from iterlin.linearise.parameters import Trainable, bind_fixed, combine, partition
from iterlin.linearise.validation import (
    check_non_negative,
    check_positive_integer,
    check_targets,
    is_traced,
)
from iterlin.training.losses import Loss, as_sum, check_loss, squared_error


class Status(IntEnum):
    """How a run ended.

    Attributes:
        CONVERGED: The loss settled no higher than it began, or reached its target.
        MAX_STEPS: The run took `max_steps` steps without settling.
        DIVERGED: The loss became non-finite, or settled above its first value.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> found = il.gauss_newton(f, jnp.zeros(2), x, y, max_steps=20, tolerance=1e-6)
    >>> print(il.Status(found.status).name)
    CONVERGED
    """

    CONVERGED = 0
    MAX_STEPS = 1
    DIVERGED = 2


RUNNING = -1
# The history stores this many steps at most, so that a very large max_steps costs no memory.
HISTORY_LIMIT = 100_000


class Solution(NamedTuple):
    """The final parameters of a run, how it ended, and its history.

    Attributes:
        params: The last finite iterate, a pytree like the params that were given.
        status: A `Status`, as an integer array ().
        num_steps: Number of steps taken, an integer array (). Rejected steps count.
        history: Arrays of shape (min(max_steps, 100,000) + 1,). Entry t belongs to iterate t.
            Entries after the last iterate are NaN, and iterates beyond the end of the arrays are
            not recorded. The keys are:

            - "loss": the loss at iterate t, 1/2 ||f - y||^2 unless another loss was given;
            - "gradient_norm": the norm of the gradient of the loss in the parameters;
            - "step_norm": the norm of the step taken from iterate t;
            - "certificate" (truncated Gauss-Newton, or with a period): ||r|| / ||J^T z|| of the
              step taken from t, where r is the residual of the Gauss-Newton equations;
            - "inner_steps" (truncated Gauss-Newton): conjugate-gradient steps;
            - "damping" and "accepted" (`LevenbergMarquardt`): the damping of the step tried from t,
              and whether the step was accepted (1) or rejected (0).

            With a loss divided by N, "loss", "gradient_norm" and "damping" are divided by N, too.
    """

    params: PyTree
    status: Int[Array, ""]
    num_steps: Int[Array, ""]
    history: dict[str, Float[Array, " T"]]


class Problem(NamedTuple):
    """The minimisation of loss(f(theta, x), y) over the trained parameters theta.

    Attributes:
        f: Network as a function of (trained parameters, x).
        initial: Trained parameters at the start of the run.
        fixed: Parameters that are not trained.
        x: Inputs of N examples.
        y: Targets of N examples.
        loss: Function of (outputs, targets).
    """

    f: Network
    initial: PyTree
    fixed: PyTree
    x: PyTree
    y: PyTree
    loss: Loss

    def loss_at(self, theta: PyTree) -> Float[Array, ""]:
        """Evaluate the loss at the trained parameters theta."""
        return self.loss(self.f(theta, self.x), self.y)

    def predicted_decrease(self, theta: PyTree, step: PyTree) -> Float[Array, ""]:
        """Predict the decrease of the loss along a step s, by the quadratic model at theta.

        The model is -<g, J s> - 1/2 <J s, H J s>, with the gradient g and the Hessian H of the loss
        in the outputs. It does not contain the damping.
        """
        outputs, output_change = jax.jvp(lambda p: self.f(p, self.x), (theta,), (step,))
        gradient, hessian = loss_gradient_and_hessian(self.loss, outputs, self.y)
        return -jnp.vdot(gradient + 0.5 * hessian(output_change), output_change)


def make_problem(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    trainable: Trainable,
    loss: Loss = squared_error,
) -> Problem:
    """Check the arguments of a solver and convert them to the precision of the trained parameters.

    Raises ValueError if f does not return one array (N, ...), the loss does not return one number,
    the loss does not accept the targets, or NaN or inf in x reaches the outputs.
    """
    initial, fixed = partition(params, trainable)
    initial = jax.tree.map(to_array, initial)
    dtype = jnp.result_type(*jax.tree.leaves(initial))
    f = bind_fixed(f, fixed)
    outputs = output_shape(f, initial, x)
    check_finite_examples(f, initial, x)

    if loss is squared_error:
        check_targets(outputs, y)
    elif as_sum(loss) is not None:  # the targets of a loss of unknown form may be anything
        examples.num_examples((x, y), "inputs and targets")

    def convert(target):
        target = jnp.asarray(target)
        real = loss is squared_error or jnp.issubdtype(target.dtype, jnp.floating)
        return target.astype(dtype) if real else target  # class labels stay integers

    y = jax.tree.map(convert, y)
    network = f if outputs.dtype == dtype else lambda p, x: f(p, x).astype(dtype)
    check_loss(loss, outputs.update(dtype=dtype), y)
    return Problem(network, initial, fixed, x, y, loss)


class _Iterate(NamedTuple):
    """The state of the loop. `damping` is None unless the damping adapts."""

    params: PyTree
    status: Int[Array, ""]
    num_steps: Int[Array, ""]
    loss: Float[Array, ""]
    history: dict[str, Float[Array, " T"]]
    damping: DampingState | None


def run_outer_loop(
    problem: Problem,
    step: Callable[[PyTree, Any], tuple[PyTree, dict[str, Array]]],
    damping: float | Array | LevenbergMarquardt,
    *,
    max_steps,
    tolerance: float | Array,
    target_loss: float | Array | None,
) -> Solution:
    """Take steps until the loss settles, reaches its target or diverges.

    step: function (theta, damping) -> (next theta, record), with the numbers that the history
    stores for the step, by name. A target_loss of None means 0 if the loss is known to be
    non-negative, otherwise minus infinity. Other arguments are those of `gauss_newton`.
    """
    check_positive_integer("max_steps", max_steps, below=2**31)
    check_non_negative("tolerance", tolerance, scalar=True)
    target_loss = as_argument(_checked_target(problem.loss, target_loss))
    tolerance = as_argument(tolerance)
    if not isinstance(damping, LevenbergMarquardt):
        damping = as_argument(damping)

    def next_iterate(current: _Iterate) -> _Iterate:
        adapted = current.damping
        proposal, record = step(current.params, damping if adapted is None else adapted.value)
        displacement = optax.tree.sub(proposal, current.params)
        step_norm = norm(displacement)
        record = record | {"step_norm": step_norm}
        loss = problem.loss_at(proposal).astype(current.loss.dtype)
        accepted = jnp.isfinite(loss) & jnp.isfinite(step_norm)
        change = jnp.abs(loss - current.loss)
        settled = (change <= tolerance * jnp.abs(current.loss)) | (loss <= target_loss)
        if adapted is None:
            # A full step can land in a flat region where the loss is far above its first value.
            # The loss settles there, but the run has not converged.
            diverged = ~accepted | (settled & (loss > current.history["loss"][0]))
        else:
            accepted &= loss <= current.loss
            settled &= accepted
            record |= {"damping": adapted.value, "accepted": accepted}
            predicted = problem.predicted_decrease(current.params, displacement)
            adapted = adapted.update(_gain_ratio(current.loss - loss, predicted), accepted)
            diverged = ~jnp.isfinite(adapted.value)
            loss = jnp.where(accepted, loss, current.loss)
        num_steps = current.num_steps + 1
        return _Iterate(
            params=jax.tree.map(
                lambda new, old: jnp.where(accepted, new, old).astype(old.dtype),
                proposal,
                current.params,
            ),
            status=_status(diverged, settled, num_steps >= max_steps),
            num_steps=num_steps,
            loss=loss,
            history=_recorded(current.history, current.num_steps, record, loss),
            damping=adapted,
        )

    def solve(initial) -> _Iterate:
        first = _first_iterate(problem, initial, step, damping, max_steps, target_loss)
        return jax.lax.while_loop(lambda current: current.status == RUNNING, next_iterate, first)

    last = SharedJit(solve)(problem.initial)
    return Solution(combine(last.params, problem.fixed), last.status, last.num_steps, last.history)


def _first_iterate(problem: Problem, initial, step, damping, max_steps, target_loss) -> _Iterate:
    loss = problem.loss_at(initial)
    adapted = None
    if isinstance(damping, LevenbergMarquardt):
        adapted = damping.initial_state(loss.dtype)
    names = {"loss", "step_norm"} | (set() if adapted is None else {"damping", "accepted"})
    names |= set(jax.eval_shape(step, initial, damping if adapted is None else adapted.value)[1])
    length = min(max_steps, HISTORY_LIMIT) + 1
    history = {name: jnp.full(length, jnp.nan, loss.dtype) for name in sorted(names)}
    history["loss"] = history["loss"].at[0].set(loss)
    return _Iterate(
        params=initial,
        status=_status(~jnp.isfinite(loss), loss <= target_loss, False),
        num_steps=jnp.asarray(0),
        loss=loss,
        history=history,
        damping=adapted,
    )


def _checked_target(loss: Loss, target_loss):
    """Return the loss at which a run ends, or raise ValueError if it is outside its range."""
    if as_sum(loss) is not None:
        target_loss = 0.0 if target_loss is None else target_loss
        check_non_negative("target_loss", target_loss, scalar=True)
    elif target_loss is None:
        return -jnp.inf
    elif not is_traced(target_loss):
        value = np.asarray(target_loss)
        if not (np.issubdtype(value.dtype, np.number) and np.all(np.isfinite(value))):
            raise ValueError(f"target_loss must be a finite real number, got {target_loss!r}")
    return target_loss


def _status(diverged, settled, exhausted) -> Int[Array, ""]:
    """Return `RUNNING` or the `Status` of a run; the first condition that holds decides."""
    status = jnp.where(exhausted, int(Status.MAX_STEPS), RUNNING)
    status = jnp.where(settled, int(Status.CONVERGED), status)
    return jnp.where(diverged, int(Status.DIVERGED), status)


def _recorded(history, index, record, loss) -> dict[str, Array]:
    """Write the record of the step from iterate `index`, and the loss of the next iterate."""

    def written(name, index, value):
        """The mode "drop" ignores an index beyond the end of the array."""
        values = history[name]
        return values.at[index].set(jnp.asarray(value, values.dtype), mode="drop")

    found = {name: written(name, index, value) for name, value in record.items()}
    return found | {"loss": written("loss", index + 1, loss)}


def _gain_ratio(actual, predicted) -> Array:
    """Return actual / predicted decrease of the loss, or 0 if no decrease was predicted."""
    return jnp.where(predicted > 0, actual / jnp.where(predicted > 0, predicted, 1), 0)
