"""Training that takes every step: one run, or several as one program."""

from dataclasses import replace
from itertools import chain

import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.linearise import examples
from iterlin.linearise.compiled import SharedJit
from iterlin.linearise.devices import find_mesh, to_array, to_auto_axes
from iterlin.linearise.digests import program_digest
from iterlin.linearise.parameters import partition, warn_about_batch_stats
from iterlin.linearise.slices import Sliced
from iterlin.linearise.validation import check_finite, check_random_key, warn_user
from iterlin.training.checks import (
    batch_iterator,
    check_call,
    check_functions,
    check_resumed,
    check_run,
)
from iterlin.training.identity import RECORDED, STEP, scalar_fields, start_settings
from iterlin.training.loop import History, StepTrainer, run, with_fixed
from iterlin.training.state import TrainState, combine_state
from iterlin.training.step import Step
from iterlin.training.watching import observer


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
    callback=None,
    taken: tuple[str, ...] = ("step",),
) -> tuple[TrainState, History, float]:
    """Train with the engine "steps", after checking the arguments, which are those of `train`.

    taken: names that the history uses for other quantities. Returns state and history as `train`,
    and the seconds that the run took.
    """
    algorithm, schedule = step.algorithm, step.schedule
    check_call("train", step, (params, data, key), watch, checkpoint)
    if key is not None:
        check_random_key("key", key)
    begun = params if isinstance(params, TrainState) else None
    if begun and key is not None:
        raise ValueError("the state has the key that its run began with: leave key out")
    first, key = (int(begun.step), begun.key) if begun else (0, key)
    batches = None if isinstance(data, tuple | list) else batch_iterator(data, step, checkpoint)
    if batches is not None:
        data = next(batches, None)
        if data is None:
            raise ValueError("data has no batch")
    looks = check_run(step, data, num_steps, watch.at, first)
    if begun:
        check_resumed(begun, step, examples.num_examples(data[1]))
        moving, given = partition(begun.params, algorithm.trainable)
        anchor, _ = partition(begun.anchor, algorithm.trainable)
        state = begun._replace(params=moving, anchor=anchor)
    else:
        moving, given = partition(params, algorithm.trainable)
        warn_about_batch_stats(moving)
        check_finite("params", moving)
        state = step.bind(given).start(moving, data, key)
    # Arguments of the programs, on the device once. Constants would be copied into each program.
    data, state, fixed, sets = to_auto_axes((tuple(data), state, given, dict(watch.sets)))
    check_functions(step, combine_state(state, fixed).params, key, data, watch)
    step = with_data_mesh(step, data)
    advance = SharedJit(step.advance, donate=True, own=algorithm.programs)
    observe = SharedJit(observer(algorithm, watch, taken), own=algorithm.programs)
    advance.prepare(state, data, to_array(1, jnp.int32), fixed)
    observe.prepare(state, sets, fixed)
    settings = scalar_fields(algorithm=algorithm, schedule=schedule, rule=schedule.solved, run=step)
    state, history, seconds = run_steps(
        advance if batches is None else _with_batches(advance, chain([data], batches)),
        observe,
        (state, data, fixed),
        sets,
        looks,
        checkpoint=checkpoint,
        progress=progress,
        callback=with_fixed(callback, given),
        settings=settings,
    )
    return combine_state(state, given), history, seconds


def with_data_mesh(step: Step, data) -> Step:
    """Return the steps with the mesh of their data, if the network is in slices.

    A network in slices treats its examples independently. Any other network needs an explicit mesh.
    """
    if step.mesh is None and isinstance(step.algorithm.f, Sliced):
        return replace(step, mesh=find_mesh(data))
    return step


def _with_batches(advance, batches):
    """Return `advance` for steps that take one batch each.

    It takes fewer steps if there is no further batch, and warns of it.
    """

    def steps(state, _, count, fixed):
        for _ in range(int(count)):
            batch = next(batches, None)
            if batch is None:
                warn_user(f"data ended at step {int(state.step)}: so does the run")
                break
            state = advance(state, to_auto_axes(tuple(batch)), to_array(1, jnp.int32), fixed)
        return state

    return steps


def run_steps(
    advance, observe, start, sets, looks, *, checkpoint, progress, callback, settings
) -> tuple[TrainState, History, float]:
    """Train with a compiled loop of steps; return the final state, the history and the seconds.

    Args:
        advance: advance(state, data, count, fixed) -> the state after `count` steps.
        observe: observe(state, sets, fixed) -> {name: array}.
        start: (state, data, fixed), with the first state and the fixed parameters.
        settings: Numbers and texts that distinguish the run from others.
        sets, looks, checkpoint, progress, callback: As for `training.loop.run` and `train`.
    """
    state, data, fixed = start

    def take(state, count):
        return advance(state, data, count, fixed)

    def look(state):
        return observe(state, sets, fixed)

    identity = None
    if checkpoint is not None:
        one = to_array(1, jnp.int32)
        identity = start_settings(state, fixed, data, sets, looks) | settings
        identity[STEP] = program_digest(advance.trace(state, data, one, fixed))
        identity[RECORDED] = program_digest(observe.trace(state, sets, fixed))
    trainer = StepTrainer(state, take, look)
    history, seconds = run(
        trainer,
        looks,
        callback=callback,
        progress=progress,
        checkpoint=checkpoint,
        identity=identity,
    )
    return trainer.state, history, seconds
