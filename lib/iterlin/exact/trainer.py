"""A run by an exact engine, from linearisation to linearisation, for the loop of all runs."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin.exact.calendar import Answers
from iterlin.exact.task import Position
from iterlin.training.state import TrainState

# What the history has beside that of training by steps.
SPENT = ("evaluations", "stability", "seconds")
# Fields of a position that are arrays, or of the run.
_NOT_NUMBERS = {"anchor", "inner", "fixed"}


class ExactTrainer:
    """Trains by an engine; a `training.loop.Trainer`.

    Attributes:
        state: The state at the latest stop, of the trained parameters.
        position: How far the present linearisation has been trained.

    Args:
        engine: One of `exact.engines`.
        schedule: Answers when to re-linearise.
        state: The first state.
        fixed: The parameters that are not trained.
        observe: observe(state) -> {name: array}.
        at_target: at_target(state) -> whether the network is at the target loss, asked at each
            linearisation.
    """

    notes = ("spent", *sorted(set(Position._fields) - _NOT_NUMBERS))

    def __init__(
        self,
        engine: Any,
        schedule: Answers,
        state: TrainState,
        fixed: PyTree,
        observe: Callable[[TrainState], dict],
        at_target: Callable[[TrainState], bool],
    ):
        self.engine, self.schedule, self.fixed = engine, schedule, fixed
        self.observe, self.at_target = observe, at_target
        self.state = state
        self.position: Position = engine.begin(state.params, fixed=fixed)
        self.spent = 0  # products with J J^T of earlier linearisations
        self.names = [*jax.eval_shape(observe, state), *SPENT]

    @property
    def step(self) -> int:
        return int(self.state.step)

    def go_to(self, target: int) -> Iterator[None]:
        """Train up to a step, with a stop wherever the schedule looks at the parameters."""
        while (step := self.step) < target:
            if self.state.ended:
                self.state = self.state._replace(step=jnp.asarray(target, jnp.int32))
                return
            linearizing = step > int(self.state.anchored_at) and self.schedule.now(self.state)
            if (linearizing or step == 0) and self.at_target(self.state):
                self.state = self.state._replace(converged_at=self.state.step)
                continue
            if linearizing:
                self._linearize()
            anchored = int(self.state.anchored_at)
            stop = self.schedule.first_after(self.state, target)
            while not self._arrived(stop - anchored):
                yield
                self.position = self.engine.forward(self.position, stop - anchored)
            self._stop_at(anchored, stop - anchored)

    def _linearize(self) -> None:
        self.spent += self.position.evaluations
        self.position = self.engine.begin(self.state.params, self.position, fixed=self.fixed)
        self.state = self.state._replace(
            anchor=self.state.params,
            updates=self.state.updates + 1,
            anchored_at=self.state.step,
            solved=jnp.asarray(False),
        )

    def _arrived(self, steps: int) -> bool:
        position = self.position
        return position.solved or position.failed or position.steps >= steps

    def _stop_at(self, anchored: int, steps: int) -> None:
        """Take over the parameters that the engine has reached."""
        if self.position.solved:
            steps = min(steps, max(1, self.position.steps))
        reached = jnp.asarray(anchored + steps, jnp.int32)
        params = self.engine.parameters(self.position)
        finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(params))
        if self.position.failed or not finite:
            self.state = self.state._replace(step=reached, diverged_at=reached)
            return
        solved = jnp.asarray(self.position.solved)
        self.state = self.state._replace(step=reached, params=params, solved=solved)

    def look(self, seconds: float) -> dict[str, np.ndarray]:
        seen = {n: np.asarray(v) for n, v in jax.device_get(self.observe(self.state)).items()}
        evaluations = np.asarray(self.spent + self.position.evaluations)
        numbers = evaluations, np.asarray(self.position.stability), np.asarray(seconds)
        return seen | dict(zip(SPENT, numbers, strict=True))

    def save(self):
        notes = {k: v for k, v in self.position._asdict().items() if k not in _NOT_NUMBERS}
        return (self.state, self.position.inner), {**notes, "spent": self.spent}

    def restore(self, arrays, notes) -> None:
        (self.state, inner), notes = arrays, dict(notes)
        self.spent = notes.pop("spent")
        self.position = Position(self.state.anchor, inner, self.fixed, **notes)

    def status(self) -> str:
        return f"{self.spent + self.position.evaluations} products"
