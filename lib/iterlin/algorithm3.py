"""Algorithm 3, iterative linearisation: one run, or a sweep over periods and seeds."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from iterlin.exact.choice import ENGINES
from iterlin.exact.integrator import train_by_engine
from iterlin.linearise.devices import to_auto_axes
from iterlin.linearise.parameters import partition
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import check_one_of, check_random_keys, check_signature, describe
from iterlin.training.algorithm import Algorithm
from iterlin.training.checks import check_call, check_functions, check_run
from iterlin.training.identity import plain_fields
from iterlin.training.loop import History
from iterlin.training.losses import check_labels
from iterlin.training.schedules import every, of_whole, periods_array
from iterlin.training.state import RUN_AXES, TrainState, whole
from iterlin.training.step import Step
from iterlin.training.steps import on_mesh_of, run_steps, train_by_steps
from iterlin.training.watching import UPDATES, Watch, observer


@full_precision()
def train(
    algorithm: Algorithm,
    params: PyTree | TrainState,
    data,
    *,
    schedule: Any,
    num_steps: int,
    engine: str = "steps",
    batch_size: int | None = None,
    augment: Callable[[Array, PyTree], PyTree] | None = None,
    key: Array | None = None,
    target_loss: float | None = None,
    mesh: Mesh | None = None,
    watch: Watch = UPDATES,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    tolerance: float = 1e-3,
    memory_limit: int | None = None,
) -> tuple[TrainState, History]:
    """Train a network by iterative linearisation (Algorithm 3); return the final state and history.

    Engine "steps" takes every step. The other engines (`iterlin.exact.engines`) solve the convex
    problem between two linearisations, at a price that hardly depends on the period. They need
    gradient descent on the full batch with a fixed step size, and a loss that is convex in the
    outputs. "closed_form" (squared error) and "function_space" return what the steps return, to
    rounding; "flow" and "function_space_flow" follow gradient flow for a time step_size * K;
    "minimum" and "function_space_minimum" solve each problem, which needs a penalty; "kept_steps"
    takes the steps with activations that are kept for the whole period. "auto" chooses, and prints
    what and why: "steps" for periods below 1,000, then "closed_form" for a squared error with at
    most 2,000 outputs whose Jacobian fits into memory_limit, then a flow where step_size times the
    largest curvature is below 0.1 at the first parameters, else "steps".

    After training the network predicts by ``f(state.params, x)``, its proxy by
    ``linearize(f, state.anchor)(state.params, x)``. A run that becomes non-finite ends as diverged,
    without an error. Products are computed in full precision (`linearise.precision`). A second call
    with the same algorithm, settings and shapes compiles nothing.

    Args:
        algorithm: What is minimised, and by which optimiser.
        params: Initial parameters, or the `TrainState` of an earlier run by steps, which then goes
            on, to the same bits, up to num_steps in all.
        data: (x, y), arrays or pytrees that lead with the N examples; or, for "steps", an iterable
            of batches (x, y) of one shape, each the whole of a step. On the devices of a mesh, each
            device takes its part of a batch, if f is in slices (`linearise.slices.in_slices`) or
            there is a `mesh`; any other f is left to the compiler.
        schedule: When to re-linearise: a period K, `every(K)`, `never()`, `when(...)`, or any
            function of (step, state) that returns one bool. Engines but "steps" follow one that
            looks at the parameters only if it is `when(..., check_every=C)`.
        num_steps: Steps in all, below 2^31.
        engine: "steps", "auto", or one of those above.
        batch_size: Examples of a step; None for all. See `Step`.
        augment: augment(key, x) -> x changes the inputs of a step.
        key: Orders the examples of minibatches, and draws what a keyed f or an augmentation draws.
        target_loss: Ends the run at the first linearisation at which the loss of the network is at
            most this.
        mesh: Devices that share the examples of a step. See `Step`.
        watch: What to record, of which sets, and at which steps.
        checkpoint: A file from which a run that was killed goes on when it is called again, or a
            folder of such files. The file of another run is refused with CheckpointError, which
            names what differs.
        progress: Whether to show a bar; by default on a terminal.
        tolerance: Relative error of a step of a flow, or relative gradient at a minimum; of no
            effect on other engines.
        memory_limit: Bytes for kernels and kept activations; by default 2 GiB on a CPU, 60 % of a
            GPU's memory. Beyond it products go through the examples a few at a time.

    Returns:
        (state, history): The final `TrainState`, and a dict of arrays (T,). "step" holds the steps
            at which it was recorded, "updates" the feature updates by then; the rest is what
            `watch` names. At multiples of K it is evaluated before re-linearising. Engines but
            "steps" add "engine"; "evaluations", products with J J^T so far; "stability", step_size
            times the largest curvature at the proxy's outputs (NaN if unknown); and "seconds".

    Raises:
        ValueError: Before any compute, for an argument that does not fit: it names the argument and
            what would do.
        CheckpointError: If the checkpoint is damaged, of another run, or cannot be written.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> watch = il.Watch({"train": (x, y)}, at=[0, 10])
    >>> settings = {"schedule": 10, "num_steps": 100, "watch": watch}
    >>> state, history = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(history["step"], history["updates"], history["train_loss"].round(3))
    [  0  10 100] [0 0 9] [0.25  0.001 0.   ]
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=1e-4)
    >>> settings = {"schedule": 10**5, "num_steps": 10**6, "engine": "flow"}
    >>> state, history = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(state.updates, f(state.params, x).round(3))
    9 [ 0.5 -0.5]
    """
    check_one_of("engine", engine, ENGINES)
    step = Step(algorithm, schedule, batch_size, augment, target_loss, mesh)
    run = {"num_steps": num_steps, "key": key, "watch": watch}
    run |= {"checkpoint": checkpoint, "progress": progress}
    if engine == "steps":
        return train_by_steps(step, params, data, **run)
    settings = {"engine": engine, "tolerance": tolerance, "memory_limit": memory_limit}
    return train_by_engine(step, params, data, **settings, **run)


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
    batch_size: int | None = None,
    augment: Callable[[Array, PyTree], PyTree] | None = None,
    target_loss: float | None = None,
    mesh: Mesh | None = None,
    watch: Watch = UPDATES,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """Train as `train` does for every period and every key, as one program.

    Args:
        algorithm: As for `train`.
        init: init(key) -> the initial parameters of a seed, the same for every period.
        data: As for `train`, or a function data(key) -> (x, y) that draws the examples of a seed.
        periods: K of them, infinity allowed.
        keys: S PRNG keys.
        num_steps: As for `train`.
        schedule: schedule(period) -> the schedule of a run.
        batch_size: As for `train`, and so are all further arguments.

    Returns:
        (states, history): Leaves of the states but `step` lead with (K, S); arrays of the history
            but "step" are (K, S, T).

    Raises:
        ValueError: As `train`.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> keys = jax.random.split(jax.random.key(0), 5)
    >>> init = lambda key: 0.1 * jax.random.normal(key, (2,))
    >>> settings = {"periods": [1, 10, jnp.inf], "keys": keys, "num_steps": 100}
    >>> states, history = il.train_sweep(algorithm, init, (x, y), **settings)
    >>> print(states.params.shape, history["updates"][:, 0, -1])
    (3, 5, 2) [99  9  0]
    """
    of_all = "; for a schedule of its own in every run: lambda period: ..."
    check_signature("schedule", schedule, ("period",), of_all)
    any_step = Step(algorithm, every(1), batch_size, augment, target_loss, mesh)
    check_call("train_sweep", any_step, (data, keys), watch, checkpoint)
    if not callable(init):
        raise ValueError(f"init must be a function of a key, got {describe(init)}")
    check_random_keys("keys", keys)
    datasets, data_axis = (jax.vmap(data)(keys), 0) if callable(data) else (data, None)
    example = jax.tree.map(lambda a: a[0], datasets) if callable(data) else data
    fixed = jax.vmap(lambda key: partition(init(key), algorithm.trainable)[1])(keys)
    looks = check_run(any_step, example, num_steps, keys, watch.at)
    drawn = jax.eval_shape(init, keys[0])
    outputs = check_functions(any_step, drawn, keys[0], example, watch)
    for number in range(1, len(keys) if callable(data) else 1):
        targets = jax.tree.map(itemgetter(number), datasets[1])
        check_labels(algorithm.loss, outputs, targets)
    datasets, sets = to_auto_axes((tuple(datasets), dict(watch.sets)))
    if data_axis is None:
        any_step = on_mesh_of(any_step, datasets)
    periods = periods_array(periods)

    def step_of(period) -> Step:
        return replace(any_step, schedule=schedule(period))

    def over_both(function, *axes, out=RUN_AXES):
        """Map over seeds (the first of the axes), then over periods."""
        seeds = jax.vmap(function, (RUN_AXES, *(axis[0] for axis in axes)), out)
        return jax.vmap(seeds, (RUN_AXES, *(axis[1] for axis in axes)), out)

    @partial(jax.jit, donate_argnums=0)
    def advance(states, datasets, count, fixed, periods):
        def of_one(state, run_data, fixed, period):
            return step_of(period).advance(state, run_data, count, fixed)

        axes = (data_axis, None), (0, None), (None, 0)
        return over_both(of_one, *axes)(states, datasets, fixed, periods)

    def observe(state, sets, fixed):
        return observer(algorithm, watch)(whole(state, fixed), sets)

    observe = jax.jit(over_both(observe, (None, None), (0, None), out=0))
    draw = partial(any_step.draw, init)
    seeds = jax.vmap(draw, (data_axis, 0), RUN_AXES)(datasets, keys)
    states = jax.vmap(lambda _: seeds, out_axes=RUN_AXES)(periods)

    def answer(state, fixed, period):
        return of_whole(step_of(period).schedule, fixed)(state.step, state)

    jax.eval_shape(over_both(answer, (0, None), (None, 0), out=0), states, fixed, periods)
    rule = step_of(periods[0]).schedule.solved
    settings = plain_fields(algorithm=algorithm, rule=rule, run=any_step)
    states, history = run_steps(
        advance,
        observe,
        (states, datasets, fixed),
        sets,
        looks,
        more=(periods,),
        checkpoint=checkpoint,
        progress=progress,
        settings=settings | {"the periods": periods.tolist()},
    )
    over_periods = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(periods), *a.shape)), fixed)
    return whole(states, over_periods), history
