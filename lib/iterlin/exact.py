"""Iterative linearisation of any period for the price of a few passes (Algorithm 3, full batch).

Between two linearisations the problem is convex and its Jacobian fixed, so that what K steps do can
be had without taking them (`engines`). `integrate` takes the schedules that `training.train` takes
and returns what it returns.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree
from tqdm import tqdm

from iterlin import checkpoints, training
from iterlin.algorithm import Algorithm, TrainState
from iterlin.chunks import CHECKPOINT, History, OutOfTime, out_of_time
from iterlin.engine_choice import ENGINES, check_engine, default_memory, estimate
from iterlin.engines import Progress, Task
from iterlin.linearization import Network
from iterlin.losses import Loss
from iterlin.schedule_search import Answers, ends_when_solved, refuse_if_it_looks_at_parameters
from iterlin.schedules import NEVER, Schedule
from iterlin.stopping import Solved
from iterlin.validation import non_negative, one_of, open_unit, positive


def integrate(
    f: Network,
    params: PyTree,
    data,
    *,
    loss: Loss,
    step_size: float,
    schedule: Schedule,
    num_steps: int,
    engine: str = "auto",
    penalty: float = 0.0,
    tolerance: float = 1e-3,
    solved: Solved | None = None,
    evaluate: Mapping[str, tuple] | None = None,
    metrics: training.Metrics | None = None,
    eval_steps=None,
    memory_limit: int | None = None,
    checkpoint: Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """`training.train` by plain gradient descent on the full batch, without its steps.

    f must be smooth where it is expanded and loss(outputs, y) convex in its outputs. Engines
    (`engines` says what each does): "closed_form" and "function_space" give the very steps, to
    rounding, as do "steps" (`train` itself) and "kept_steps" (its activations kept for the whole
    period); "function_space_flow" and "flow" the gradient flow for a time step_size * K, to
    `tolerance` a step, relative to outputs of order 1; "minimum" solves every linear problem, of
    positive penalty, to a relative gradient of `tolerance`: a period of any length is one solve.
    "auto" is the cheapest by an estimate that it prints, among them a flow only where step_size
    lambda_max < 0.1 at the first parameters.

    `solved` with `schedules.when_solved(K)` ends a linearisation early: a flow looks at every step
    of its own. Kernels and kept activations stay within memory_limit bytes (2 GiB on a CPU, 60 % of
    a GPU's), else products go through the examples a few at a time.

    The history is that of `train`, and "evaluations", products with J J^T so far, "stability",
    step_size lambda_max of the loss at the proxy's outputs (NaN where it is not followed), and
    "seconds", by the clock (engine "steps": at the end alone, and of this call). With a checkpoint,
    a file, or a folder in which the run finds its own, a run that was ended goes on from there.

    Raises ValueError before any compute: as `train`; for an unknown engine; closed_form and a loss
    that is not half a squared error; minimum without penalty, which for cross-entropy has no
    minimum to find; a kernel beyond memory_limit; a schedule that looks at the parameters.
    """
    integrator = Integrator(
        f,
        data,
        loss=loss,
        step_size=step_size,
        engine=engine,
        penalty=penalty,
        tolerance=tolerance,
        solved=solved,
        evaluate=evaluate,
        metrics=metrics,
        memory_limit=memory_limit,
    )
    return integrator.run(
        params,
        schedule=schedule,
        num_steps=num_steps,
        eval_steps=eval_steps,
        checkpoint=checkpoint,
        progress=progress,
    )


class Integrator:
    """What runs of `integrate` share that differ in parameters, schedule and length alone: compiled
    once. The arguments are those of `integrate`, and so are the errors.
    """

    def __init__(
        self,
        f: Network,
        data,
        *,
        loss: Loss,
        step_size: float,
        engine: str = "auto",
        penalty: float = 0.0,
        tolerance: float = 1e-3,
        solved: Solved | None = None,
        evaluate: Mapping[str, tuple] | None = None,
        metrics: training.Metrics | None = None,
        memory_limit: int | None = None,
    ):
        one_of("engine", engine, ENGINES)
        positive("step_size", step_size)
        non_negative("penalty", penalty)
        open_unit("tolerance", tolerance)
        limit = default_memory() if memory_limit is None else memory_limit
        self.engine, self.evaluate, self.metrics = engine, evaluate, metrics or {"loss": loss}
        self.task = Task(f, data, loss, step_size, penalty, tolerance, limit, solved)
        self.algorithm = Algorithm(f=f, loss=loss, optimizer=optax.sgd(step_size))
        self._observe = jax.jit(training.observer(self.algorithm, evaluate, self.metrics))
        self._engines = {}

    def run(
        self,
        params: PyTree,
        *,
        schedule: Schedule,
        num_steps: int,
        eval_steps=None,
        checkpoint: Path | None = None,
        progress: bool | None = None,
    ) -> tuple[TrainState, History]:
        """The final state and the history, as `integrate` says."""
        data = self.task.data
        eval_steps = training.check_run(data, num_steps, None, None, eval_steps, None)
        if num_steps >= NEVER:
            raise ValueError(f"num_steps must be below {NEVER}, got {num_steps}")
        state = self.algorithm.start(params, data, jax.random.key(0))
        refuse_if_it_looks_at_parameters(schedule, state)
        task = self.task
        if not ends_when_solved(schedule, state):
            task = task._replace(solved=None)
        asked = Answers(schedule)
        name = self.engine
        if name == "auto":
            period = asked.first_after(state, num_steps)
            estimates = estimate(task, params, period=period, num_steps=num_steps)
            name = min(estimates, key=estimates.get)
            listed = ", ".join(f"{name} {cost:.1e}" for name, cost in estimates.items())
            if progress is not False:
                print(f"integrate: {name} (estimated operations: {listed})", file=sys.stderr)
        check_engine(name, task, params)
        if name == "steps":
            return self._by_steps(params, schedule, num_steps, eval_steps, checkpoint, progress)
        kind = name, task.solved
        if kind not in self._engines:
            self._engines[kind] = ENGINES[name](task)
        run = _Run(self._engines[kind], asked, state, self._observe, eval_steps, checkpoint)
        return run.to_the_end(progress)

    def _by_steps(self, params, schedule, num_steps, eval_steps, checkpoint, progress):
        begun, task = time.monotonic(), self.task
        state, history = training.train(
            task.f,
            params,
            task.data,
            loss=task.loss,
            optimizer=self.algorithm.optimizer,
            schedule=schedule,
            num_steps=num_steps,
            penalty=task.penalty,
            solved=task.solved,
            evaluate=self.evaluate,
            metrics=self.metrics,
            eval_steps=eval_steps,
            checkpoint=checkpoint,
            progress=progress,
        )
        unknown = np.full(len(history["step"]), np.nan)
        seconds = np.append(unknown[1:], time.monotonic() - begun)
        spent = {"evaluations": history["step"], "stability": unknown, "seconds": seconds}
        return state, history | spent


class _Run:
    """One run on its way: `state` is as of the latest stop, `position` within its linearisation."""

    def __init__(self, engine, asked: Answers, state: TrainState, observe, eval_steps, checkpoint):
        self.engine, self.asked, self.observe = engine, asked, observe
        self.state, self.eval_steps, self.checkpoint = state, eval_steps, checkpoint
        self.position: Progress = engine.begin(state.params)
        self.names = [*jax.eval_shape(observe, state), "evaluations", "stability", "seconds"]
        self.spent, self.rows, self.fingerprint = 0, [], ""
        self.written = self.begun = time.monotonic()
        if checkpoint is not None:
            programs = [*engine.programs(state.params), asked.program(state)]
            programs.append(observe.trace(state).jaxpr)
            inputs = (state, engine.task.data, np.asarray(eval_steps))
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
        return self.state, {"step": np.asarray(self.eval_steps), **self._history()}

    def _advance(self, target: int, bar) -> None:
        """To that step, linearising anew whenever the schedule says so on the way."""
        while (step := int(self.state.step)) < target:
            if self.state.ended:
                self.state = self.state._replace(step=jnp.asarray(target, jnp.int32))
                return
            anchored = int(self.state.anchored_at)
            if step > anchored and self.asked.now(self.state):
                self.spent += self.position.evaluations
                self.position = self.engine.begin(self.state.params, self.position)
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
        notes = self.position._asdict() | {"spent": self.spent, "seconds": seconds}
        del notes["anchor"], notes["inner"]
        tree = (self.state, self.position.inner, self._history())
        checkpoints.save(self.checkpoint, tree, fingerprint=self.fingerprint, notes=notes)
        self.written = time.monotonic()

    def _load(self) -> None:
        """Goes on from the file, if there is one."""
        like = (self.state, self.position.inner, {name: np.zeros(0) for name in self.names})
        found = checkpoints.load(self.checkpoint, like, fingerprint=self.fingerprint)
        if found is None:
            return
        (self.state, inner, kept), notes = found
        self.spent = notes.pop("spent")
        self.begun -= notes.pop("seconds")
        self.position = Progress(self.state.anchor, inner, **notes)
        count = kept["updates"].shape[-1]
        self.rows = [{name: kept[name][..., i] for name in self.names} for i in range(count)]

    def _history(self) -> History:
        if not self.rows:
            return {name: np.zeros(0) for name in self.names}
        return {name: np.stack([row[name] for row in self.rows], -1) for name in self.names}
