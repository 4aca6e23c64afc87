"""Find the next re-linearisation step without taking the steps before it."""

import jax
import jax.numpy as jnp

from iterlin.linearise.compiled import SharedJit
from iterlin.linearise.devices import to_array
from iterlin.training.schedules import AtMultiples, Schedule
from iterlin.training.state import TrainState

# Number of steps at which a schedule is evaluated in one compiled call.
BLOCK = 2**16


class Calendar:
    """Evaluate a schedule at many future steps at once.

    A schedule may depend on the step and on the last re-linearisation. A schedule with
    `check_every` (`schedules.when`) also reads the parameters, every `check_every` steps after a
    re-linearisation. An engine must therefore stop there.
    """

    def __init__(self, schedule: Schedule):
        def block(first, state):
            steps = first + jnp.arange(BLOCK, dtype=jnp.int32)
            yes = jax.vmap(lambda step: schedule(step, state._replace(step=step)))(steps)
            return jnp.any(yes), jnp.argmax(yes)

        self.check_every = schedule.check_every
        self._period = schedule.due.period if isinstance(schedule.due, AtMultiples) else None
        self._max_period = int(schedule.max_period)
        self._block = SharedJit(block)
        self._now = SharedJit(lambda step, state: jnp.asarray(schedule(step, state)))

    def program(self, state: TrainState):
        """Return the schedule's jaxpr, which identifies it in a checkpoint."""
        return self._now.trace(state.step, state)

    def is_due(self, state: TrainState) -> bool:
        """Return whether the schedule asks for a re-linearisation at the state's step."""
        return bool(self._now(state.step, state))

    def next_stop(self, state: TrainState, limit: int) -> int:
        """Return the next step at which an engine must stop, at most `limit`.

        It must stop where the schedule asks for a re-linearisation or reads the parameters.
        """
        first = int(state.step) + 1
        if self.check_every is not None:
            anchored = int(state.anchored_at)
            check = anchored - (anchored - first) // self.check_every * self.check_every
            return min(check, max(first, anchored + self._max_period), limit)
        if self._period is not None:
            return min(-(-first // int(self._period)) * int(self._period), limit)
        while first < limit:
            found, place = self._block(to_array(first, jnp.int32), state)
            if found:
                return min(first + int(place), limit)
            first += BLOCK
        return limit
