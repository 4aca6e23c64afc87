"""When to re-linearise. A schedule is a plain function (step, state) -> bool of traced values.

It is asked before every step; true means 'take the current parameters as the new point of
expansion'. Training expands at its first parameters whatever the schedule says. `state` is the
`TrainState`, so a user's schedule may look at the parameters, the anchor or the step.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

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

    What counts as solved is the rule `stopping.Solved` that training is given; without one this
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
