"""Training that takes every step: one run, or several as one program."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.linearise import examples
from iterlin.linearise.devices import find_mesh, to_auto_axes
from iterlin.linearise.parameters import partition, warn_about_batch_stats
from iterlin.linearise.slices import Sliced
from iterlin.linearise.validation import check_random_key
from iterlin.training.algorithm import Algorithm
from iterlin.training.checks import (
    batches_of,
    check_call,
    check_functions,
    check_resumed,
    check_run,
)
from iterlin.training.identity import (
    RECORDED,
    STEP,
    Identity,
    first_numbers,
    plain_fields,
    program_digest,
    start_of,
)
from iterlin.training.loop import History, StepTrainer, run
from iterlin.training.schedules import check_answer, of_whole
from iterlin.training.state import TrainState, parted, whole
from iterlin.training.step import Step
from iterlin.training.watching import Watch, observer


def train_by_steps(
    step: Step,
    params: PyTree | TrainState,
    data,
    *,
    num_steps,
    key,
    watch,
    checkpoint,
    progress,
    taken: tuple[str, ...] = ("step",),
) -> tuple[TrainState, History]:
    """Train with engine "steps" of `train`, whose arguments are checked here.

    Args:
        taken: Names that the history has besides what is recorded.
    """
    algorithm, schedule = step.algorithm, step.schedule
    check_call("train", step, (params, data, key), watch, checkpoint)
    if key is not None:
        check_random_key("key", key)
    begun = params if isinstance(params, TrainState) else None
    if begun and key is not None:
        raise ValueError("the state has the key that its run began with: leave key out")
    first, key = (int(begun.step), begun.key) if begun else (0, key)
    batches = None if isinstance(data, tuple | list) else batches_of(data, step, checkpoint)
    if batches is not None:
        data = next(batches, None)
        if data is None:
            raise ValueError("data has no batch")
    looks = check_run(step, data, num_steps, key, watch.at, first)
    if begun:
        check_resumed(begun, step, examples.num_examples(data[1]))
        state, given = parted(begun, algorithm.trainable)
    else:
        moving, given = partition(params, algorithm.trainable)
        warn_about_batch_stats(moving)
        state = step.start(moving, data, jax.random.key(0) if key is None else key)
    # On the device once, and arguments of programs: constants would be copied into these.
    data, state, fixed, sets = to_auto_axes((tuple(data), state, given, dict(watch.sets)))
    check_functions(step, whole(state, fixed).params, key, data, watch)
    check_answer(of_whole(schedule, fixed), state)
    step = on_mesh_of(step, data)
    advance, observe = _advance(step), _observe(algorithm, watch, taken)
    advance.trace(state, data, jnp.asarray(1, jnp.int32), fixed)  # errors come before any compute
    settings = plain_fields(algorithm=algorithm, schedule=schedule, rule=schedule.solved, run=step)
    state, history = run_steps(
        advance if batches is None else _with_batches(advance, data, batches),
        observe,
        (state, data, fixed),
        sets,
        looks,
        first=first,
        checkpoint=checkpoint,
        progress=progress,
        settings=settings,
    )
    return whole(state, given), history


def on_mesh_of(step: Step, data) -> Step:
    """Return the step on the devices of its data, if the network is in slices and so declared to
    treat its examples independently; for any other network `mesh` says so."""
    if step.mesh is None and isinstance(step.algorithm.f, Sliced):
        return replace(step, mesh=find_mesh(data))
    return step


def _advance(step: Step):
    """Return the compiled `Step.advance`, kept with the algorithm for the next call."""
    advance = partial(jax.jit, step.advance, donate_argnums=0)
    try:
        return step.algorithm.program(step, advance)
    except TypeError:  # no hash: a traced period, or a schedule that holds arrays
        return advance()


def _observe(algorithm: Algorithm, watch: Watch, taken: tuple[str, ...]):
    """Return the compiled observe(state, sets, fixed), kept with the algorithm."""
    measures = watch._replace(sets={}, at=None)
    metrics = None if watch.metrics is None else tuple(watch.metrics.items())

    def observe(state, sets, fixed):
        return observer(algorithm, measures, taken)(whole(state, fixed), sets)

    own = ("observe", metrics, watch.observe, watch.batch_size, taken)
    return algorithm.program(own, lambda: jax.jit(observe))


def _with_batches(advance, first, batches):
    """Return `advance` of steps that take one batch each, the first of which is there already."""
    waiting = [first]

    def steps(state, _, count, fixed):
        for _ in range(int(count)):
            batch = waiting.pop() if waiting else next(batches, None)
            if batch is None:
                raise ValueError(f"data ended at step {int(state.step)}: give more batches")
            state = advance(state, to_auto_axes(tuple(batch)), jnp.asarray(1, jnp.int32), fixed)
        return state

    return steps


def run_steps(
    advance, observe, start, sets, looks, *, more=(), first=0, checkpoint, progress, settings
) -> tuple[TrainState, History]:
    """Run advance(state, data, count, fixed, *more) between looks observe(state, sets, fixed).

    Args:
        start: (state, data, fixed), the first ones.
        settings: Numbers and texts that tell the run from others.
    """
    state, data, fixed = start

    def take(state, count):
        return advance(state, data, count, fixed, *more)

    def look(state):
        return observe(state, sets, fixed)

    identity = None
    if checkpoint is not None:
        one = jnp.asarray(1, jnp.int32)
        programs = {
            STEP: advance.trace(state, data, one, fixed, *more).jaxpr,
            RECORDED: observe.trace(state, sets, fixed).jaxpr,
        }
        identity = Identity(
            start_of(state, fixed, (data, *more), sets, looks) | settings,
            {name: program_digest([program]) for name, program in programs.items()},
            lambda: first_numbers(state, fixed, lambda s: take(s, one), look),
        )
    trainer = StepTrainer(state, take, look, first=first)
    history, _ = run(trainer, looks, progress=progress, checkpoint=checkpoint, identity=identity)
    return trainer.state, history
