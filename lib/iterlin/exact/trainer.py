"""Train with an engine, one linearisation after the other, for the loop `training.loop.run`."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin.exact.calendar import Calendar
from iterlin.exact.engines import Engine
from iterlin.exact.task import Position
from iterlin.linearise.devices import to_array
from iterlin.training.loop import Trainer, recorded
from iterlin.training.state import TrainState, all_ended
from iterlin.training.step import all_finite

# Names that the history has in addition to those of training by steps.
SPENT = ("evaluations", "stability", "seconds")


def spent_by_steps(steps: np.ndarray, seconds: float) -> dict[str, np.ndarray]:
    """Return `SPENT` of a run that took every step; its seconds are known at the end alone."""
    unknown = np.full(len(steps), np.nan)
    return dict(zip(SPENT, (steps, unknown, np.append(unknown[1:], seconds)), strict=True))


_all_finite = jax.jit(all_finite)


class ExactTrainer(Trainer):
    """Train with an engine.

    The attribute `state` is that at the latest stop. at_target(state) is called at each
    linearisation and tells whether the network has reached the target loss.
    """

    def __init__(
        self,
        engine: Engine,
        calendar: Calendar,
        state: TrainState,
        observe: Callable[[TrainState], dict],
        at_target: Callable[[TrainState], bool],
    ):
        self.engine, self.calendar = engine, calendar
        self.observe, self.at_target = observe, at_target
        self.state = state
        self._position: Position | None = None
        self.spent = 0  # Products with J J^T in earlier linearisations.
        self.names = [*jax.eval_shape(observe, state), *SPENT]

    @property
    def position(self) -> Position:
        """The engine's position. It begins when first asked, not where a run has been restored."""
        if self._position is None:
            self._position = self.engine.begin(self.state.params)
        return self._position

    def go_to(self, target: int) -> Iterator[None]:
        while (step := self.step) < target:
            if all_ended(self.state):
                self.state = self.state._replace(step=to_array(target, jnp.int32))
                return
            linearizing = step > int(self.state.anchored_at) and self.calendar.is_due(self.state)
            if (linearizing or step == 0) and self.at_target(self.state):
                self.state = self.state._replace(converged_at=self.state.step)
                continue
            if linearizing:
                self._linearize()
            anchored = int(self.state.anchored_at)
            stop = self.calendar.next_stop(self.state, target)
            while not self._arrived(stop - anchored):
                yield
                self._position = self.engine.forward(self.position, stop - anchored)
            self._stop_at(anchored, stop - anchored)

    def _linearize(self) -> None:
        self.spent += self.position.evaluations
        self._position = self.engine.begin(self.state.params, self.position)
        self.state = self.state._replace(
            anchor=self.state.params,
            updates=to_array(int(self.state.updates) + 1, jnp.int32),
            anchored_at=self.state.step,
            solved=to_array(False),
        )

    def _arrived(self, steps: int) -> bool:
        position = self.position
        return position.solved or position.failed or position.steps >= steps

    def _stop_at(self, anchored: int, steps: int) -> None:
        """Copy the parameters that the engine has reached into the state."""
        if self.position.solved:
            steps = min(steps, max(1, self.position.steps))
        reached = to_array(anchored + steps, jnp.int32)
        params = self.engine.parameters(self.position)
        if self.position.failed or not _all_finite(params):
            self.state = self.state._replace(step=reached, diverged_at=reached)
            return
        solved = to_array(self.position.solved)
        self.state = self.state._replace(step=reached, params=params, solved=solved)

    def look(self, seconds: float) -> dict[str, np.ndarray]:
        seen = recorded(self.observe(self.state))
        evaluations = np.asarray(self.spent + self.position.evaluations)
        numbers = evaluations, np.asarray(self.position.stability), np.asarray(seconds)
        spent: dict[str, np.ndarray] = dict(zip(SPENT, numbers, strict=True))
        return seen | spent

    def save(self) -> PyTree:
        return self.state, self.position._replace(anchor=None), self.spent

    def shapes(self) -> PyTree:
        inner = self.engine.start_shapes(self.state.params)
        return self.state, Position(None, inner), self.spent

    def restore(self, kept: PyTree) -> None:
        self.state, position, spent = kept
        _, inner, *numbers = position
        self._position = Position(self.state.anchor, inner, *(v.item() for v in numbers))
        self.spent = int(spent)

    def status(self) -> str:
        return f"{self.spent + self.position.evaluations} products"
