"""The one loop of all runs: evaluations, progress, checkpoints and a deadline.

What trains between two evaluations is a `Trainer`: by steps (`StepTrainer`) or by an engine that
skips them (`exact.trainer`).
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from tqdm import tqdm

from iterlin.linearise.devices import to_array
from iterlin.linearise.digests import to_numpy
from iterlin.linearise.validation import check_bools, check_returns_bool, check_signature, describe
from iterlin.training import checkpoints
from iterlin.training.identity import Identity
from iterlin.training.state import TrainState, all_ended, combine_state

# Seconds that a chunk of steps should take, between two checkpoints, and between two lines.
CHUNK, CHECKPOINT, LINE = 4.0, 15.0, 30.0
FIRST_CHUNK = 32

History = dict[str, np.ndarray]


class OutOfTime(RuntimeError):
    """A run stopped at its deadline, after it wrote its checkpoint."""


class Trainer(ABC):
    """What `run` needs of an engine.

    Attributes:
        state: The current state, of one run or of several.
        names: Names of the arrays that `look` returns.
    """

    state: Any
    names: list[str]

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return int(self.state.step)

    @abstractmethod
    def go_to(self, target: int) -> Iterator[None]:
        """Train up to a step. Yield before each piece of work, when the state can be saved.

        A trainer whose data end before the target stops there.
        """

    @abstractmethod
    def look(self, seconds: float) -> dict[str, np.ndarray]:
        """Return the metrics of the current state, after a run of so many seconds."""

    @abstractmethod
    def save(self) -> PyTree:
        """Return the arrays and numbers from which the run can resume."""

    def shapes(self) -> PyTree:
        """Return what `save` returns, or the like with shapes in the place of arrays."""
        return self.save()

    @abstractmethod
    def restore(self, kept: PyTree) -> None:
        """Resume from what `save` returned, with NumPy arrays in the place of numbers."""

    @abstractmethod
    def status(self) -> str:
        """Return a few words for the progress bar."""


# Called after each look. True ends the run.
Callback = Callable[[TrainState, dict[str, Any]], bool | None]


def check_reports(callback: Any, progress: Any) -> None:
    """Require of a callback a function of (state, row), of progress a bool, or None of either."""
    if progress is not None:
        check_bools(progress=progress)
    if callback is None:
        return
    if not callable(callback):
        raise ValueError(f"callback must be a function of (state, row), got {describe(callback)}")
    check_signature("callback", callback, ("state", "row"))


def with_fixed(callback: Callback | None, fixed: PyTree) -> Callback | None:
    """Return a callback of all parameters as one for states of the trained parameters alone."""
    if callback is None:
        return None
    return lambda state, row: callback(combine_state(state, fixed), row)


def run(
    trainer: Trainer,
    looks: np.ndarray,
    *,
    callback: Callback | None = None,
    progress: bool | str | None = None,
    label: str = "",
    checkpoint: str | Path | None = None,
    identity: Identity | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> tuple[History, float]:
    """Train from look to look; return the history and the seconds that it took.

    A run that goes on from its checkpoint gives the same bits as one that was never interrupted.
    If the checkpoint is of a run with another number of steps, the history begins with what that
    run has recorded.

    Args:
        trainer: The engine, at its first state; afterwards it is at its last.
        looks: Increasing steps at which the run is evaluated, (T,); the last ends it.
        callback: callback(state, row), called after each look. True ends the run. From the
            checkpoint of such a run only a call without a callback or with more steps trains on.
        progress: True shows a bar, "lines" prints a line now and then; None shows a bar on a
            terminal.
        label: Names the run in its progress.
        checkpoint: A file, or a folder in which the run has a file of its own.
        identity: Tells the run from others; needed with a checkpoint.
        out_of_time: Asked before each piece of work. Once it returns True, the run writes its
            checkpoint and raises OutOfTime.

    Raises:
        OutOfTime: See out_of_time.
        CheckpointError: If the checkpoint is damaged, of another run, beyond the last step, or
            cannot be written.
        ValueError: If the callback returns anything but a bool or None.
    """
    last, kept = int(looks[-1]), _Kept(trainer, checkpoint, identity, looks)
    if callback is None or kept.stopped < last:
        kept.stopped = 0
    ahead = [s for s in looks.tolist() if s >= trainer.step and s > kept.end and not kept.stopped]
    report = _Report(last, trainer.step, progress, label)
    try:
        for target in ahead:
            for _ in trainer.go_to(target):
                report.update(trainer)
                if out_of_time():
                    kept.write()
                    raise OutOfTime(
                        f"{label or 'the run'} stopped at step {trainer.step}: out of time"
                    )
                if time.monotonic() - kept.written >= CHECKPOINT:
                    kept.write()
            if trainer.step > kept.end:
                kept.look()
                report.update(trainer)
                if callback is not None and _ends_run(callback, trainer, kept.rows[-1]):
                    kept.stopped = last
            if kept.stopped or trainer.step < target:
                break
        if ahead:
            kept.write()
    finally:
        report.close()
    names = ("step", *trainer.names)
    return {name: np.stack([row[name] for row in kept.rows], -1) for name in names}, kept.seconds


class _Kept:
    """What a run has recorded, how long it has taken, and the checkpoint that keeps both.

    Attributes:
        rows: The metrics of each look, by name.
        seconds: Duration of the run when it was last written.
        stopped: The number of steps that the run would have had if its callback had not ended it;
            0 if it has not.
        written: When it was last written.
    """

    def __init__(self, trainer: Trainer, checkpoint, identity: Identity | None, looks: np.ndarray):
        self.trainer, self.path = trainer, None
        self.identity = identity or {}
        self.rows: list[dict[str, np.ndarray]] = []
        self.seconds, self.stopped = 0.0, 0
        if checkpoint is not None:
            path = Path(checkpoint)
            self.path = checkpoints.path_in_folder(path, self.identity) if path.is_dir() else path
            self._resume(self.path, looks)
        self.written = time.monotonic()
        self.began = self.written - self.seconds

    def _resume(self, path: Path, looks: np.ndarray) -> None:
        """Restore the trainer and what was recorded from a checkpoint, if there is one."""
        trainer = self.trainer
        like = {"trainer": trainer.shapes(), "rows": self._columns(), "seconds": 0.0, "stopped": 0}
        found = checkpoints.load(path, like, identity=self.identity)
        if found is None:
            return
        trainer.restore(found["trainer"])
        self.seconds, self.stopped = float(found["seconds"]), int(found["stopped"])
        if trainer.step > looks[-1]:
            raise checkpoints.CheckpointError(
                f"the checkpoint {path} is of a run that has taken {trainer.step} steps: "
                f"num_steps {looks[-1]} is below them"
            )
        self.rows = [
            {name: np.asarray(values[i]) for name, values in found["rows"].items()}
            for i in range(len(found["rows"]["step"]))
        ]

    @property
    def end(self) -> int:
        """The last step that is recorded; -1 if there is none."""
        return int(self.rows[-1]["step"]) if self.rows else -1

    def look(self) -> None:
        """Record the metrics of the trainer's state."""
        seen = self.trainer.look(time.monotonic() - self.began)
        self.rows.append({"step": np.asarray(self.trainer.step), **seen})

    def write(self) -> None:
        """Write the checkpoint, if the run has one."""
        self.seconds = time.monotonic() - self.began
        if self.path is not None:
            kept = {"trainer": self.trainer.save(), "rows": self._columns()}
            kept |= {"seconds": self.seconds, "stopped": self.stopped}
            checkpoints.save(self.path, kept, identity=self.identity)
        self.written = time.monotonic()

    def _columns(self) -> dict[str, np.ndarray]:
        """Return what was recorded, by name, with a leading axis of looks."""
        names = ("step", *self.trainer.names)
        return {name: np.array([row[name] for row in self.rows]) for name in names}


def _ends_run(callback: Callback, trainer: Trainer, row: dict[str, np.ndarray]) -> bool:
    """Return whether the callback ends the run. It gets single numbers as numbers of Python."""
    values = {name: value if value.ndim else value.item() for name, value in row.items()}
    answer = callback(_copy(trainer.state), values)  # the next steps may take over its buffers
    if answer is None:
        return False
    check_returns_bool("callback", answer, "row['test_loss'] < 0.1")
    return bool(answer)


@jax.jit
def _copy(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


class StepTrainer(Trainer):
    """Train step by step, in compiled chunks of a few seconds.

    The length of a chunk is an argument of the compiled loop. It changes neither the numbers of the
    run nor the number of compilations.

    advance(state, count) may donate the buffers of the state, which is of one run or of several. It
    takes fewer steps only if the data end. observe(state) returns {name: array}.
    """

    def __init__(self, state, advance: Callable, observe: Callable):
        self.advance, self.observe = advance, observe
        self.state = _copy(state)
        self.names = list(jax.eval_shape(observe, state))
        self.length = FIRST_CHUNK

    def go_to(self, target: int) -> Iterator[None]:
        while self.step < target:
            yield
            if all_ended(self.state):  # the parameters would stay as they are
                self.state = self.state._replace(step=to_array(target, jnp.int32))
                return
            count = min(target - self.step, self.length)
            wanted = self.step + count
            started = time.monotonic()
            state = self.advance(self.state, to_array(count, jnp.int32))
            self.state = jax.block_until_ready(state)
            if self.step < wanted:
                return
            lasted = time.monotonic() - started
            if count == self.length and lasted < CHUNK / 2:
                self.length *= 2
            elif lasted > 2 * CHUNK:
                self.length = max(1, self.length // 2)

    def look(self, seconds: float) -> dict[str, np.ndarray]:
        return recorded(self.observe(self.state))

    def save(self) -> PyTree:
        return self.state

    def restore(self, kept: PyTree) -> None:
        self.state = kept

    def status(self) -> str:
        return f"{np.sum(np.asarray(self.state.diverged_at) >= 0)} diverged"


def recorded(observed: dict[str, Array]) -> dict[str, np.ndarray]:
    """Return what was observed as NumPy arrays: PRNG keys as raw words, bfloat16 as float32.

    NumPy's file format cannot name bfloat16 and its like.
    """
    arrays = {name: to_numpy(value) for name, value in jax.device_get(observed).items()}
    return {n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in arrays.items()}


class _Report:
    """Show the progress of a run as a bar, or as a line every `LINE` seconds."""

    def __init__(self, total, taken, progress, label):
        self.total, self.label = total, label
        self.lines = progress == "lines"
        shown = sys.stderr.isatty() if progress is None else progress is True
        self.bar = tqdm(total=total, initial=taken, unit="step", desc=label, disable=not shown)
        self.started, self.first, self.said = time.monotonic(), taken, time.monotonic()

    def update(self, trainer: Trainer):
        self.bar.update(trainer.step - self.bar.n)
        now = time.monotonic()
        if not self.bar.disable:
            self.bar.set_postfix_str(trainer.status())
        if self.lines and now - self.said >= LINE:
            pace = 1e3 * (now - self.started) / max(1, trainer.step - self.first)
            print(
                f"{self.label}: step {trainer.step} of {self.total}, {pace:.3g} ms a step, "
                f"{trainer.status()}",
                file=sys.stderr,
                flush=True,
            )
            self.said = now

    def close(self):
        self.bar.close()
