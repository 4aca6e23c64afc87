"""Where a run of iterative linearisation is."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Int, PyTree

from iterlin.linearise.parameters import Trainable, combine, partition

NOT_YET = -1


class TrainState(NamedTuple):
    """All that a run is: training resumes from it exactly.

    step: steps taken. params: theta. anchor: theta_s. order: this epoch's order of the examples
    (empty for full batch). updates: re-linearisations after the first. anchored_at: the step of
    the latest. solved: whether the stopping rule has found the present linear problem solved.
    statistics: running statistics of normalised layers, () without. diverged_at, converged_at:
    the step that gave a non-finite loss or parameter (it is not applied) or found the target loss
    reached; -1 before. A run that has diverged or converged stands still.
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
        return (self.diverged_at != NOT_YET) | (self.converged_at != NOT_YET)


# The leaves of the state of several runs lead with the run, all but the step, which they share.
RUN_AXES = TrainState(None, *[0] * (len(TrainState._fields) - 1))


def parted(state: TrainState, trainable: Trainable) -> tuple[TrainState, PyTree]:
    """A state of the moving parameters alone, and the fixed ones; `whole` undoes it."""
    params, fixed = partition(state.params, trainable)
    return state._replace(params=params, anchor=partition(state.anchor, trainable)[0]), fixed


def whole(state: TrainState, fixed: PyTree) -> TrainState:
    """The state with all parameters, as schedules and users see it."""
    return state._replace(params=combine(state.params, fixed), anchor=combine(state.anchor, fixed))
