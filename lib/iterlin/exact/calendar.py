"""Find the next re-linearisation step without taking the steps before it."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.training.schedules import Schedule
from iterlin.training.state import TrainState

# Steps that a schedule is asked about at once.
BLOCK = 2**16


class Answers:
    """A schedule's answers, which depend on the step and on when it last said yes.

    Of one that carries `check_every` (`schedules.when`) also on the parameters, every so many steps
    after a linearisation. The states it is asked about lack the fixed parameters, of which it is
    told.
    """

    def __init__(self, schedule: Schedule, fixed: PyTree = ()):
        def block(first, state, fixed):
            steps = first + jnp.arange(BLOCK, dtype=jnp.int32)
            asked = schedule.bind_fixed(fixed)
            yes = jax.vmap(lambda step: asked(step, state._replace(step=step)))(steps)
            return jnp.any(yes), jnp.argmax(yes)

        self.check_every = schedule.check_every
        self._max_period = int(schedule.max_period)
        self._fixed = fixed
        self._block = jax.jit(block)
        self._now = jax.jit(lambda step, state, fixed: schedule.bind_fixed(fixed)(step, state))

    def program(self, state: TrainState):
        """What the schedule computes, as a jaxpr: periods are constants in it."""
        return self._now.trace(state.step, state, self._fixed).jaxpr

    def now(self, state: TrainState) -> bool:
        return bool(self._now(state.step, state, self._fixed))

    def first_after(self, state: TrainState, limit: int) -> int:
        """The first step beyond the present one, `limit` at most, at which it says yes; or looks at
        the parameters, which may be that it says yes."""
        first = int(state.step) + 1
        if self.check_every is not None:
            anchored = int(state.anchored_at)
            looks = anchored - (anchored - first) // self.check_every * self.check_every
            return min(looks, max(first, anchored + self._max_period), limit)
        while first < limit:
            found, place = self._block(jnp.asarray(first, jnp.int32), state, self._fixed)
            if found:
                return min(first + int(place), limit)
            first += BLOCK
        return limit
