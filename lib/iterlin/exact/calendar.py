"""When a schedule says yes next, found without taking the steps in between."""

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from iterlin.algorithm import TrainState
from iterlin.schedules import Schedule

# Steps that a schedule is asked about at once.
BLOCK = 2**16


def looks_at_parameters(schedule: Schedule, state: TrainState) -> bool:
    """Whether a schedule's answer depends on theta, which no engine but steps follows."""

    def asked(params):
        return schedule(state.step, state._replace(params=params))

    jaxpr = jax.make_jaxpr(asked)(state.params).jaxpr
    _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return any(used)


def ends_when_solved(schedule: Schedule, state: TrainState) -> bool:
    """Whether its answer at this state turns on the linear problem's being solved."""
    one = jnp.asarray(1, jnp.int32)
    before = schedule(one, state._replace(solved=jnp.asarray(False)))
    return bool(schedule(one, state._replace(solved=jnp.asarray(True)))) and not bool(before)


class Answers:
    """A schedule's answers, which depend on the step and on when it last said yes."""

    def __init__(self, schedule: Schedule):
        def block(first, state):
            steps = first + jnp.arange(BLOCK, dtype=jnp.int32)
            yes = jax.vmap(lambda step: schedule(step, state))(steps)
            return jnp.any(yes), jnp.argmax(yes)

        self._block = jax.jit(block)
        self._now = jax.jit(schedule)

    def program(self, state: TrainState):
        """What the schedule computes, as a jaxpr: periods are constants in it."""
        return self._now.trace(state.step, state).jaxpr

    def now(self, state: TrainState) -> bool:
        return bool(self._now(state.step, state))

    def first_after(self, state: TrainState, limit: int) -> int:
        """The first step beyond the present one, `limit` at most, at which it says yes."""
        first = int(state.step) + 1
        while first < limit:
            found, place = self._block(jnp.asarray(first, jnp.int32), state)
            if found:
                return min(first + int(place), limit)
            first += BLOCK
        return limit
