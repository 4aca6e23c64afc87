"""Algorithm 3, iterative linearisation: one run, or a sweep over periods and seeds."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from iterlin.exact.choice import ENGINE_NAMES, EngineName
from iterlin.exact.integrator import train_by_engine
from iterlin.linearise.compiled import SharedJit
from iterlin.linearise.devices import on_any_device, to_array, to_auto_axes
from iterlin.linearise.linearization import check_finite_examples
from iterlin.linearise.parameters import partition
from iterlin.linearise.validation import (
    check_one_of,
    check_random_keys,
    check_signature,
    describe,
    explain_tracer_errors,
)
from iterlin.training.algorithm import Algorithm
from iterlin.training.checks import check_call, check_functions, check_run
from iterlin.training.identity import scalar_fields
from iterlin.training.loop import Callback, History, check_reports, with_fixed
from iterlin.training.losses import check_labels
from iterlin.training.schedules import every, periods_array
from iterlin.training.state import RUN_AXES, TrainState, combine_state
from iterlin.training.step import Step
from iterlin.training.steps import run_steps, train_by_steps, with_data_mesh
from iterlin.training.watching import UPDATES, Watch, observer


@on_any_device
def train(
    algorithm: Algorithm,
    params: PyTree | TrainState,
    data: PyTree,
    *,
    schedule: Any,
    num_steps: int,
    engine: EngineName = "steps",
    batch_size: int | None = None,
    augment: Callable[[Array, PyTree], PyTree] | None = None,
    key: Array | None = None,
    target_loss: float | None = None,
    mesh: Mesh | None = None,
    watch: Watch = UPDATES,
    checkpoint: str | Path | None = None,
    callback: Callback | None = None,
    progress: bool | None = None,
    tolerance: float = 1e-3,
    memory_limit: int | None = None,
) -> tuple[TrainState, History]:
    """Train a network by iterative linearisation (Algorithm 3).

    The engine "steps" takes every step. The others (`iterlin.exact.engines`) solve the convex
    problem between two linearisations, at a cost that hardly depends on the period. They need
    gradient descent on the full batch with a fixed step size, and a loss that is convex in the
    outputs:

    - "closed_form" (squared error) and "function_space" agree with "steps" to rounding.
    - "flow" and "function_space_flow" follow gradient flow for the time step_size * K.
    - "minimum" and "function_space_minimum" solve each problem, which needs a penalty.
    - "kept_steps" takes the steps, but computes the activations once a period.
    - "auto" chooses an engine and prints why. It takes "steps" for periods below 1,000. Otherwise
      it takes "closed_form" for a squared error with at most 2,000 outputs whose Jacobian fits
      into memory_limit, then a flow if step_size times the largest curvature is below 0.1 at the
      first parameters, else "steps".

    After training the network predicts ``f(state.params, x)`` and its proxy
    ``linearize(f, state.anchor)(state.params, x)``. A run that becomes non-finite ends as diverged,
    without an error. Matrix products use full precision (`linearise.precision`). A second call
    that computes the same compiles nothing, also with another period above 1, step size, positive
    penalty, parameters and data. Another number inside an optax transformation is another program,
    unless `optax.inject_hyperparams` makes it a part of the state. If f has derivative rules of its
    own, such as `jax.custom_jvp`, or an inner `jax.jit` that closes over arrays, this holds for
    calls with the same algorithm and the engine "steps".

    Args:
        algorithm: The objective and the optimiser.
        params: Initial parameters; or the `TrainState` of an earlier run by steps, which resumes
            to the same bits, up to num_steps in all.
        data: (x, y), arrays or pytrees that lead with the N examples; or, for "steps", an iterator
            of batches (x, y) of one shape, one for each step, in a run without a checkpoint. A run
            whose batches end early ends there, with a warning; ``state.step`` tells where. If data
            are sharded over a mesh, each device takes its part of a batch, provided that f is in
            slices (`linearise.slices.in_slices`) or `mesh` is given. The compiler shards any other
            f.
        schedule: When to re-linearise: a period K, a list of steps such as `[3, 7]`, `every(K)`,
            `never()`, `when(...)`, or any function of (step, state) that returns one bool. Only
            "steps" takes every schedule that reads the parameters; the other engines require
            `when(..., check_every=C)`.
        num_steps: Steps in all, below 2^31.
        engine: "steps", "auto", or one of those above.
        batch_size: Examples of a step; None for all. See `Step`.
        augment: augment(key, x) -> x changes the inputs of a step.
        key: PRNG key for the order of the examples, for a keyed f, and for augment.
        target_loss: End the run at the first linearisation at which the loss of the network, with
            the regularizer, is at most this.
        mesh: Devices that share the examples of a step. See `Step`.
        watch: What to record, on which sets, and at which steps.
        checkpoint: A file from which the same call resumes after a run was killed, or a folder of
            such files, written every 15 seconds and at the end. With a larger num_steps the run in
            a file goes on (in a folder it is another run); its history begins with the steps that
            are recorded in the file.
        callback: callback(state, row) is called whenever metrics are recorded, with the
            `TrainState` and the metrics of this step, a dict {"step": 10, ...} of numbers and
            arrays. True ends the run and returns its state and history so far; False or None lets
            it go on. If the run has a checkpoint, the same call again returns the run as it ended.
            A call without a callback or with a larger num_steps resumes it. A run that was killed
            and resumes calls the callback for what is recorded from then on.
        progress: Whether to show a bar; by default on a terminal.
        tolerance: Relative error of a step of a flow, or relative gradient at a minimum. The other
            engines do not use it.
        memory_limit: Bytes for kernels and kept activations; by default 2 GiB on a CPU, 60 % of a
            GPU's memory. Larger products are computed for a few examples at a time.

    Returns:
        (state, history): The final `TrainState`, and a dict of arrays (T,). "step" holds the steps
            that are recorded, "updates" the re-linearisations by then. The rest is what `watch`
            names, evaluated before re-linearising at multiples of K. Engines other than "steps" add
            "engine"; "evaluations", the products with J J^T so far; "stability", step_size times
            the largest curvature at the proxy's outputs (NaN if unknown); and "seconds".

    Raises:
        ValueError: Before any compute, if an argument does not fit. The message names the argument
            and the remedy.
        CheckpointError: If the checkpoint is damaged, of another run or version of iterlin, JAX,
            optax or Python, beyond num_steps, or cannot be written. The message names what differs.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> watch = il.Watch({"train": (x, y)}, at=[0, 10])
    >>> settings = {"schedule": 10, "num_steps": 100, "watch": watch}
    >>> state, history = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(history["step"], history["updates"], history["train_loss"].round(3))
    [  0  10 100] [0 0 9] [0.25  0.001 0.   ]
    >>> good = lambda state, row: row["train_loss"] < 0.01
    >>> state, history = il.train(algorithm, jnp.zeros(2), (x, y), **settings, callback=good)
    >>> print(state.step, history["step"])
    10 [ 0 10]
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=1e-4)
    >>> settings = {"schedule": 10**5, "num_steps": 10**6, "engine": "flow"}
    >>> state, history = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(state.updates, f(state.params, x).round(3))
    9 [ 0.5 -0.5]
    """
    check_one_of("engine", engine, ENGINE_NAMES)
    check_reports(callback, progress)
    step = Step(algorithm, schedule, batch_size, augment, target_loss, mesh)
    run = {"num_steps": num_steps, "key": key, "watch": watch}
    run |= {"checkpoint": checkpoint, "callback": callback, "progress": progress}
    if engine == "steps":
        return train_by_steps(step, params, data, **run)[:2]
    settings = {"engine": engine, "tolerance": tolerance, "memory_limit": memory_limit}
    return train_by_engine(step, params, data, **settings, **run)


@on_any_device
def train_sweep(
    algorithm: Algorithm,
    init: Callable[[Array], PyTree],
    data: PyTree | Callable[[Array], PyTree],
    *,
    periods: Any,
    keys: Array,
    num_steps: int,
    schedule: Callable[[Array], Any] = every,
    batch_size: int | None = None,
    augment: Callable[[Array, PyTree], PyTree] | None = None,
    target_loss: float | None = None,
    mesh: Mesh | None = None,
    watch: Watch = UPDATES,
    checkpoint: str | Path | None = None,
    callback: Callback | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """Train by steps for every period and every seed, in one compiled program.

    Args:
        algorithm: As for `train`.
        init: init(key) -> the initial parameters of a seed, the same for every period.
        data: (x, y) as for `train`, or a function data(key) -> (x, y) that draws the examples of a
            seed.
        periods: K periods, positive integers or infinity.
        keys: S PRNG keys, one for each seed.
        num_steps: Steps of each run, below 2^31.
        schedule: schedule(period) -> the schedule of a run.
        batch_size, augment, target_loss, mesh, watch, checkpoint, progress: As for `train`.
        callback: As for `train`. Its state and its row are of all runs, as those returned, and True
            ends them all.

    Returns:
        (states, history): The leaves of the states lead with (K, S), except `step`, which the runs
            share. The arrays of the history are (K, S, T), except "step", which is (T,).

    Raises:
        ValueError: Before any compute, if an argument does not fit. The message names the argument
            and the remedy.
        CheckpointError: As for `train`.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> keys = jax.random.split(jax.random.key(0), 5)
    >>> init = lambda key: 0.1 * jax.random.normal(key, (2,))
    >>> settings = {"periods": [1, 10, jnp.inf], "keys": keys, "num_steps": 100}
    >>> states, history = il.train_sweep(algorithm, init, (x, y), **settings)
    >>> print(states.params.shape, history["updates"][:, 0, -1])
    (3, 5, 2) [99  9  0]
    """
    remedy = "; for a schedule of its own in every run: lambda period: ..."
    check_signature("schedule", schedule, ("period",), remedy)
    periods = periods_array(periods)
    any_step = Step(algorithm, schedule(periods[0]), batch_size, augment, target_loss, mesh)
    check_call("train_sweep", any_step, (data, keys), watch, checkpoint)
    check_reports(callback, progress)
    if not callable(init):
        raise ValueError(f"init must be a function of a key, got {describe(init)}")
    check_random_keys("keys", keys)
    draws_data = callable(data)
    example = "jax.random.normal(key, (10, 2))"
    with explain_tracer_errors("data", "key", example):
        datasets: Any = jax.vmap(data)(keys) if draws_data else data
    data_axis = 0 if draws_data else None
    with explain_tracer_errors("init", "key", example):
        fixed = jax.vmap(lambda key: partition(init(key), algorithm.trainable)[1])(keys)
    looks = _check_sweep(any_step, init, datasets, data_axis, keys, num_steps, watch)
    datasets, sets = to_auto_axes((tuple(datasets), dict(watch.sets)))
    if data_axis is None:
        any_step = with_data_mesh(any_step, datasets)
    advance, observe = _sweep_programs(any_step, schedule, watch, data_axis, periods)
    seeds = jax.vmap(partial(any_step.draw, init), (data_axis, 0), RUN_AXES)(datasets, keys)
    states = _for_each_period(seeds, periods)
    advance.prepare(states, datasets, to_array(1, jnp.int32), fixed)
    settings = scalar_fields(algorithm=algorithm, rule=any_step.schedule.solved, run=any_step)
    over_periods = partial(
        jax.tree.map, lambda a: jnp.broadcast_to(a, (len(periods), *a.shape)), fixed
    )
    states, history, _ = run_steps(
        advance,
        observe,
        (states, datasets, fixed),
        sets,
        looks,
        checkpoint=checkpoint,
        callback=None if callback is None else with_fixed(callback, over_periods()),
        progress=progress,
        settings=settings | {"the periods": periods.tolist()},
    )
    return combine_state(states, over_periods()), history


@jax.jit
def _for_each_period(seeds: TrainState, periods: Array) -> TrainState:
    """Return the states of the runs of all periods, which begin alike."""
    return jax.vmap(lambda _: seeds, out_axes=RUN_AXES)(periods)


def _check_sweep(step: Step, init, datasets, data_axis, keys, num_steps, watch) -> np.ndarray:
    """Check the data of all seeds and the functions of a sweep; return the steps to record."""
    example = datasets if data_axis is None else jax.tree.map(itemgetter(0), datasets)
    looks = check_run(step, example, num_steps, watch.at)
    params, drawn = init(keys[0]), keys[:1] if step.algorithm.keyed else ()
    outputs = check_functions(step, params, keys[0], example, watch)
    for number in range(1, 1 if data_axis is None else len(keys)):
        x, y = jax.tree.map(itemgetter(number), datasets)
        check_labels(step.algorithm.loss, outputs, y)
        check_finite_examples(lambda p, x: step.algorithm.f(p, x, *drawn), params, x)
    return looks


def _sweep_programs(any_step: Step, schedule, watch: Watch, data_axis, periods):
    """Return `advance` and `observe` of `run_steps` for states that lead with (periods, seeds)."""

    def over_both(function, *axes, out: Any = RUN_AXES):
        """Map over seeds, then over periods. An element of axes is (seed axis, period axis)."""
        seeds = jax.vmap(function, (RUN_AXES, *(axis[0] for axis in axes)), out)
        return jax.vmap(seeds, (RUN_AXES, *(axis[1] for axis in axes)), out)

    def advance(states, datasets, count, fixed):
        def of_one(state, run_data, fixed, period):
            with explain_tracer_errors("schedule", "period", "jnp.minimum(period, 100)"):
                step = replace(any_step, schedule=schedule(period))
            return step.advance(state, run_data, count, fixed)

        axes = (data_axis, None), (0, None), (None, 0)
        return over_both(of_one, *axes)(states, datasets, fixed, periods)

    observe = over_both(observer(any_step.algorithm, watch), (None, None), (0, None), out=0)
    own = any_step.algorithm.programs
    return SharedJit(advance, donate=True, own=own), SharedJit(observe, own=own)
