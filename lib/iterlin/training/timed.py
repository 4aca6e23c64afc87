"""Periods of a fixed time rather than of a fixed number of steps.

What a period of K steps of size eta moves is eta K, and how large eta may be depends on the kernel,
which changes from one linearisation to the next. Here the time is given; the curvature is measured
at each linearisation, and the steps are a fraction of the largest known to be stable there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from iterlin.linearise import examples
from iterlin.linearise.krylov import power_iteration
from iterlin.linearise.validation import check_open_unit_interval, check_positive
from iterlin.training.losses import smoothness
from iterlin.training.schedules import Schedule

# Power iteration approaches the largest eigenvalue from below.
ITERATIONS, SAFETY = 20, 1.1


class Timed(NamedTuple):
    """An optimizer for `Algorithm` and the schedule that goes with it."""

    optimizer: optax.GradientTransformation
    schedule: Schedule


class TimedState(NamedTuple):
    """The step size of the present linear problem, and how many of its steps are left."""

    step_size: Float[Array, ""]
    left: Int[Array, ""]


def for_time(time: float, *, fraction: float = 0.5) -> Timed:
    """Gradient descent on each linear problem for the same time, in steps known to be stable.

    At each linearisation lambda_max(J J^T) is measured on the batch (20 products) and a bound
    L = b lambda_max + 2 penalty on the curvature taken, b that of the loss in the outputs wherever
    they are (`losses.smoothness`: 1/2 for cross-entropy); the period then has
    ceil(time L / (2 fraction)) steps, of at most `fraction` of the 2 / L at which descent turns
    unstable.

    Raises ValueError for a time that is not positive and finite or a fraction outside (0, 1), and,
    when it is used, for a loss of which no bound is known.

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

    def init(params):
        return TimedState(jnp.zeros(()), jnp.zeros((), jnp.int32))

    def update(gradient, state, params, *, value_fn, **_):
        def measured():
            largest = SAFETY * _largest_eigenvalue(value_fn.outputs, params)
            algorithm = value_fn.algorithm
            bound = smoothness(algorithm.loss, examples.num_examples(value_fn.y)) * largest
            bound = bound + 2 * algorithm.penalty
            steps = jnp.maximum(jnp.ceil(time * bound / (2 * fraction)), 1)
            return TimedState((time / steps).astype(state.step_size.dtype), steps.astype(jnp.int32))

        now = jax.lax.cond(value_fn.linearizing, measured, lambda: state)
        moved = jax.tree.map(lambda g: (-now.step_size * g).astype(g.dtype), gradient)
        return moved, now._replace(left=now.left - 1)

    def due(step, state):
        return state.optimizer_state.left <= 0

    return Timed(optax.GradientTransformationExtraArgs(init, update), Schedule(due))


def _largest_eigenvalue(outputs, params: PyTree) -> Float[Array, ""]:
    """lambda_max(J J^T) of a function of the parameters."""
    value, jvp = jax.linearize(outputs, params)
    transpose = jax.linear_transpose(jvp, params)
    start = jax.random.normal(jax.random.key(0), value.shape, value.dtype)
    return power_iteration(lambda u: jvp(transpose(u)[0]), start, ITERATIONS)[0]
