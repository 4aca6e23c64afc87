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
import numpy as np
import optax
from jaxtyping import PyTree

from iterlin import training
from iterlin.algorithm import Algorithm, TrainState
from iterlin.exact.calendar import Answers, ends_when_solved, refuse_if_it_looks_at_parameters
from iterlin.exact.choice import ENGINES, check_engine, default_memory, estimate
from iterlin.exact.run import ExactRun
from iterlin.exact.task import Task
from iterlin.linearization import Network
from iterlin.losses import Loss
from iterlin.runtime.chunks import History
from iterlin.runtime.precision import full_precision
from iterlin.schedules import NEVER, Schedule, Solved
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

    @full_precision()
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
        """The final state and the history, as `integrate` says; products in full precision."""
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
        run = ExactRun(self._engines[kind], asked, state, self._observe, eval_steps, checkpoint)
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
