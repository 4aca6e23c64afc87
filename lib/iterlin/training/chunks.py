"""Long runs in chunks: evaluations, progress, checkpoints and a deadline happen between them.

A chunk is one compiled loop whose length is traced, so that how a run is cut into chunks changes
neither its numbers nor what is compiled.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from iterlin.training import checkpoints
from iterlin.training.identity import Identity

# Seconds: what a chunk should take, between two checkpoints, between two lines of progress.
CHUNK, CHECKPOINT, LINE = 4.0, 15.0, 30.0
FIRST_CHUNK = 32

History = dict[str, np.ndarray]


class Outcome(NamedTuple):
    """The final state, the history and the seconds it took, those before a resumption included."""

    state: Any
    history: History
    seconds: float


class OutOfTime(RuntimeError):
    """A run was stopped because its time is over; its checkpoint is written."""


def never() -> bool:
    """The answer of a run that has as much time as it takes."""
    return False


def run_in_chunks(
    state,
    advance: Callable,
    observe: Callable,
    eval_steps: np.ndarray,
    *,
    first: int = 0,
    progress: bool | str | None = None,
    label: str = "",
    checkpoint: Path | None = None,
    identity: Identity | None = None,
    out_of_time: Callable[[], bool] = never,
    checkpoint_seconds: float = CHECKPOINT,
) -> Outcome:
    """Alternate advance(state, count) -> state and observe(state) -> {name: array}.

    The history holds "step" (T,) and each observation stacked along a new last axis. Once every run
    in `state` has ended, only evaluations are left. advance may take over its argument's buffers:
    `state` is copied first. With a checkpoint the run goes on from the file if there is one (of
    this identity) and is bit for bit what it would have been; the file stays.

    progress: True shows a bar, "lines" prints a line now and then; None shows a bar on a terminal.
    out_of_time: asked before each chunk. Once it returns True, the run writes its checkpoint and
    raises OutOfTime. Raises CheckpointError as `checkpoints` does.
    """
    shapes = jax.eval_shape(observe, state)
    rows = {name: [] for name in shapes}
    taken, before = first, 0.0
    if checkpoint is not None:
        like = (state, {name: np.zeros(0) for name in shapes})
        identity = Identity({}) if identity is None else identity
        found = checkpoints.load(checkpoint, like, identity=identity, notes=("taken", "seconds"))
        if found is not None:
            (state, kept), notes = found
            rows = {name: list(kept[name]) for name in shapes}
            taken, before = notes["taken"], notes["seconds"]
    began, seconds = time.monotonic(), before

    def write():
        nonlocal seconds
        seconds = before + time.monotonic() - began
        if checkpoint is not None:
            stacked = {name: _stack(rows[name], shape) for name, shape in shapes.items()}
            notes = {"taken": taken, "seconds": seconds}
            tree = (state, stacked)
            checkpoints.save(checkpoint, tree, identity=identity, notes=notes)

    def done():
        return len(next(iter(rows.values())))

    observed_before = done()
    if checkpoint is not None and observed_before < len(eval_steps):
        identity.prepare()
    state = jax.tree.map(jnp.copy, state)
    report = _Report(int(eval_steps[-1]), taken, progress, label)
    length, written = FIRST_CHUNK, time.monotonic()
    try:
        for target in eval_steps[done() :]:
            while taken < target:
                if out_of_time():
                    write()
                    raise OutOfTime(f"{label or 'the run'} stopped at step {taken}: out of time")
                count = min(int(target) - taken, length)
                started = time.monotonic()
                if not bool(jnp.all(state.ended)):
                    state = jax.block_until_ready(advance(state, jnp.asarray(count, jnp.int32)))
                    lasted = time.monotonic() - started
                    if count == length and lasted < CHUNK / 2:
                        length *= 2
                    elif lasted > 2 * CHUNK:
                        length = max(1, length // 2)
                else:
                    count = int(target) - taken
                taken += count
                report.update(taken, state)
                if time.monotonic() - written >= checkpoint_seconds and taken < target:
                    write()
                    written = time.monotonic()
            seen = jax.device_get(observe(state))
            for name, value in seen.items():
                rows[name].append(np.asarray(value))
            if time.monotonic() - written >= checkpoint_seconds:
                write()
                written = time.monotonic()
        if done() > observed_before:
            write()
    finally:
        report.close()
    history = {name: np.moveaxis(np.stack(values), 0, -1) for name, values in rows.items()}
    return Outcome(state, {"step": np.asarray(eval_steps), **history}, seconds)


def _stack(values: list, shape) -> np.ndarray:
    return np.stack(values) if values else np.zeros((0, *shape.shape), shape.dtype)


class _Report:
    """A bar, or a line now and then, as `run_in_chunks` describes."""

    def __init__(self, total, taken, progress, label):
        self.total, self.label = total, label
        self.lines = progress == "lines"
        shown = sys.stderr.isatty() if progress is None else progress is True
        self.bar = tqdm(total=total, initial=taken, unit="step", desc=label, disable=not shown)
        self.started, self.first, self.said = time.monotonic(), taken, time.monotonic()

    def update(self, taken, state):
        self.bar.update(taken - self.bar.n)
        now = time.monotonic()
        if not self.bar.disable:
            self.bar.set_postfix_str(f"{_diverged(state)} diverged")
        if self.lines and now - self.said >= LINE:
            pace = 1e3 * (now - self.started) / max(1, taken - self.first)
            print(
                f"{self.label}: step {taken} of {self.total}, {pace:.3g} ms a step, "
                f"{_diverged(state)} diverged",
                file=sys.stderr,
                flush=True,
            )
            self.said = now

    def close(self):
        self.bar.close()


def _diverged(state) -> int:
    return int(jnp.sum(state.diverged_at >= 0))
