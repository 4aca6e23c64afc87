"""Algorithm 3 with an engine that skips the steps between two linearisations (`exact.engines`)."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin.exact.calendar import Calendar
from iterlin.exact.checks import check_engine, needs_steps, unfit_for_engines
from iterlin.exact.choice import ENGINES, choose
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
    check_open_unit_interval,
    check_positive_integer,
)
from iterlin.training.checks import check_call, check_functions, check_run
from iterlin.training.identity import RECORDED, STEP, scalar_fields, start_settings
from iterlin.training.loop import History, run, with_fixed
from iterlin.training.schedules import reads_params
from iterlin.training.state import TrainState, combine_state
from iterlin.training.step import Step
from iterlin.training.steps import train_by_steps
from iterlin.training.watching import UPDATES, Watch, observer

# Names in the history that a watch must not use.
TAKEN = ("step", "engine", *SPENT)


@full_precision()
def train_by_engine(
    step: Step,
    params: PyTree,
    data,
    *,
    num_steps: int,
    engine: str,
    key=None,
    watch: Watch = UPDATES,
    checkpoint=None,
    callback=None,
    progress: bool | None = None,
    tolerance: float = 1e-3,
    memory_limit: int | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> tuple[TrainState, History]:
    """Train as `train` does, with any engine except "steps". Engine "auto" may choose "steps".

    The arguments are those of `train`, and out_of_time that of `training.loop.run`. Only "steps"
    draws from a key. Raises ValueError if the engine does not apply to the run, or is given a key.
    """
    auto = engine == "auto"
    if key is not None and not auto:
        raise ValueError(f"engine '{engine}' draws nothing: leave key out, or take 'steps'")

    def announce(chosen: str, why: str) -> None:
        if progress is not False:
            print(f"engine {chosen}: {why}", file=sys.stderr)

    def by_steps() -> tuple[TrainState, History]:
        """Train by steps, with the history of the other engines."""
        settings = {"key": key, "watch": watch, "checkpoint": checkpoint, "callback": callback}
        settings |= {"num_steps": num_steps, "progress": progress, "taken": TAKEN}
        state, history, seconds = train_by_steps(step, params, data, **settings)
        named = {"engine": np.full(len(history["step"]), "steps")}
        return state, history | spent_by_steps(history["step"], seconds) | named

    why = unfit_for_engines(step, params)
    if auto and not (why or isinstance(data, tuple | list)):
        why = "data come as batches"
    if auto and why:
        announce("steps", why)
        return by_steps()
    if why:
        raise ValueError(why)
    check_call("train", step, (params, data), watch, checkpoint)
    check_open_unit_interval("tolerance", tolerance)
    if memory_limit is not None:
        check_positive_integer("memory_limit", memory_limit)
    looks = check_run(step, data, num_steps, watch.at)
    # In arrays of its own: NumPy's could be changed from outside.
    params = jax.tree.map(lambda a: jnp.array(a) if isinstance(a, np.ndarray) else a, params)
    moving, given = partition(params, step.algorithm.trainable)
    warn_about_batch_stats(moving)
    check_finite("params", moving)
    check_functions(step, params, None, data, watch)
    # From here on there are no fixed parameters, but in what users see: states and metrics.
    fixed = to_auto_axes(given)
    bound = step.bind(fixed)
    algorithm, due, state = bound.algorithm, bound.schedule, bound.start(moving, data)
    step_size: Any = algorithm.optimizer  # a number, as `unfit_for_engines` has found
    task = Task(
        f=algorithm.f,
        data=jax.tree.map(to_array, tuple(data)),
        loss=algorithm.loss,
        step_size=as_argument(step_size),
        penalty=as_argument(algorithm.penalty) if algorithm.has_penalty else 0.0,
        tolerance=float(tolerance),
        memory_limit=device_memory(2**31, 0.6) if memory_limit is None else memory_limit,
        solved=due.solved,
    )
    jax.eval_shape(due, state.step, state)  # It must return one bool.
    calendar, why = Calendar(due), needs_steps(bound, task, state)
    if auto:
        engine = "steps"
        if not why:
            engine, why = choose(task, moving, calendar.next_stop(state, num_steps))
        announce(engine, why)
        if engine == "steps":
            return by_steps()
    elif why:
        raise ValueError(f"{why}. Take 'steps' or 'auto' instead of '{engine}'")
    check_engine(engine, task, moving, stops=reads_params(due, state))

    x, y = task.data
    sets = jax.tree.map(to_array, dict(watch.sets))
    seen = observer(step.algorithm, watch, TAKEN)
    observe = SharedJit(lambda state: seen(state, sets, fixed))
    level = as_argument(-jnp.inf if step.target_loss is None else step.target_loss)
    reached = SharedJit(lambda params: task.loss(task.f(params, x), y) <= level)

    def at_target(state: TrainState) -> bool:
        return step.target_loss is not None and bool(reached(state.params))

    chosen = ENGINES[engine](task)
    trainer = ExactTrainer(chosen, calendar, state, observe, at_target)
    identity = None
    if checkpoint is not None:
        programs = [*chosen.programs(moving), calendar.program(state), reached.trace(moving)]
        objects = {"algorithm": step.algorithm, "schedule": step.schedule}
        identity = start_settings(state, fixed, task.data, sets, looks)
        identity |= scalar_fields(**objects, rule=task.solved, run=step)
        identity |= {"engine": engine, "tolerance": task.tolerance}
        identity[STEP] = " ".join(map(program_digest, programs))
        identity[RECORDED] = program_digest(observe.trace(state))
    history, _ = run(
        trainer,
        looks,
        callback=with_fixed(callback, given),
        progress=progress,
        checkpoint=checkpoint,
        identity=identity,
        out_of_time=out_of_time,
    )
    named = {"engine": np.full(len(history["step"]), engine)}
    return combine_state(trainer.state, given), history | named
