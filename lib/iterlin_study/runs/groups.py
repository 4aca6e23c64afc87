"""Train runs in groups: one compiled loop and one evaluation for all runs of a group.

One compiled program trains runs that differ only in numbers (period, seed, step size, penalty,
examples). The leaves of their state have a leading axis of runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from iterlin.exact.trainer import SPENT
from iterlin.linearise import costs
from iterlin.linearise.devices import to_array
from iterlin.linearise.digests import program_digest
from iterlin.training import checkpoints
from iterlin.training.algorithm import Algorithm
from iterlin.training.identity import RECORDED, STEP, scalar_fields, start_settings
from iterlin.training.loop import History, OutOfTime, StepTrainer
from iterlin.training.loop import run as run_to_end
from iterlin.training.schedules import NEVER, Schedule, Solved, as_schedule, every, when_solved
from iterlin.training.state import RUN_AXES, TrainState
from iterlin.training.step import Step
from iterlin.training.watching import Sets, Watch, check_unique_names, observer
from jaxtyping import Array, PyTree

from iterlin_study.records import environment
from iterlin_study.runs.diagnostics import kernel_diagnostics

OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam, "adamw": optax.adamw}
# Examples of a set that are evaluated at a time.
SLICE = 500
# Names in a grid's data set that a metric must not use.
OF_GRIDS = ("step", "diverged_at", *SPENT)


class Run(NamedTuple):
    """One run of Algorithm 3.

    Attributes:
        seed: Seed of the initial parameters, the order of the examples and the augmentation.
        period: Period K in steps; may be infinity. With until_solved, the longest period.
        step_size: Step size eta of the optimizer.
        eval_steps: Increasing steps at which the run is evaluated; the last one ends it.
        penalty: lambda of lambda ||theta - theta_s||^2.
        optimizer: Name of an optimizer in `OPTIMIZERS`.
        until_solved: Whether to re-linearise as soon as a linear problem is solved (`when_solved`).
        examples: Size of the training set; None for all examples.
        momentum: Momentum of heavy-ball SGD, in [0, 1). A step then takes the time
            step_size / (1 - momentum).
        halve_after: Increasing numbers of linear problems (at K = 1: of steps) after which the step
            size is halved; 1.5 is in the middle of the second. A period above 1 is doubled there,
            so that it lasts the same time.
        schedule: When to re-linearise, instead of a period, which must then be infinite.
        decay: Weight decay of adamw. A step multiplies the parameters by 1 - step_size * decay.
    """

    seed: int
    period: float
    step_size: float
    eval_steps: tuple[int, ...]
    penalty: float = 0.0
    optimizer: str = "sgd"
    until_solved: bool = False
    examples: int | None = None
    momentum: float = 0.0
    halve_after: tuple[float, ...] = ()
    schedule: Any = None
    decay: float = 0.0


@dataclass(frozen=True)
class Problem:
    """The network, the data and the settings that the runs of a grid share.

    Args:
        algorithm: As for `train`. Each run replaces its optimizer and penalty.
        init: init(key) -> params.
        train: Training inputs and targets (x, y).
        watch: Metrics to record of network and proxy.
        subset: subset(size, seed) -> indices of the examples of a run with fewer examples, (size,).
        diagnose: Number of training examples for `diagnostics.kernel_diagnostics`; 0 for no
            diagnostics.
        observe: observe(state) -> {name: array} to record in addition.
        batch_size, augment, target_loss: As for `train`.
        solved: Rule by which a linear problem counts as solved, for runs with until_solved.
    """

    algorithm: Algorithm
    init: Callable[[Array], PyTree]
    train: tuple[Array, Array]
    watch: Watch
    subset: Callable[[int, int], np.ndarray] | None = None
    diagnose: int = 0
    observe: Callable[[TrainState], dict[str, Array]] | None = None
    batch_size: int | None = None
    augment: Callable[[Array, PyTree], PyTree] | None = None
    target_loss: float | None = None
    solved: Solved | None = None

    def but(self, **settings) -> "Problem":
        """Return a copy with some fields of the problem or of its algorithm replaced."""
        own = {field.name for field in fields(self)}
        of_algorithm = {name: settings.pop(name) for name in settings.keys() - own}
        return replace(self, algorithm=replace(self.algorithm, **of_algorithm), **settings)


class Result(NamedTuple):
    """The history of a run, and the step at which it diverged; -1 if it did not.

    The history has "step" (T,) and the recorded values (..., T).
    """

    history: History
    diverged_at: int


def key_of(seed: int) -> Array:
    """Return the PRNG key of a run (`Step.draw`) from its seed."""
    return jax.random.fold_in(jax.random.key(0), seed)


def _schedule(problem: Problem, run: Run, period) -> Schedule:
    """Return the schedule of a run, with its period or a traced one."""
    if run.schedule is not None:
        return as_schedule(run.schedule)
    if is_plain(run):
        return every(1)
    if run.until_solved:
        return when_solved(problem.solved, max_period=period)
    if not run.halve_after:
        return every(period)

    def due(step, state):
        halvings, begun = _stage(run, step, period)
        return (step - begun) % (period * 2**halvings) == 0

    return Schedule(due)


def _stage(run: Run, step, period):
    """Return how often the step size has been halved, and a step from which updates are counted.

    It is the step at which the linear problem of the latest halving would have begun, if its step
    size had been today's from the start. It may be negative.
    """
    places = np.asarray(run.halve_after, float)
    doublings = np.zeros(len(places)) if is_plain(run) else np.arange(len(places))
    halved = _steps(np.cumsum(np.diff(places, prepend=0) * 2**doublings), period)
    before = _steps(places % 1 * 2 ** (doublings + 1), period)
    halvings = jnp.sum(step >= halved)
    return halvings, jnp.append(0, halved - before)[halvings]


def _steps(periods: np.ndarray, period) -> Array:
    """Return the steps in a number of periods; whole periods are exact, parts up to 2^24 steps."""
    whole, part = np.divmod(periods, 1)
    return jnp.asarray(whole, jnp.int32) * period + jnp.rint(part * period).astype(jnp.int32)


def steps_at(
    places: Sequence[float] | np.ndarray, period: int, halve_after: Sequence[float] = ()
) -> np.ndarray:
    """Return the steps (n,) at which a run has come to some places, rounded down.

    places: counted in linear problems. period: the first period, in steps. halve_after: as for
    `Run`.

    >>> steps_at([1, 2, 2.5, 3, 4, 5], 100, halve_after=(2, 4)).tolist()
    [100, 200, 300, 400, 600, 1000]
    """
    stages = np.asarray([0, *halve_after], float)
    done = np.asarray(places, float)[:, None] - stages
    done = np.clip(done, 0, np.diff(stages, append=np.inf))
    steps = period * (done @ 2 ** np.arange(len(stages)))
    return np.floor(steps + 1e-6).astype(int)  # a place such as 2.3 is not exact


def step_of(problem: Problem, run: Run, values: Mapping | None = None) -> Step:
    """Return one training step of a run.

    values: traced "step_size", "penalty" and "period", if several runs share a program; by default
    the run's.
    """
    values = run._asdict() if values is None else values
    step_size, period = values["step_size"], values["period"]

    def halved(step):
        return step_size * 0.5 ** _stage(run, step, period)[0]

    more = {"momentum": run.momentum} if run.momentum else {}
    if run.optimizer == "adamw":
        more = {"weight_decay": run.decay}
    optimizer = OPTIMIZERS[run.optimizer](halved if run.halve_after else step_size, **more)
    penalty = values["penalty"] if run.penalty > 0 else 0.0
    return Step(
        replace(problem.algorithm, optimizer=optimizer, penalty=penalty),
        _schedule(problem, run, period),
        batch_size=problem.batch_size,
        augment=problem.augment,
        target_loss=problem.target_loss,
    )


def is_plain(run: Run) -> bool:
    """Return whether the run re-linearises at every step."""
    return run.period == 1 and not run.until_solved


def kind_of(run: Run) -> Run:
    """Return the settings that runs with one compiled program share; numbers are 0 or 1."""
    plain, penalised = int(is_plain(run)), float(run.penalty > 0)
    return run._replace(seed=0, period=plain, step_size=0.0, penalty=penalised, eval_steps=())


def trainer(problem: Problem, example: Run) -> Callable[..., tuple[list[Result], float]]:
    """Return a function that trains groups of runs which differ from the example in numbers only.

    It is run(runs, *, label, folder, data_digest) -> the results and the seconds that training
    took. It compiles once for each size of a group. With a folder, the group has a checkpoint
    there. It raises OutOfTime for a group that is not to be trained here and now: the deadline has
    passed and there is no checkpoint, or, with a folder, it belongs to another share
    (`environment`).
    """
    digests = {}
    compiled = cache(partial(programs, problem, example))

    def run(runs: Sequence[Run], *, label: str, folder: Path | None, data_digest: str | None):
        size = len(runs)
        advance, observe = compiled(size)
        state, values, examples = inputs(problem, runs)
        train, sets = problem.train, dict(problem.watch.sets)
        eval_steps = np.asarray(runs[0].eval_steps)
        checkpoint = identity = None

        def take(state, count):
            return advance(state, values, examples, train, count)

        def look(state):
            return observe(state, values, examples, train, sets)

        if folder is not None:
            one = to_array(1, jnp.int32)
            if size not in digests:
                steps = advance.trace(state, values, examples, train, one).jaxpr
                looks = observe.trace(state, values, examples, train, sets).jaxpr
                digests[size] = {STEP: program_digest(steps), RECORDED: program_digest(looks)}
            identity = start_settings(state, (), (data_digest, values, examples), {}, eval_steps)
            objects = {"problem": problem, "algorithm": problem.algorithm, "rule": problem.solved}
            identity |= scalar_fields(**objects) | digests[size]
            identity["the kind"] = str(kind_of(example)._replace(schedule=None))
            checkpoint = checkpoints.path_in_folder(folder, identity)
            if environment.is_left_to_others():
                raise OutOfTime(label)
        if environment.out_of_time() and (checkpoint is None or not checkpoint.exists()):
            raise OutOfTime(label)
        running = StepTrainer(state, take, look)
        history, seconds = run_to_end(
            running,
            eval_steps,
            progress="lines" if environment.reporting() else None,
            label=label,
            checkpoint=checkpoint,
            identity=identity,
            out_of_time=environment.out_of_time,
        )
        diverged_at = np.asarray(running.state.diverged_at)
        if size == 1:  # without an axis of runs
            return [Result(history, int(diverged_at))], seconds
        results = []
        for place in range(size):
            own = {name: v if name == "step" else v[place] for name, v in history.items()}
            results.append(Result(own, int(diverged_at[place])))
        return results, seconds

    return run


def unknown_history(problem: Problem, run: Run) -> History:
    """Return the history of a run that is not trained: NaN."""
    observe, sets = programs(problem, run, 1)[1], dict(problem.watch.sets)
    seen = jax.eval_shape(observe, *inputs(problem, [run]), problem.train, sets)
    count = len(run.eval_steps)
    unknown = {name: np.full((*v.shape, count), np.nan) for name, v in seen.items()}
    return {"step": np.asarray(run.eval_steps), **unknown}


def programs(problem: Problem, example: Run, size: int):
    """Return the compiled functions that train and evaluate a group of `size` runs.

    They are advance(state, values, examples, train, count) -> state after `count` steps, which
    donates the buffers of its first argument; and observe(state, values, examples, train, sets) ->
    {name: array}. `inputs` gives their first three arguments.
    """

    def advance(state, values, examples, train, count):
        return step_of(problem, example, values).advance(state, (*train, examples), count)

    observe = _observe(problem, example)
    if size > 1:  # A single run needs no vmap.
        axes = (RUN_AXES, 0, 0, None, None)
        advance, observe = jax.vmap(advance, axes, RUN_AXES), jax.vmap(observe, axes)
    return jax.jit(advance, donate_argnums=0), jax.jit(observe)


def step_costs(problem: Problem, example: Run) -> tuple[int, int]:
    """Return what a step of one run takes: bytes and floating point operations.

    The bytes are an upper bound, without reuse of buffers; the operations are without the test of
    `solved`.
    """

    def traced(run):
        def step(state, values, examples, train):
            return step_of(problem, run, values)(state, (*train, examples))

        return jax.make_jaxpr(step)(*inputs(problem, [run]), problem.train).jaxpr

    program = traced(example)
    plain = traced(example._replace(until_solved=False)) if example.until_solved else program
    return costs.intermediate_bytes(program), costs.count_flops(plain)


def _observe(problem, example):
    def observe(state, values, examples, train, sets):
        algorithm = step_of(problem, example, values).algorithm
        if example.examples is not None:
            sets = with_own_examples(sets, train, examples)
        watch = problem.watch._replace(batch_size=SLICE)
        seen, followed, more = observer(algorithm, watch, OF_GRIDS)(state, sets), {}, {}
        if problem.diagnose:
            sample = tuple(part[: problem.diagnose] for part in train)
            given = algorithm.network(state), state.params, state.anchor, sample, algorithm.loss
            followed = kernel_diagnostics(*given)
        if problem.observe is not None:
            more = problem.observe(state)
        check_unique_names(OF_GRIDS, seen, followed, more)
        return seen | followed | more

    return observe


def with_own_examples(sets: Sets, train: tuple[Array, Array], chosen: Array) -> Sets:
    """Return the watched sets, with the run's own first training examples as "train".

    chosen: indices of the run's training examples.
    """
    if "train" not in sets:
        return sets
    first = chosen[: len(sets["train"][1])]
    return {**sets, "train": tuple(jnp.take(leaf, first, 0) for leaf in train)}


def inputs(problem: Problem, runs: Sequence[Run]):
    """Return the arguments with which `programs` starts a group of runs.

    These are the first state, the numbers in which the runs differ ("period", "step_size",
    "penalty"), and the indices of their training examples. With several runs, the leaves have a
    leading axis of runs.
    """
    keys = [key_of(run.seed) for run in runs]
    values = {
        "period": np.asarray([int(min(run.period, NEVER)) for run in runs], np.int32),
        "step_size": np.asarray([run.step_size for run in runs]),
        "penalty": np.asarray([run.penalty for run in runs]),
    }
    size = runs[0].examples
    if size is None:
        examples = np.tile(np.arange(len(problem.train[1]), dtype=np.int32), (len(runs), 1))
    else:
        chosen = [problem.subset(size, run.seed) for run in runs]
        examples = np.stack(chosen).astype(np.int32)

    def draw(key, one_values, one_examples):
        step = step_of(problem, runs[0], one_values)
        return step.draw(problem.init, (*problem.train, one_examples), key)

    if len(runs) == 1:
        values, examples = jax.tree.map(lambda leaf: to_array(leaf[0]), (values, examples))
        return draw(keys[0], values, examples), values, examples
    values, examples = jax.tree.map(to_array, (values, examples))
    state = jax.vmap(draw, out_axes=RUN_AXES)(jnp.stack(keys), values, examples)
    return state, values, examples
