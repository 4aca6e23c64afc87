"""Algorithm 3 by an engine that skips the steps between two linearisations (`engines`)."""

import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin.exact.calendar import Answers, ends_when_solved
from iterlin.exact.checks import check_engine, check_outputs, needs_steps, unfit_types
from iterlin.exact.choice import ENGINES, choose, default_memory
from iterlin.exact.run import SPENT, ExactRun
from iterlin.exact.task import Task
from iterlin.linearise.devices import on_automatic_axes
from iterlin.linearise.parameters import bound, split
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import one_of, open_unit, positive_integer
from iterlin.training.algorithm import Algorithm
from iterlin.training.checks import cached_outputs, check_call, check_run, warn_of_unused_rule
from iterlin.training.chunks import History, never
from iterlin.training.identity import plain_fields
from iterlin.training.schedules import NEVER, as_schedule, check_answer, looks_at, of_whole
from iterlin.training.state import TrainState, whole
from iterlin.training.steps import train_by_steps
from iterlin.training.watching import UPDATES, Watch, check_sets, check_watch, observer

# Settings of an algorithm that only steps, one by one, can follow.
STEPWISE = ("batch_size", "augment", "normalization")


@on_automatic_axes
def train_by_engine(
    algorithm: Algorithm,
    params: PyTree,
    data,
    *,
    engine,
    tolerance,
    memory_limit,
    watch,
    **run,
) -> tuple[TrainState, History]:
    """`training.train` with any engine; `run`: its schedule, num_steps, checkpoint, progress."""
    settings = {"tolerance": tolerance, "watch": watch, "memory_limit": memory_limit}
    return integrator(algorithm, data, engine=engine, **settings)(params, **run)


def integrator(
    algorithm: Algorithm,
    data,
    *,
    engine: str,
    tolerance: float = 1e-3,
    watch: Watch = UPDATES,
    memory_limit: int | None = None,
) -> Callable[..., tuple[TrainState, History]]:
    """Return a function that trains, compiled once for all its runs.

    Its arguments are params, and by keyword schedule, num_steps, checkpoint and progress as of
    `training.train`; `at`, the steps to look at (None: those of `watch`); and out_of_time as of
    `chunks.run_in_chunks` (not with engine "steps").
    """
    one_of("engine", engine, ENGINES)
    open_unit("tolerance", tolerance)
    check_watch(watch)
    task = _task(algorithm, data, tolerance, memory_limit)
    sets = jax.tree.map(jnp.asarray, dict(watch.sets))
    engines = {}

    @jax.jit
    def observe(state, sets, fixed):
        taken = ("step", "engine", *SPENT)
        return observer(algorithm, watch, taken)(whole(state, fixed), sets)

    @jax.jit
    def at_target(params, fixed, x, y):
        return algorithm.loss(bound(algorithm.f, fixed)(params, x), y) <= algorithm.target_loss

    reached = None if algorithm.target_loss is None else at_target

    @full_precision()
    def run(
        params,
        *,
        schedule,
        num_steps,
        at=None,
        checkpoint=None,
        progress=None,
        out_of_time=never,
    ):
        if isinstance(params, TrainState):
            raise ValueError(
                f"engine '{engine}' starts from parameters, not from the state of a run: give its "
                "state.params, or a checkpoint from which to go on"
            )
        check_call("train", algorithm, (params, data), watch, checkpoint)
        schedule = as_schedule(schedule)
        looks = check_run(algorithm, data, num_steps, None, watch.at if at is None else at)
        if num_steps >= NEVER:
            raise ValueError(f"num_steps must be below {NEVER}, got {num_steps}")
        moving, fixed = split(params, algorithm.trainable)
        state = algorithm.start(moving, data, jax.random.key(0))
        asked, full = Answers(schedule, fixed), of_whole(schedule, fixed)
        check_answer(full, state)
        wanted = task if ends_when_solved(full, state) else task._replace(solved=None)
        name, reason = engine, needs_steps(algorithm, full, state)
        if reason and name not in ("auto", "steps"):
            raise ValueError(
                f"{reason}. Only engine 'steps' follows that: take it, or 'auto', in the place of "
                f"'{engine}'"
            )
        check_outputs(wanted, params)
        check_sets(watch, algorithm.loss, cached_outputs(algorithm.f, params))
        if name == "auto":
            name, why = "steps", reason or unfit_types(wanted, params)
            if not why:
                length = asked.first_after(state, num_steps) - int(state.step)
                name, why = choose(wanted, params, length)
            if progress is not False:
                print(f"engine {name}: {why}", file=sys.stderr)
        check_engine(name, wanted, params, stops=looks_at("params", full, state))
        jax.eval_shape(observe, state, sets, fixed)  # which may refuse names
        named = {"engine": np.full(len(looks), name)}
        if name == "steps":
            looking = watch._replace(sets=sets, at=looks)
            settings = {"schedule": schedule, "num_steps": num_steps, "watch": looking}
            state, history = _by_steps(algorithm, params, data, settings, checkpoint, progress)
            return state, history | named
        warn_of_unused_rule(algorithm, full, state, watch)
        kind = name, wanted.solved
        if kind not in engines:
            engines[kind] = ENGINES[name](wanted)
        settings = plain_fields(algorithm=algorithm, schedule=schedule, rule=wanted.solved)
        exact = ExactRun(
            engines[kind],
            asked,
            state,
            fixed,
            observe,
            sets,
            looks,
            checkpoint,
            reached=reached,
            settings=settings | {"engine": name, "tolerance": tolerance},
            out_of_time=out_of_time,
        )
        state, history = exact.to_the_end(progress)
        return state, history | named

    return run


def _task(algorithm: Algorithm, data, tolerance: float, memory_limit: int | None) -> Task:
    for name in STEPWISE:
        if getattr(algorithm, name) is not None:
            raise ValueError(f"exact engines train on the full batch as it is: no {name}")
    if algorithm.keyed:
        raise ValueError(
            "exact engines have no key for a keyed f: give f without its noise, or take "
            "engine 'steps'"
        )
    if callable(getattr(algorithm.optimizer, "update", None)):
        raise ValueError(
            "exact engines are for gradient descent: give a step size, or engine 'steps'; for "
            "periods of a fixed time (`timed.for_time`), with the schedule every(time / step size)"
        )
    check_run(algorithm, data, 1, None, None)
    if memory_limit is not None:
        positive_integer("memory_limit", memory_limit)
    return Task(
        f=algorithm.f,
        data=jax.tree.map(jnp.asarray, tuple(data)),
        loss=algorithm.loss,
        step_size=algorithm.optimizer,
        penalty=algorithm.penalty,
        tolerance=tolerance,
        memory_limit=default_memory() if memory_limit is None else memory_limit,
        solved=algorithm.solved,
        trainable=algorithm.trainable,
    )


def _by_steps(algorithm, params, data, settings, checkpoint, progress):
    begun = time.monotonic()
    state, history = train_by_steps(
        algorithm, params, data, **settings, checkpoint=checkpoint, progress=progress
    )
    unknown = np.full(len(history["step"]), np.nan)
    seconds = np.append(unknown[1:], time.monotonic() - begun)
    spent = {"evaluations": history["step"], "stability": unknown, "seconds": seconds}
    return state, history | spent
