"""The one loop of all runs: evaluations, progress, checkpoints and a deadline.

What trains between two evaluations is a `Trainer`: by steps (`StepTrainer`) or by an engine that
skips them (`exact.trainer`).
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from tqdm import tqdm

from iterlin.training import checkpoints
from iterlin.training.identity import Identity

# Seconds that a chunk of steps should take, between two checkpoints, and between two lines.
CHUNK, CHECKPOINT, LINE = 4.0, 15.0, 30.0
FIRST_CHUNK = 32

History = dict[str, np.ndarray]


class OutOfTime(RuntimeError):
    """A run stopped at its deadline, after it wrote its checkpoint."""


@runtime_checkable
class Trainer(Protocol):
    """The methods that `run` needs of an engine.

    Attributes:
        names: Names of the arrays that `look` returns.
        notes: Names of the numbers that `save` returns.
    """

    names: list[str]
    notes: tuple[str, ...]

    @property
    def step(self) -> int:
        """Steps taken so far."""
        ...

    def go_to(self, target: int) -> Iterator[None]:
        """Train up to a step. Yield before each piece of work, when the state can be saved.

        Args:
            target: The step at which to stop.
        """
        ...

    def look(self, seconds: float) -> dict[str, np.ndarray]:
        """Return the metrics of the current state.

        Args:
            seconds: Duration of the run so far.
        """
        ...

    def save(self) -> tuple[PyTree, dict[str, float]]:
        """Return the arrays and numbers from which the run can resume."""
        ...

    def restore(self, arrays: PyTree, notes: dict[str, float]) -> None:
        """Resume from a checkpoint.

        Args:
            arrays: The arrays that `save` returned.
            notes: The numbers that `save` returned.
        """
        ...

    def status(self) -> str:
        """Return a few words for the progress bar."""
        ...


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
        state: The final state.
        history: "step" (T,) and the metrics, arrays whose last axis is T.
        seconds: How long the run took, interruptions left out.
    """

    state: Any
    history: History
    seconds: float


def never() -> bool:
    """Return False: the `out_of_time` of a run without a deadline."""
    return False


def run(
    trainer: Trainer,
    looks: np.ndarray,
    *,
    progress: bool | str | None = None,
    label: str = "",
    checkpoint: str | Path | None = None,
    identity: Identity | None = None,
    out_of_time: Callable[[], bool] = never,
) -> tuple[History, float]:
    """Train from look to look; return the history and the seconds that it took.

    A run that goes on from its checkpoint gives the same bits as one that was never interrupted.

    Args:
        trainer: The engine, at its first state; afterwards it is at its last.
        looks: Increasing steps at which the run is evaluated, (T,); the last ends it.
        progress: True shows a bar, "lines" prints a line now and then; None shows a bar on a
            terminal.
        label: Names the run in its progress.
        checkpoint: A file, or a folder in which the run has a file of its own.
        identity: Tells the run from others; needed with a checkpoint.
        out_of_time: Asked before each piece of work. Once it returns True, the run writes its
            checkpoint and raises OutOfTime.

    Raises:
        OutOfTime: See out_of_time.
        CheckpointError: If the checkpoint is damaged, of another run, or cannot be written.
    """
    rows: list[dict[str, np.ndarray]] = []
    before = 0.0
    identity = Identity({}) if identity is None else identity
    if checkpoint is not None:
        checkpoint = checkpoints.resolve_path(Path(checkpoint), identity)
        rows, before = _resumed(trainer, checkpoint, identity)
        if len(rows) < len(looks):
            identity.prepare()
    began = written = time.monotonic()
    seconds = before

    def elapsed():
        return before + time.monotonic() - began

    def write():
        nonlocal seconds, written
        seconds = elapsed()
        if checkpoint is not None:
            arrays, notes = trainer.save()
            kept = {name: np.array([row[name] for row in rows]) for name in trainer.names}
            notes = {**notes, "seconds": seconds}
            checkpoints.save(checkpoint, (arrays, kept), identity=identity, notes=notes)
        written = time.monotonic()

    finished_before = len(rows)
    report = _Report(int(looks[-1]), trainer.step, progress, label)
    try:
        for target in looks[finished_before:].tolist():
            for _ in trainer.go_to(target):
                report.update(trainer)
                if out_of_time():
                    write()
                    raise OutOfTime(
                        f"{label or 'the run'} stopped at step {trainer.step}: out of time"
                    )
                if time.monotonic() - written >= CHECKPOINT:
                    write()
            rows.append(trainer.look(elapsed()))
            report.update(trainer)
        if len(rows) > finished_before:
            write()
    finally:
        report.close()
    history = {name: np.stack([row[name] for row in rows], -1) for name in trainer.names}
    return {"step": np.asarray(looks), **history}, seconds


def _resumed(trainer: Trainer, checkpoint: Path, identity: Identity):
    """Restore the trainer from a checkpoint; return the rows recorded by then, and the seconds."""
    like = (trainer.save()[0], {name: np.zeros(0) for name in trainer.names})
    notes = ("seconds", *trainer.notes)
    found = checkpoints.load(checkpoint, like, identity=identity, notes=notes)
    if found is None:
        return [], 0.0
    (arrays, kept), notes = found
    seconds = notes.pop("seconds")
    trainer.restore(arrays, notes)
    rows = [dict(zip(kept, values, strict=True)) for values in zip(*kept.values(), strict=True)]
    return rows, seconds


class StepTrainer:
    """Train step by step, in compiled chunks of a few seconds.

    The length of a chunk is an argument of the compiled loop. It changes neither the numbers of the
    run nor the number of compilations.

    Args:
        state: The first state, of one run or of several.
        advance: advance(state, count) -> state. It may donate the buffers of its argument.
        observe: observe(state) -> {name: array}.
        first: Steps that the state has taken.
    """

    notes: tuple[str, ...] = ("taken",)

    def __init__(self, state, advance: Callable, observe: Callable, *, first: int = 0):
        self.advance, self.observe = advance, observe
        self.state, self.step = jax.tree.map(jnp.copy, state), first
        self.names = list(jax.eval_shape(observe, state))
        self.length = FIRST_CHUNK

    def go_to(self, target: int) -> Iterator[None]:
        while self.step < target:
            yield
            if bool(jnp.all(self.state.ended)):  # the parameters would stay as they are
                self.step = target
                step = jnp.full_like(self.state.step, target)
                self.state = self.state._replace(step=step)
                return
            count = min(target - self.step, self.length)
            started = time.monotonic()
            state = self.advance(self.state, jnp.asarray(count, jnp.int32))
            self.state = jax.block_until_ready(state)
            self.step += count
            lasted = time.monotonic() - started
            if count == self.length and lasted < CHUNK / 2:
                self.length *= 2
            elif lasted > 2 * CHUNK:
                self.length = max(1, self.length // 2)

    def look(self, seconds: float) -> dict[str, np.ndarray]:
        return {n: np.asarray(v) for n, v in jax.device_get(self.observe(self.state)).items()}

    def save(self) -> tuple[PyTree, dict[str, float]]:
        return self.state, {"taken": self.step}

    def restore(self, arrays: PyTree, notes: dict[str, float]) -> None:
        self.state, self.step = arrays, int(notes["taken"])

    def status(self) -> str:
        return f"{int(jnp.sum(self.state.diverged_at >= 0))} diverged"


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
