"""The state of a training run."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from iterlin.linearise.parameters import combine

# Value of `diverged_at` and `converged_at` in a run that has done neither.
NOT_YET = -1


class TrainState(NamedTuple):
    """The state of a run, from which training resumes to the same bits.

    A schedule, the predicate of `when` and `Watch.observe` get it with all parameters, the fixed
    ones included, and may read every field. They are compiled: fields are traced arrays, so that a
    condition is written with `jnp.where` or `&`, not with `if` or `float`. A run that has diverged
    or converged keeps its parameters from then on.

    Attributes:
        step: Steps taken.
        params: The parameters theta.
        anchor: The point of expansion theta_s, a pytree like params.
        optimizer_state: State of the `optax` transformation.
        key: PRNG key of the run. Batches, augmentation and the network's keys are drawn from it.
        order: Order of the examples in this epoch, (N,); empty for full-batch training.
        updates: Re-linearisations after the first linearisation.
        anchored_at: Step of the latest linearisation.
        solved: Whether the stopping rule has found the current linear problem solved.
        statistics: Running statistics of normalisation layers, of batches that pass the network at
            the anchor; () for a network without them.
        diverged_at: Step whose loss or parameters were not finite (the step is not applied); -1 if
            there was none.
        converged_at: Step at which the target loss was reached; -1 if it was not.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> state, _ = il.train(algorithm, jnp.zeros(2), (x, y), schedule=10, num_steps=25)
    >>> print(isinstance(state, il.TrainState), state.step, state.updates, state.anchored_at)
    True 25 2 20
    >>> def far(state: il.TrainState):
    ...     since = state.step - state.anchored_at
    ...     return (since > 10) & (jnp.linalg.norm(state.params - state.anchor) > 0.1)
    >>> schedule = il.when(far, check_every=5)
    >>> state, _ = il.train(algorithm, jnp.zeros(2), (x, y), schedule=schedule, num_steps=50)
    >>> print(state.anchored_at)
    15
    """

    step: Int[Array, ""]
    params: PyTree
    anchor: PyTree
    optimizer_state: PyTree
    key: Array
    order: Int[Array, " N"]
    updates: Int[Array, ""]
    anchored_at: Int[Array, ""]
    solved: Bool[Array, ""]
    statistics: PyTree
    diverged_at: Int[Array, ""]
    converged_at: Int[Array, ""]

    @property
    def ended(self) -> Bool[Array, "..."]:
        """Whether the run has diverged or converged."""
        return (self.diverged_at != NOT_YET) | (self.converged_at != NOT_YET)


def all_ended(state: Any) -> bool:
    """Return whether all runs of a state have ended. On the host, which compiles nothing."""
    diverged, converged = np.asarray(state.diverged_at), np.asarray(state.converged_at)
    return bool(np.all((diverged != NOT_YET) | (converged != NOT_YET)))


# vmap axes of the state of several runs: all leaves lead with the run, except the shared step.
RUN_AXES: Any = TrainState._make([None] + [0] * (len(TrainState._fields) - 1))


def combine_state(state: TrainState, fixed: PyTree) -> TrainState:
    """Return the state of all parameters, as schedules and users see it."""
    return state._replace(params=combine(state.params, fixed), anchor=combine(state.anchor, fixed))
