"""Re-linearise after a fixed training time instead of a fixed number of steps.

K steps of size eta train for the time eta K. The largest stable eta depends on the kernel, which
changes from one linearisation to the next. `for_time` measures the curvature at each linearisation
and chooses eta and K for a given time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from iterlin.linearise.krylov import power_iteration
from iterlin.linearise.validation import check_open_unit_interval, check_positive
from iterlin.training.algorithm import LinearProblem
from iterlin.training.losses import smoothness
from iterlin.training.schedules import Schedule

# Power iteration approaches the largest eigenvalue from below: SAFETY corrects for the rest.
ITERATIONS, SAFETY = 20, 1.1


class Timed(NamedTuple):
    """An optimiser and the schedule that belongs to it, as `for_time` returns them.

    Attributes:
        optimizer: Pass it to `Algorithm`.
        schedule: Pass it to `train`.
    """

    optimizer: optax.GradientTransformation
    schedule: Schedule


class TimedState(NamedTuple):
    """Optimiser state of `for_time`.

    Attributes:
        step_size: Step size of the current linear problem.
        left: Steps left until the next linearisation.
    """

    step_size: Float[Array, ""]
    left: Int[Array, ""]


def for_time(time: float, *, fraction: float = 0.5) -> Timed:
    """Train each linear problem by gradient descent for the same time, in stable steps.

    Each linearisation measures lambda_max(J J^T) on the batch, with 20 Jacobian products. The
    curvature is then at most L = b lambda_max + 2 penalty, where b bounds the curvature of the loss
    in the outputs (`losses.smoothness`). Gradient descent is stable for steps below 2 / L. The
    period has ceil(time L / (2 fraction)) steps, each at most the given fraction of 2 / L.

    Args:
        time: Training time eta K of a period.
        fraction: Step size relative to the stability limit 2 / L.

    Returns:
        An optimiser for `Algorithm`, and a schedule for `train`.

    Raises:
        ValueError: If time is not positive and finite, or fraction is outside (0, 1); in training,
            if `losses.smoothness` knows no bound for the loss, if the algorithm has a regularizer,
            or if the schedule is used without the optimizer.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> timed = il.for_time(5.0)
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, timed.optimizer)
    >>> settings = {"schedule": timed.schedule, "num_steps": 50}
    >>> state, _ = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(state.updates, f(state.params, x).round(3))
    11 [ 0.5 -0.5]
    """
    check_positive("time", time)
    check_open_unit_interval("fraction", fraction)

    def init(params: PyTree) -> TimedState:
        return TimedState(jnp.zeros(()), jnp.zeros((), jnp.int32))

    def update(updates: PyTree, state: Any, params: Any = None, **extra: Any):
        problem: LinearProblem = extra["value_fn"]
        if problem.algorithm.regularizer is not None:
            raise ValueError("for_time knows no stable step of a regularizer: leave it out")

        def measure():
            # lambda_max(J J^T)
            value, jvp = jax.linearize(problem.outputs, params)
            transpose = jax.linear_transpose(jvp, params)
            start = jax.random.normal(jax.random.key(0), value.shape, value.dtype)
            found, _ = power_iteration(lambda u: jvp(transpose(u)[0]), start, ITERATIONS)
            largest, algorithm = SAFETY * found, problem.algorithm
            bound = smoothness(algorithm.loss, problem.y) * largest
            bound = bound + 2 * algorithm.penalty
            steps = jnp.maximum(jnp.ceil(time * bound / (2 * fraction)), 1)
            return TimedState((time / steps).astype(state.step_size.dtype), steps.astype(jnp.int32))

        now = jax.lax.cond(problem.linearizing, measure, lambda: state)
        scaled = jax.tree.map(lambda g: (-now.step_size * g).astype(g.dtype), updates)
        return scaled, now._replace(left=now.left - 1)

    def due(step, state):
        left = optax.tree.get(state.optimizer_state, "left", None)
        if left is None:
            raise ValueError("the schedule of for_time needs its optimizer in the algorithm")
        return left <= 0

    return Timed(optax.GradientTransformationExtraArgs(init, update), Schedule(due))
