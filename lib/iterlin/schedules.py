"""When to re-linearise, and when a linear problem is solved.

A schedule is a plain function (step, state) -> bool of traced values. It is asked before every
step; true means 'take the current parameters as the new point of expansion'. Training expands at
its first parameters whatever the schedule says. `state` is the `TrainState`, so a user's schedule
may look at the parameters, the anchor or the step.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree

from iterlin.linearization import Network
from iterlin.losses import Loss, loss_over_slices
from iterlin.runtime.slices import in_slices
from iterlin.validation import positive_integer

Schedule = Callable[[Array, Any], Array]

# Larger than any step counter: a period that never comes round (erratum 11: K beyond the end of a
# run and K = infinity are the same algorithm).
NEVER = 2**31 - 1


def every(period: int | float | Array) -> Schedule:
    """Fixed period K (Algorithm 3): re-linearise when the step is a multiple of `period`.

    period 1 is gradient descent, infinity is linearised training. It may be a traced integer.
    Raises ValueError unless it is a positive integer or infinity.
    """
    positive_integer("period", period, infinity=True)
    if not isinstance(period, Array):
        period = int(min(period, NEVER))

    def schedule(step, state):
        return step % period == 0

    schedule.every_step = not isinstance(period, Array) and period == 1
    return schedule


def never() -> Schedule:
    """Linearised training: the expansion at the initial parameters is kept (K = infinity)."""
    return every(math.inf)


def when_solved(max_period: int | float | Array) -> Schedule:
    """Re-linearise when the linear problem is solved, after `max_period` steps at the latest.

    What counts as solved is the rule `Solved` that training is given; without one this
    is `every(max_period)`.
    """
    positive_integer("max_period", max_period, infinity=True)
    if not isinstance(max_period, Array):
        max_period = int(min(max_period, NEVER))

    def schedule(step, state):
        return state.solved | (step - state.anchored_at >= max_period)

    return schedule


def is_every_step(schedule: Schedule) -> bool:
    """Whether it is known to re-linearise at every step: then training is gradient descent."""
    return getattr(schedule, "every_step", False)


def periods_array(periods) -> Array:
    """Periods as an int32 array that `every` accepts under vmap, infinity as `NEVER`."""
    for period in periods:
        positive_integer("period", period, infinity=True)
    return jnp.asarray([int(min(period, NEVER)) for period in periods], dtype=jnp.int32)


class Solved(NamedTuple):
    """When a linear problem counts as solved, looked at every `check_every` steps.

    accuracy: the proxy classifies at least this fraction of the training examples; None leaves it
    out. gradient: the norm of the proxy objective's gradient over all examples, penalty included,
    has fallen to this fraction of what it was at theta_s; None leaves it out. Either suffices. With
    cross-entropy and no penalty a linear model that separates the data has no minimiser, so that
    'solve completely' means nothing without such a rule. slice_size: examples looked at together.
    """

    check_every: int
    accuracy: float | None = 1.0
    gradient: float | None = None
    slice_size: int = 500

    def met(
        self,
        proxy: Network,
        loss: Loss,
        add_penalty: Callable[[PyTree, PyTree], PyTree],
        params: PyTree,
        anchor: PyTree,
        data: tuple[Array, Array],
    ) -> Bool[Array, ""]:
        """Whether params solve the problem of the proxy at the anchor, on all of data = (x, y).

        add_penalty(gradient, theta) adds the penalty's gradient at theta.
        """
        x, y = data
        solved = jnp.asarray(False)
        if self.accuracy is not None:
            sliced = in_slices(proxy, self.slice_size)
            solved |= jnp.mean(jnp.argmax(sliced(params, x), -1) == y) >= self.accuracy
        if self.gradient is not None:

            def norm(theta):
                def gradient_of(loss, x, y):
                    return jax.grad(lambda p: loss(proxy(p, x), y))(theta)

                gradient = loss_over_slices(gradient_of, loss, self.slice_size, x, y)
                return optax.tree.norm(add_penalty(gradient, theta))

            solved |= norm(params) <= self.gradient * norm(anchor)
        return solved
