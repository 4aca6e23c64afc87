"""Iterative linearisation of any period for the price of a few passes (Algorithm 3, full batch).

Between two linearisations the problem is convex and its Jacobian fixed, so that what K steps do can
be had without taking them (`engines`). `integrate` takes the algorithms and schedules that
`training.train` takes and returns what it returns.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin import training
from iterlin.algorithm import Algorithm
from iterlin.checks import cached_outputs, check_call, check_run, warn_of_unused_rule
from iterlin.exact.calendar import Answers, ends_when_solved
from iterlin.exact.checks import check_engine, check_outputs, needs_steps, unfit_types
from iterlin.exact.choice import ENGINES, choose, default_memory
from iterlin.exact.run import SPENT, ExactRun
from iterlin.exact.task import Task
from iterlin.parameters import bound, split
from iterlin.runtime.chunks import History, never
from iterlin.runtime.devices import on_automatic_axes
from iterlin.runtime.identity import plain_fields
from iterlin.runtime.precision import full_precision
from iterlin.schedules import NEVER, as_schedule, check_answer, looks_at, of_whole
from iterlin.state import TrainState, whole
from iterlin.validation import one_of, open_unit, positive_integer
from iterlin.watching import UPDATES, Watch, check_sets, check_watch, observer

# Settings of an algorithm that only steps, one by one, can follow.
STEPWISE = ("batch_size", "augment", "normalization")


@on_automatic_axes
def integrate(
    algorithm: Algorithm,
    params: PyTree,
    data,
    *,
    schedule: Any,
    num_steps: int,
    engine: str = "auto",
    tolerance: float = 1e-3,
    watch: Watch = UPDATES,
    memory_limit: int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """`training.train` by plain gradient descent on the full batch, without its steps.

    The algorithm's optimizer is a step size; its f must be smooth where it is expanded and its
    loss(outputs, y) convex in the outputs. Engines (`engines` says what each does): "closed_form"
    and "function_space" give the very steps, to rounding, as do "steps" (`train` itself) and
    "kept_steps" (its activations kept for the whole period); "function_space_flow" and "flow" the
    gradient flow for a time step_size * K, to `tolerance` a step, relative to outputs of order 1;
    "minimum" and "function_space_minimum" solve every linear problem, of positive penalty, to a
    relative gradient of `tolerance`, or to where rounding leaves nothing to gain
    (`newton.minimize`; a run that finds no way down where there is one has diverged): a period of
    any length is one solve. "auto" takes the steps for periods shorter than
    1,000 steps; for longer ones the closed form of a squared error with at most 2,000 outputs N O
    whose J fits into memory_limit, else a flow where step_size lambda_max < 0.1 at the first
    parameters (with the kernel if it fits), else the steps. It prints what it took and why.

    Inputs, targets and outputs are as for `train`, and so are parameters that are not `trainable`.
    A schedule `schedules.when(..., check_every=C)` is asked C, 2 C, ... steps after a
    linearisation, where the parameters are computed for it: adaptive, at any period; "auto"
    counts C steps as its period. One that looks at the parameters at every
    step, or a regularizer, is for engine "steps", which "auto" then takes.

    The algorithm's rule `solved` with `schedules.when_solved(K)` ends a linearisation early: a flow
    looks at every step of its own. Kernels and kept activations stay within memory_limit bytes
    (2 GiB on a CPU, 60 % of a GPU's), else products go through the examples a few at a time.

    The history is that of `train`, and "evaluations", products with J J^T so far, "stability",
    step_size lambda_max of the loss at the proxy's outputs (NaN where it is not followed),
    "seconds", by the clock (engine "steps": at the end alone, and of this call), and the "engine".
    With a checkpoint, a file, or a folder in which the run finds its own, a run that was ended goes
    on from there, as in `train`.

    Raises ValueError before any compute: as `train`; for an algorithm with another optimizer,
    minibatches, augmentation, normalisation or a keyed f; the state of a run in the place of
    parameters; a name of `watch` that is one of those above; an unknown engine; closed_form and a
    loss that is not half a squared error; minimum without penalty, which for cross-entropy has no
    minimum to find, or with a schedule that looks at the parameters; a memory_limit that is not a
    positive integer, or a kernel beyond it; a rule `solved` that counts labels where there are
    none; and for an engine other than "steps" or "auto", a schedule that looks at the parameters
    without check_every, a regularizer, less than single precision, or parameters and outputs of
    different types.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=1e-4)
    >>> settings = {"schedule": 10**5, "num_steps": 10**6, "progress": False}
    >>> state, history = il.integrate(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(state.updates, f(state.params, x).round(3))
    9 [ 0.5 -0.5]
    """
    run = integrator(
        algorithm,
        data,
        engine=engine,
        tolerance=tolerance,
        watch=watch,
        memory_limit=memory_limit,
    )
    return run(
        params,
        schedule=schedule,
        num_steps=num_steps,
        checkpoint=checkpoint,
        progress=progress,
    )


def integrator(
    algorithm: Algorithm,
    data,
    *,
    engine: str = "auto",
    tolerance: float = 1e-3,
    watch: Watch = UPDATES,
    memory_limit: int | None = None,
) -> Callable[..., tuple[TrainState, History]]:
    """run(params, *, schedule, num_steps, at=None, checkpoint=None, progress=None, out_of_time), as
    `integrate` does it: compiled once for runs that differ in these alone. `at`: the steps to look
    at, those of `watch` if None. out_of_time: as for `chunks.run_in_chunks` (not of engine
    "steps").
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
                "integrate starts from parameters, not from the state of a run: give its "
                "state.params, or a checkpoint from which to go on"
            )
        check_call("integrate", algorithm, (params, data), watch, checkpoint)
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
                print(f"integrate: {name} ({why})", file=sys.stderr)
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
            "exact engines have no key for a keyed f: give f without its noise, or take `train`"
        )
    if callable(getattr(algorithm.optimizer, "update", None)):
        raise ValueError(
            "exact engines are for gradient descent: give its step size as optimizer; for periods "
            "of a fixed time (`timed.for_time`), with the schedule every(time / step size)"
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
    state, history = training.train(
        algorithm, params, data, **settings, checkpoint=checkpoint, progress=progress
    )
    unknown = np.full(len(history["step"]), np.nan)
    seconds = np.append(unknown[1:], time.monotonic() - begun)
    spent = {"evaluations": history["step"], "stability": unknown, "seconds": seconds}
    return state, history | spent
