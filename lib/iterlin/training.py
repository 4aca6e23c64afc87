"""Training by iterative linearisation: one run, or a sweep over periods and seeds.

Runs go in chunks between evaluations (`chunks`); a chunk is one compiled loop whose length,
periods, seeds and data are arguments, so that nothing is compiled twice and a whole sweep is one
vmapped program. The step itself is `algorithm`'s.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from iterlin import examples
from iterlin.algorithm import Algorithm
from iterlin.checks import (
    batches_of,
    check_call,
    check_functions,
    check_resumed,
    check_run,
    warn_of_unused_rule,
)
from iterlin.losses import check_labels
from iterlin.parameters import split, warn_of_statistics
from iterlin.runtime.chunks import History, run_in_chunks
from iterlin.runtime.devices import mesh_of, on_device
from iterlin.runtime.identity import (
    RECORDED,
    STEP,
    Identity,
    first_numbers,
    plain_fields,
    program_digest,
    start_of,
)
from iterlin.runtime.precision import full_precision
from iterlin.runtime.slices import Sliced
from iterlin.schedules import as_schedule, check_answer, every, of_whole, periods_array
from iterlin.state import RUN_AXES, TrainState, parted, whole
from iterlin.validation import accepts, described, random_key, random_keys
from iterlin.watching import UPDATES, Watch, observer


@full_precision()
def train(
    algorithm: Algorithm,
    params: PyTree | TrainState,
    data,
    *,
    schedule: Any,
    num_steps: int,
    key: Array | None = None,
    watch: Watch = UPDATES,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """Train a network by iterative linearisation (Algorithm 3); the final state and the history.

    params may be the state of an earlier run, which then goes on, exactly, up to num_steps in all.
    data is (x, y), arrays or pytrees that lead with N; or an iterable of batches (x, y) of one
    shape, each the whole of a step. A loss or metric of one's own is called once more, before the
    run, on outputs of zeros and all targets, to find labels that are none. `schedule(step, state)`
    says when to re-linearise: `every(K)` or K, `never()`, `when(...)` or any function. key orders
    the examples of minibatches, and draws what a keyed f draws.

    history maps "step" to the steps looked at (T,), "updates" to the feature updates by then, and
    what `watch` names to (T,). A look at a multiple of K sees the proxy at the end of its period,
    before re-linearisation. A non-finite step ends the run as diverged, without raising. Products
    are computed in full precision (`runtime.precision`). After training, the network predicts by
    ``f(state.params, x)``, its proxy by ``linearize(f, state.anchor)(state.params, x)``.

    Of data that lie on the devices of a mesh, each device takes its part of a batch to the gradient
    and the gradients are summed, if f is in slices (`slices.in_slices`) or the algorithm has a
    `mesh`; any other f is left to the compiler.

    With a checkpoint, a file, a run that is killed goes on from there when it is called again, to
    the same bits; the file is refused with CheckpointError, which names what differs, if it is of
    another run. A file that another version of JAX wrote is compared by the first numbers that the
    run computes. `progress` shows a bar (default: on a terminal).

    Raises ValueError before any compute for an algorithm without optimizer, a num_steps that is not
    a positive integer below 2^31, a batch larger than the data, labels of a cross-entropy outside
    its classes (in the sets of `watch`, too; of an iterable, in the first batch), a minibatch,
    augmentation or a keyed f without key, inputs and targets of different lengths, an f that does
    not return one array (N, ...), a resumed state whose optimiser or order of examples is another,
    a `watch` that is none, steps to look at that are not whole, increasing and in [0, num_steps],
    or a schedule that returns anything but one bool; of an iterable, for all that needs the data as
    a whole; and as `parameters.split`.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> watch = il.Watch({"train": (x, y)}, at=[0, 10])
    >>> settings = {"schedule": 10, "num_steps": 100, "watch": watch}
    >>> state, history = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(history["step"], history["updates"], history["train_loss"].round(3))
    [  0  10 100] [0 0 9] [0.25  0.001 0.   ]
    """
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
    state, history = _run(
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


@full_precision()
def train_sweep(
    algorithm: Algorithm,
    init: Callable[[Array], PyTree],
    data,
    *,
    periods,
    keys: Array,
    num_steps: int,
    schedule: Callable[[Array], Any] = every,
    watch: Watch = UPDATES,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """`train` for every period (K of them, infinity allowed) and every key (S), as one program.

    Each key draws its initial parameters, init(key), and its order of examples, the same for
    every period; where `data` is a function, also its own examples, data(key). The state's
    leaves but `step` lead with (K, S); the history's arrays but "step" are (K, S, T). Everything
    else, errors included, is as for `train`.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> keys = jax.random.split(jax.random.key(0), 5)
    >>> init = lambda key: 0.1 * jax.random.normal(key, (2,))
    >>> settings = {"periods": [1, 10, jnp.inf], "keys": keys, "num_steps": 100}
    >>> states, history = il.train_sweep(algorithm, init, (x, y), **settings)
    >>> print(states.params.shape, history["updates"][:, 0, -1])
    (3, 5, 2) [99  9  0]
    """
    check_call("train_sweep", algorithm, (data, keys), watch, checkpoint)
    if not callable(init):
        raise ValueError(f"init must be a function of a key, got {described(init)}")
    random_keys("keys", keys)
    datasets, data_axis = (jax.vmap(data)(keys), 0) if callable(data) else (data, None)
    example = jax.tree.map(lambda a: a[0], datasets) if callable(data) else data
    of_all = "; for a schedule of its own in every run: lambda period: ..."
    accepts("schedule", schedule, ("period",), of_all)
    fixed = jax.vmap(lambda key: split(init(key), algorithm.trainable)[1])(keys)
    looks = check_run(algorithm, example, num_steps, keys, watch.at)
    drawn = jax.eval_shape(init, keys[0])
    outputs = check_functions(algorithm, drawn, keys[0], example, watch)
    for number in range(1, len(keys) if callable(data) else 1):
        targets = jax.tree.map(itemgetter(number), datasets[1])
        check_labels(algorithm.loss, outputs, targets)
    datasets = on_device(tuple(datasets))
    if data_axis is None:
        algorithm = dealt_out(algorithm, datasets)
    periods = periods_array(periods)

    def over_both(function, *axes, out=RUN_AXES):
        """Over seeds (the first axes), then over periods."""
        seeds = jax.vmap(function, (RUN_AXES, *(axis[0] for axis in axes)), out)
        return jax.vmap(seeds, (RUN_AXES, *(axis[1] for axis in axes)), out)

    @partial(jax.jit, donate_argnums=0)
    def advance(states, fixed, datasets, periods, count):
        def run(state, fixed, run_data, period):
            timed = of_whole(as_schedule(schedule(period)), fixed)
            return algorithm.bound(fixed).advance(state, run_data, count, timed)

        axes = (0, None), (data_axis, None), (None, 0)
        return over_both(run, *axes)(states, fixed, datasets, periods)

    def observe(state, sets, fixed):
        return observer(algorithm, watch)(whole(state, fixed), sets)

    observe = jax.jit(over_both(observe, (None, None), (0, None), out=0))
    draw = partial(algorithm.draw, init)
    seeds = jax.vmap(draw, (data_axis, 0), RUN_AXES)(datasets, keys)
    states = jax.vmap(lambda _: seeds, out_axes=RUN_AXES)(periods)

    def answer(state, fixed, period):
        return of_whole(as_schedule(schedule(period)), fixed)(state.step, state)

    jax.eval_shape(over_both(answer, (0, None), (None, 0), out=0), states, fixed, periods)
    one = TrainState(states.step, *jax.tree.map(lambda a: a[0, 0], states[1:]))
    timed = as_schedule(schedule(periods[0]))
    warn_of_unused_rule(algorithm, timed, whole(one, jax.tree.map(itemgetter(0), fixed)), watch)
    run = (fixed, datasets, periods), (watch.sets, fixed)
    settings = plain_fields(algorithm=algorithm, rule=algorithm.solved)
    settings |= {"the periods": periods.tolist()}
    states, history = _run(states, advance, observe, *run, looks, 0, checkpoint, progress, settings)
    over_periods = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(periods), *a.shape)), fixed)
    return whole(states, over_periods), history


def _run(state, advance, observe, inputs, seen, looks, first, checkpoint, progress, settings):
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
