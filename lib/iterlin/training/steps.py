"""Training by steps, in chunks between evaluations (`chunks`).

A chunk is one compiled loop whose length, schedule and data are arguments, so that nothing is
compiled twice. The step itself is `algorithm`'s.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from iterlin.linearise import examples
from iterlin.linearise.devices import mesh_of, on_device
from iterlin.linearise.parameters import split, warn_of_statistics
from iterlin.linearise.slices import Sliced
from iterlin.linearise.validation import random_key
from iterlin.training.algorithm import Algorithm
from iterlin.training.checks import (
    batches_of,
    check_call,
    check_functions,
    check_resumed,
    check_run,
    warn_of_unused_rule,
)
from iterlin.training.chunks import History, run_in_chunks
from iterlin.training.identity import (
    RECORDED,
    STEP,
    Identity,
    first_numbers,
    plain_fields,
    program_digest,
    start_of,
)
from iterlin.training.schedules import as_schedule, check_answer, of_whole
from iterlin.training.state import TrainState, parted, whole
from iterlin.training.watching import UPDATES, observer


def train_by_steps(
    algorithm: Algorithm,
    params: PyTree | TrainState,
    data,
    *,
    schedule,
    num_steps,
    key=None,
    watch=UPDATES,
    checkpoint=None,
    progress=None,
) -> tuple[TrainState, History]:
    """`training.train` with engine "steps", whose arguments are checked here."""
    check_call("train", algorithm, (params, data, key), watch, checkpoint)
    if key is not None:
        random_key("key", key)
    begun = params if isinstance(params, TrainState) else None
    if begun and key is not None:
        raise ValueError("the state has the key that its run began with: leave key out")
    first, key = (int(begun.step), begun.key) if begun else (0, key)
    schedule = as_schedule(schedule)
    batches = None if isinstance(data, tuple | list) else batches_of(data, algorithm, checkpoint)
    if batches is not None:
        data = next(batches, None)
        if data is None:
            raise ValueError("data has no batch")
    looks = check_run(algorithm, data, num_steps, key, watch.at, first)
    if begun:
        check_resumed(begun, algorithm, examples.count(data[1]))
        state, fixed = parted(begun, algorithm.trainable)
    else:
        moving, fixed = split(params, algorithm.trainable)
        warn_of_statistics(moving)
        state = algorithm.start(moving, data, jax.random.key(0) if key is None else key)
    data, state = on_device((tuple(data), state))
    params = whole(state, on_device(fixed)).params
    check_functions(algorithm, params, key, data, watch)
    check_answer(of_whole(schedule, fixed), state)
    warn_of_unused_rule(algorithm, of_whole(schedule, fixed), state, watch)
    algorithm = dealt_out(algorithm, data)

    @partial(jax.jit, donate_argnums=0)
    def advance(state, fixed, data, count):
        return algorithm.bound(fixed).advance(state, data, count, of_whole(schedule, fixed))

    @jax.jit
    def observe(state, sets, fixed):
        return observer(algorithm, watch)(whole(state, fixed), sets)

    settings = plain_fields(algorithm=algorithm, schedule=schedule, rule=algorithm.solved)
    state, history = run_steps(
        state,
        advance if batches is None else _each_with_its_batch(advance, data, batches),
        observe,
        (fixed,) if batches is not None else (fixed, data),
        (watch.sets, fixed),
        looks,
        first,
        checkpoint,
        progress,
        settings,
    )
    return whole(state, fixed), history


def _each_with_its_batch(advance, first, batches):
    """`advance` of steps that take one batch each, the first of which is there already."""
    waiting = [first]

    def steps(state, fixed, count):
        for _ in range(int(count)):
            batch = waiting.pop() if waiting else next(batches, None)
            if batch is None:
                raise ValueError(f"data ended at step {int(state.step)}: give more batches")
            state = advance(state, fixed, on_device(tuple(batch)), jnp.asarray(1, jnp.int32))
        return state

    return steps


def run_steps(state, advance, observe, inputs, seen, looks, first, checkpoint, progress, settings):
    """Chunks of advance(state, *inputs, count) between looks observe(state, *seen)."""
    # Arguments, and on the device once: as constants they would be copied into the programs.
    sets, fixed = seen
    state, inputs, seen = on_device((state, inputs, (dict(sets), fixed)))
    identity = None
    if checkpoint is not None:
        one = jnp.asarray(1, jnp.int32)
        programs = {
            STEP: advance.trace(state, *inputs, one).jaxpr,
            RECORDED: observe.trace(state, *seen).jaxpr,
        }
        identity = Identity(
            start_of(state, fixed, inputs[1:], sets, looks) | settings,
            {name: program_digest([program]) for name, program in programs.items()},
            lambda: first_numbers(
                state, fixed, lambda s: advance(s, *inputs, one), lambda s: observe(s, *seen)
            ),
        )
    outcome = run_in_chunks(
        state,
        lambda state, count: advance(state, *inputs, count),
        lambda state: observe(state, *seen),
        looks,
        first=first,
        progress=progress,
        checkpoint=checkpoint,
        identity=identity,
    )
    return outcome.state, outcome.history


def dealt_out(algorithm: Algorithm, data) -> Algorithm:
    """The algorithm on the devices that its data lie on, where its network is in slices, so that it
    is said to treat its examples independently; of any other, `mesh` says so."""
    if algorithm.mesh is None and isinstance(algorithm.f, Sliced):
        return replace(algorithm, mesh=mesh_of(data))
    return algorithm
