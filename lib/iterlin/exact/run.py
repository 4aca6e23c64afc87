"""One run by an exact engine, from linearisation to linearisation; stopped, it can go on."""

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from tqdm import tqdm

from iterlin.exact.calendar import Answers
from iterlin.exact.task import Position, Task
from iterlin.linearise import examples
from iterlin.linearise.parameters import bound
from iterlin.training import checkpoints
from iterlin.training.chunks import CHECKPOINT, History, OutOfTime, never
from iterlin.training.identity import (
    PARAMETERS,
    RECORDED,
    STEP,
    Identity,
    program_digest,
    start_of,
    summary,
)
from iterlin.training.state import TrainState, whole

# What the history of an exact engine has beside that of `train`.
SPENT = ("evaluations", "stability", "seconds")
# Fields of a position that are arrays, or of the run.
NOT_NOTED = {"anchor", "inner", "fixed"}
# Examples that tell one network from another between versions of JAX.
SAMPLE = 64


class ExactRun:
    """One run on its way: `state`, of what is trained, is as of the latest stop, `position` within
    its linearisation; fixed are the other parameters. reached(params, fixed, x, y): whether the
    network is at the target loss, asked at each linearisation. settings: plain ones that tell the
    run from others (`Identity`). out_of_time: as for `chunks.run_in_chunks`."""

    def __init__(
        self,
        engine,
        asked: Answers,
        state: TrainState,
        fixed: PyTree,
        observe,
        sets,
        eval_steps,
        checkpoint,
        *,
        reached=None,
        settings: Mapping[str, Any] = MappingProxyType({}),
        out_of_time: Callable[[], bool] = never,
    ):
        self.engine, self.asked, self.fixed = engine, asked, fixed
        self.reached, self.out_of_time = reached, out_of_time
        self.observe = lambda state: observe(state, sets, fixed)
        self.state, self.eval_steps, self.checkpoint = state, eval_steps, checkpoint
        self.position: Position = engine.begin(state.params, fixed=fixed)
        seen = jax.eval_shape(self.observe, state)
        self.names = [*seen, *SPENT]
        self.spent, self.rows = 0, []
        self.written = self.begun = time.monotonic()
        if checkpoint is not None:
            data = engine.task.data
            step = [*engine.programs(state.params, fixed), asked.program(state)]
            if reached is not None:
                step.append(reached.trace(state.params, fixed, *data).jaxpr)
            seen = observe.trace(state, sets, fixed).jaxpr
            self.identity = Identity(
                start_of(state, fixed, data, sets, eval_steps) | dict(settings),
                {STEP: program_digest(step), RECORDED: program_digest([seen])},
                partial(_first_numbers, engine.task, state, fixed, self.observe),
            )
            if Path(checkpoint).is_dir():
                self.checkpoint = checkpoints.file_in(Path(checkpoint), self.identity)
            self._load()

    def to_the_end(self, progress: bool | None) -> tuple[TrainState, History]:
        hidden = not sys.stderr.isatty() if progress is None else not progress
        total = int(self.eval_steps[-1])
        with tqdm(total=total, initial=int(self.state.step), disable=hidden) as bar:
            for target in self.eval_steps[len(self.rows) :].tolist():
                self._advance(target, bar)
                seen = jax.device_get(self.observe(self.state))
                seen["evaluations"] = np.asarray(self.spent + self.position.evaluations)
                seen["stability"] = np.asarray(self.position.stability)
                seen["seconds"] = np.asarray(time.monotonic() - self.begun)
                self.rows.append(seen)
                self._write_now_and_then()
        if self.checkpoint is not None:
            self._write()
        history = {"step": np.asarray(self.eval_steps), **self._history()}
        return whole(self.state, self.fixed), history

    def _advance(self, target: int, bar) -> None:
        """To that step, linearising anew whenever the schedule says so on the way, with a stop
        wherever it looks at the parameters."""
        while (step := int(self.state.step)) < target:
            if self.state.ended:
                self.state = self.state._replace(step=jnp.asarray(target, jnp.int32))
                return
            anchored = int(self.state.anchored_at)
            linearizing = step > anchored and self.asked.now(self.state)
            if (linearizing or step == 0) and self._at_target():
                self.state = self.state._replace(converged_at=self.state.step)
                continue
            if linearizing:
                self.spent += self.position.evaluations
                self.position = self.engine.begin(
                    self.state.params, self.position, fixed=self.fixed
                )
                anchored = step
                self.state = self.state._replace(
                    anchor=self.state.params,
                    updates=self.state.updates + 1,
                    anchored_at=self.state.step,
                    solved=jnp.asarray(False),
                )
            stop = self.asked.first_after(self.state, target)
            while not self._arrived(stop - anchored):
                self.position = self.engine.forward(self.position, stop - anchored)
                bar.set_postfix_str(f"{self.spent + self.position.evaluations} products")
                self._write_now_and_then()
            taken = stop - anchored
            if self.position.solved:
                taken = min(taken, max(1, self.position.steps))
            reached = jnp.asarray(anchored + taken, jnp.int32)
            params = self.engine.parameters(self.position)
            finite = all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(params))
            if self.position.failed or not finite:
                self.state = self.state._replace(step=reached, diverged_at=reached)
                return
            self.state = self.state._replace(
                step=reached, params=params, solved=jnp.asarray(self.position.solved)
            )
            bar.update(anchored + taken - bar.n)

    def _at_target(self) -> bool:
        if self.reached is None:
            return False
        return bool(self.reached(self.state.params, self.fixed, *self.engine.task.data))

    def _arrived(self, steps: int) -> bool:
        position = self.position
        return position.solved or position.failed or position.steps >= steps

    def _write_now_and_then(self) -> None:
        ending = self.out_of_time()
        late = time.monotonic() - self.written >= CHECKPOINT
        if self.checkpoint is not None and (ending or late):
            self._write()
        if ending:
            raise OutOfTime(f"stopped at step {int(self.state.step)}: out of time")

    def _write(self) -> None:
        seconds = time.monotonic() - self.begun
        notes = {k: v for k, v in self.position._asdict().items() if k not in NOT_NOTED}
        notes |= {"spent": self.spent, "seconds": seconds}
        tree = (self.state, self.position.inner, self._history())
        checkpoints.save(self.checkpoint, tree, identity=self.identity, notes=notes)
        self.written = time.monotonic()

    def _load(self) -> None:
        """Goes on from the file, if there is one."""
        like = (self.state, self.position.inner, {name: np.zeros(0) for name in self.names})
        names = set(Position._fields) - NOT_NOTED | {"spent", "seconds"}
        wanted = {"identity": self.identity, "notes": sorted(names)}
        found = checkpoints.load(self.checkpoint, like, **wanted)
        if found is None:
            return
        (self.state, inner, kept), notes = found
        self.spent = notes.pop("spent")
        self.begun -= notes.pop("seconds")
        self.position = Position(self.state.anchor, inner, self.fixed, **notes)
        count = kept["updates"].shape[-1]
        self.rows = [{name: kept[name][..., i] for name in self.names} for i in range(count)]

    def _history(self) -> History:
        if not self.rows:
            return {name: np.zeros(0) for name in self.names}
        return {name: np.stack([row[name] for row in self.rows], -1) for name in self.names}


def _first_numbers(task: Task, state: TrainState, fixed: PyTree, observe) -> dict[str, list[float]]:
    """`Identity.first` of a run: its parameters, the loss of some examples and its gradient there,
    and what is recorded."""
    some = slice(None, None, max(1, examples.count(task.data[0]) // SAMPLE))
    x, y = jax.tree.map(lambda leaf: np.asarray(leaf)[some], task.data)

    @jax.jit
    @jax.value_and_grad
    def slope(params, fixed, x, y):
        return task.loss(bound(task.f, fixed)(params, x), y)

    loss, gradient = slope(state.params, fixed, x, y)
    found = {PARAMETERS: (state.params, state.anchor, fixed), STEP: gradient, "the loss": loss}
    found |= {f"{RECORDED}: {name}": value for name, value in observe(state).items()}
    return {name: summary(value) for name, value in found.items()}
