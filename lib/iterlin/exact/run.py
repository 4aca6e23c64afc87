"""One run by an exact engine, from linearisation to linearisation; stopped, it can go on."""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from tqdm import tqdm

from iterlin.exact.calendar import Answers
from iterlin.exact.task import Position
from iterlin.runtime import checkpoints
from iterlin.runtime.chunks import CHECKPOINT, History, OutOfTime, out_of_time
from iterlin.state import TrainState, whole

# What the history of an exact engine has beside that of `train`.
SPENT = ("evaluations", "stability", "seconds")
# Fields of a position that are arrays, or of the run.
NOT_NOTED = {"anchor", "inner", "fixed"}


class ExactRun:
    """One run on its way: `state`, of what is trained, is as of the latest stop, `position` within
    its linearisation; fixed are the other parameters. reached(params, fixed, x, y): whether the
    network is at the target loss, asked at each linearisation."""

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
    ):
        self.engine, self.asked, self.fixed = engine, asked, fixed
        self.reached = reached
        self.observe = lambda state: observe(state, sets, fixed)
        self.state, self.eval_steps, self.checkpoint = state, eval_steps, checkpoint
        self.position: Position = engine.begin(state.params, fixed=fixed)
        seen = jax.eval_shape(self.observe, state)
        self.names = [*seen, *SPENT]
        self.spent, self.rows, self.fingerprint = 0, [], ""
        self.written = self.begun = time.monotonic()
        if checkpoint is not None:
            programs = [*engine.programs(state.params, fixed), asked.program(state)]
            programs.append(observe.trace(state, sets, fixed).jaxpr)
            if reached is not None:
                programs.append(reached.trace(state.params, fixed, *engine.task.data).jaxpr)
            inputs = (state, fixed, engine.task.data, sets, np.asarray(eval_steps))
            self.fingerprint = checkpoints.fingerprint(programs, *inputs)
            if Path(checkpoint).is_dir():
                self.checkpoint = Path(checkpoint) / f"{self.fingerprint[:24]}.npz"
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
        ending = out_of_time()
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
        checkpoints.save(self.checkpoint, tree, fingerprint=self.fingerprint, notes=notes)
        self.written = time.monotonic()

    def _load(self) -> None:
        """Goes on from the file, if there is one."""
        like = (self.state, self.position.inner, {name: np.zeros(0) for name in self.names})
        names = set(Position._fields) - NOT_NOTED | {"spent", "seconds"}
        wanted = {"fingerprint": self.fingerprint, "notes": sorted(names)}
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
