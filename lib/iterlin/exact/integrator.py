"""Algorithm 3 with an engine that skips the steps between two linearisations (`exact.engines`)."""

import sys
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from iterlin.exact.calendar import Calendar
from iterlin.exact.checks import (
    check_engine,
    needs_steps,
    unfit_for_engines,
    unfit_types,
)
from iterlin.exact.choice import ENGINES, choose
from iterlin.exact.engines import Engine
from iterlin.exact.task import Task
from iterlin.exact.trainer import SPENT, ExactTrainer, spent_by_steps
from iterlin.linearise.compiled import SharedJit, as_argument
from iterlin.linearise.costs import device_memory
from iterlin.linearise.devices import to_array, to_auto_axes
from iterlin.linearise.digests import program_digest
from iterlin.linearise.parameters import partition, warn_about_batch_stats
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import (
    check_finite,
    check_one_of,
    check_open_unit_interval,
    check_positive_integer,
)
from iterlin.training.checks import check_call, check_functions, check_run
from iterlin.training.identity import RECORDED, STEP, scalar_fields, start_settings
from iterlin.training.loop import Callback, History, run, with_fixed
from iterlin.training.schedules import NEVER, Schedule, reads_params
from iterlin.training.state import TrainState, combine_state
from iterlin.training.step import Step
from iterlin.training.steps import train_by_steps
from iterlin.training.watching import UPDATES, check_watch, observer

# Names in the history that a watch must not use.
TAKEN = ("step", "engine", *SPENT)


def train_by_engine(
    step: Step, params: PyTree, data, *, engine: str, key, watch, tolerance, memory_limit, **run
) -> tuple[TrainState, History]:
    """Train as `train` does, with any engine except "steps". Engine "auto" may choose "steps".

    The arguments are those of `train`. Only "steps" draws from a key. Raises ValueError if the
    engine does not apply to the run, or is given a key.
    """
    if key is not None and engine != "auto":
        raise ValueError(f"engine '{engine}' draws nothing: leave key out, or take 'steps'")
    settings = {"tolerance": tolerance, "memory_limit": memory_limit}
    chosen = engine
    if engine == "auto":
        chosen, why = _choose(step, params, data, run["num_steps"], watch, **settings)
        if run["progress"] is not False:
            print(f"engine {chosen}: {why}", file=sys.stderr)
    if chosen == "steps":
        return _by_steps(step, params, data, key=key, watch=watch, **run)
    return Integrator(step, data, engine=chosen, watch=watch, **settings)(params, **run)


class Integrator:
    """Train with one engine. The compiled programs serve several runs with different schedules.

    Args:
        step: One step of the run. Its schedule is the default schedule of `__call__`.
        data, tolerance, watch, memory_limit: As for `train`.
        engine: One of `choice.ENGINES`.

    Raises:
        ValueError: If the engine does not apply to the run. The message says why.
    """

    def __init__(
        self,
        step: Step,
        data,
        *,
        engine: str,
        tolerance: float = 1e-3,
        watch=UPDATES,
        memory_limit: int | None = None,
    ):
        check_one_of("engine", engine, ENGINES)
        check_watch(watch)
        self.step, self.data, self.engine, self.watch = step, data, engine, watch
        self.task = _task(step, data, tolerance, memory_limit)
        self.sets = jax.tree.map(to_array, dict(watch.sets))
        self._latest: tuple[tuple, tuple[Engine, SharedJit, SharedJit]] | None = None

    @full_precision()
    def __call__(
        self,
        params: PyTree,
        *,
        num_steps: int,
        schedule: Schedule | None = None,
        at=None,
        checkpoint: str | Path | None = None,
        callback: Callback | None = None,
        progress: bool | None = None,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> tuple[TrainState, History]:
        """Train from params; arguments, results and errors are those of `train`.

        at: Steps at which metrics are recorded; by default those of `watch`. out_of_time: see
        `training.loop.run`. Raises ValueError also if params are the state of a run.
        """
        if isinstance(params, TrainState):
            raise ValueError(
                f"engine '{self.engine}' starts from parameters, not from the state of a run: give "
                "its state.params, or a checkpoint from which to continue"
            )
        watch = self.watch
        step = self.step if schedule is None else replace(self.step, schedule=schedule)
        check_call("train", step, (params, self.data), watch, checkpoint)
        looks = check_run(step, self.data, num_steps, watch.at if at is None else at)
        check_positive_integer("num_steps", num_steps, below=NEVER)
        # In arrays of its own: NumPy's could be changed from outside.
        params = jax.tree.map(lambda a: jnp.array(a) if isinstance(a, np.ndarray) else a, params)
        moving, given = partition(params, step.algorithm.trainable)
        warn_about_batch_stats(moving)
        check_finite("params", moving)
        check_functions(step, params, None, self.data, watch)
        # From here on there are no fixed parameters, but in what users see: states and metrics.
        fixed = to_auto_axes(given)
        bound = step.bind(fixed)
        due, state = bound.schedule, bound.start(moving, self.data)
        task = self.task._replace(f=bound.algorithm.f, solved=due.solved)
        self._check(bound, task, state)
        engine, observe, reached = self._functions(task, fixed)
        jax.eval_shape(observe, state)  # Check the names of the history.

        def at_target(state):
            return step.target_loss is not None and bool(reached(state.params))

        calendar = Calendar(due)
        identity = None
        if checkpoint is not None:
            programs = [*engine.programs(moving), calendar.program(state)]
            if step.target_loss is not None:
                programs.append(reached.trace(moving))
            objects = {"algorithm": step.algorithm, "schedule": step.schedule}
            identity = start_settings(state, fixed, task.data, self.sets, looks)
            identity |= scalar_fields(**objects, rule=task.solved, run=step)
            identity |= {"engine": self.engine, "tolerance": task.tolerance}
            identity[STEP] = " ".join(map(program_digest, programs))
            identity[RECORDED] = program_digest(observe.trace(state))
        trainer = ExactTrainer(engine, calendar, state, observe, at_target)
        history, _ = run(
            trainer,
            looks,
            callback=with_fixed(callback, given),
            progress=progress,
            checkpoint=checkpoint,
            identity=identity,
            out_of_time=out_of_time,
        )
        named = {"engine": np.full(len(history["step"]), self.engine)}
        return combine_state(trainer.state, given), history | named

    def _functions(self, task: Task, fixed: PyTree) -> tuple[Engine, SharedJit, SharedJit]:
        """Return the engine, what a look computes, and whether the target loss is reached.

        If no parameter is fixed, those of the run before serve again, so that nothing is traced
        again; the copy of the engine has no kernel yet.
        """
        kind = jax.tree.structure(fixed), task.solved
        if self._latest is None or self._latest[0] != kind or jax.tree.leaves(fixed):
            algorithm, target = self.step.algorithm, self.step.target_loss
            seen = observer(algorithm, self.watch, TAKEN)
            observe = SharedJit(lambda state: seen(state, self.sets, fixed))
            level = as_argument(-jnp.inf if target is None else target)
            x, y = task.data
            reached = SharedJit(lambda params: task.loss(task.f(params, x), y) <= level)
            self._latest = kind, (ENGINES[self.engine](task), observe, reached)
        engine, observe, reached = self._latest[1]
        return copy(engine), observe, reached

    def _check(self, bound: Step, task: Task, state: TrainState) -> None:
        """Raise ValueError if the engine does not apply to the steps of the trained parameters."""
        due = bound.schedule
        jax.eval_shape(due, state.step, state)  # It must return one bool.
        if reason := needs_steps(bound.algorithm, due, state):
            raise ValueError(
                f"{reason}. This needs engine 'steps': take 'steps' or 'auto' instead of "
                f"'{self.engine}'"
            )
        check_engine(self.engine, task, state.params, stops=reads_params(due, state))


def _choose(step: Step, params, data, num_steps, watch, *, tolerance, memory_limit):
    """Return the engine that "auto" takes, and why."""
    if why := unfit_for_engines(step):
        return "steps", why
    if not isinstance(data, tuple | list):
        return "steps", "data come as batches"
    if isinstance(params, TrainState):
        return "steps", "only steps can continue from the state of a run"
    check_call("train", step, (params, data), watch, None)
    check_run(step, data, num_steps, watch.at)
    moving, fixed = partition(params, step.algorithm.trainable)
    step = step.bind(to_auto_axes(fixed))
    task = _task(step, data, tolerance, memory_limit)
    state = step.start(moving, data)
    jax.eval_shape(step.schedule, state.step, state)  # It must return one bool.
    check_functions(step, moving, None, data)
    if why := needs_steps(step.algorithm, step.schedule, state) or unfit_types(task, moving):
        return "steps", why
    return choose(task, moving, Calendar(step.schedule).next_stop(state, num_steps))


def _task(step: Step, data, tolerance: float, memory_limit: int | None) -> Task:
    check_open_unit_interval("tolerance", tolerance)
    if why := unfit_for_engines(step):
        raise ValueError(why)
    check_run(step, data, 1, None)
    if memory_limit is not None:
        check_positive_integer("memory_limit", memory_limit)
    algorithm, step_size = step.algorithm, step.algorithm.optimizer
    # The checks above have refused an optimizer that is no step size.
    assert step_size is not None
    assert not isinstance(step_size, optax.GradientTransformation)
    return Task(
        f=algorithm.f,
        data=jax.tree.map(to_array, tuple(data)),
        loss=algorithm.loss,
        step_size=as_argument(step_size),
        penalty=as_argument(algorithm.penalty) if algorithm.has_penalty else 0.0,
        tolerance=float(tolerance),
        memory_limit=device_memory(2**31, 0.6) if memory_limit is None else memory_limit,
        solved=step.schedule.solved,
    )


def _by_steps(step: Step, params, data, **settings):
    """Train by steps, with the history of the other engines."""
    state, history, seconds = train_by_steps(step, params, data, **settings, taken=TAKEN)
    taken = history["step"]
    named = {"engine": np.full(len(taken), "steps")}
    return state, history | spent_by_steps(taken, seconds) | named
