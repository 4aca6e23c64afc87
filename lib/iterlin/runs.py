"""Grids of training runs: several at once where memory allows, kept on disk as they come.

A grid is a list of `Run`s of one `Problem`. Runs that differ only in numbers (period, seed, step
size, penalty, examples) share a program; how many of them go through it together is decided by an
estimate of the memory that one takes. Finished and half finished groups of runs lie in a folder
under the digest of all that they compute (`checkpoints.fingerprint`), so that the same call after
an interruption goes on, and a changed setting is another run.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jaxtyping import Array, PyTree

from iterlin import checkpoints, provenance
from iterlin.algorithm import Algorithm, Solved, TrainState
from iterlin.chunks import PROGRESS, OutOfTime, out_of_time, run_in_chunks
from iterlin.diagnostics import kernel_diagnostics
from iterlin.linearization import Network
from iterlin.losses import Loss
from iterlin.schedules import NEVER, every, when_solved
from iterlin.training import observer
from iterlin.validation import non_negative, one_of, positive, positive_integer

OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam}
# Bytes that the runs of one program may take together. On a CPU more than a few caches gains
# nothing; on a GPU it is a share of what there is.
CPU_MEMORY = 2**25
GPU_SHARE = 0.5
SLICE = 500
# The state's leaves lead with the run, all but the step, which the runs have in common.
STATE_AXES = TrainState(None, *[0] * (len(TrainState._fields) - 1))


class Run(NamedTuple):
    """One run of Algorithm 3.

    seed draws the initial parameters, the order of the examples and the augmentation. period may be
    infinity; until_solved makes it the longest that a linear problem is trained (`when_solved`).
    eval_steps: increasing, the last is the length of the run. examples: the size of its training
    set, all of it if None.
    """

    seed: int
    period: float
    step_size: float
    eval_steps: tuple[int, ...]
    penalty: float = 0.0
    optimizer: str = "sgd"
    until_solved: bool = False
    examples: int | None = None


@dataclass(frozen=True)
class Problem:
    """What the runs of a grid have in common.

    f(params, x) -> (N, O), init(key) -> params; loss is minimised over train = (x, y) and, for each
    set in evaluate = {"test": (x, y)}, each of metrics = {"loss": loss, ...} is recorded of the
    network and of its proxy. subset(size, seed) -> indices says which examples a run of fewer
    trains on. diagnose: size of the sample on which the kernel is followed
    (`diagnostics.kernel_diagnostics`), none at 0. observe(state) -> {name: array} adds to the
    history. The rest is as for `training.train`.
    """

    f: Network
    init: Callable[[Array], PyTree]
    train: tuple[Array, Array]
    loss: Loss
    evaluate: Mapping[str, tuple[Array, Array]]
    metrics: Mapping[str, Callable[[Array, Array], Array]]
    batch_size: int | None = None
    augment: Callable[[Array, Array], Array] | None = None
    reset_optimizer: bool = False
    solved: Solved | None = None
    normalization: Any = None
    subset: Callable[[int, int], np.ndarray] | None = None
    diagnose: int = 0
    observe: Callable[[TrainState], dict[str, Array]] | None = None


class Result(NamedTuple):
    """History of one run ("step" and what was observed, time last), and how it ended."""

    run: Run
    history: dict[str, np.ndarray]
    diverged_at: int


def store(tier: str) -> Path | None:
    """Where the runs of a tier are kept until they are recorded; quick runs are not."""
    return None if tier == "quick" else provenance.project_root() / "_build" / "runs"


def run_all(
    problem: Problem,
    runs: Sequence[Run],
    *,
    label: str = "",
    folder: Path | None = None,
    memory: int | None = None,
) -> tuple[list[Result | None], float]:
    """The results of the runs, None for those that the deadline left unfinished, and seconds.

    A run that diverges stops there and is reported with its step; the others go on. `memory` is
    what runs may take together, by default chosen for the device. Raises ValueError, naming the
    run, before any compute; CheckpointError if `folder` cannot be written.
    """
    for run in runs:
        _check(problem, run)
    memory = _memory() if memory is None else memory
    results: dict[int, Result] = {}
    seconds, digest = 0.0, None
    if folder is not None:
        data = (problem.train, problem.evaluate)
        digest = checkpoints.fingerprint([], jax.tree.map(np.asarray, data))
    programs: dict[tuple, _Program] = {}
    # Runs of one kind share a program; the seeds come one after the other, so that an
    # interrupted grid has whole seeds rather than whole periods.
    kinds = {}
    for index, run in enumerate(runs):
        kinds.setdefault(_kind(run), []).append(index)
    groups = []
    for kind, members in kinds.items():
        members = sorted(members, key=lambda index: runs[index].seed)
        program = programs.setdefault(kind.program, _Program(problem, runs[members[0]]))
        size = max(1, min(len(members), memory // max(1, program.memory)))
        size = -(-len(members) // -(-len(members) // size))
        each, steps = program.memory / 2**20, kind.eval_steps[-1]
        _say(
            f"{label}: {len(members)} runs of {steps} steps, {size} at a time "
            f"(up to {each:.0f} MiB each, {memory / 2**20:.0f} MiB in all)"
        )
        groups += [(kind, members[i : i + size]) for i in range(0, len(members), size)]
    groups.sort(key=lambda group: min(runs[index].seed for index in group[1]))
    for number, (kind, members) in enumerate(groups, start=1):
        chosen = [runs[index] for index in members]
        try:
            found, spent = programs[kind.program].run(
                chosen, label=f"{label} {number}/{len(groups)}", folder=folder, data_digest=digest
            )
        except OutOfTime:
            continue
        seconds += spent
        results |= dict(zip(members, found, strict=True))
    return [results.get(index) for index in range(len(runs))], seconds


def grid(
    problem: Problem,
    axes: Mapping[str, Sequence],
    make: Callable[..., Run],
    *,
    label: str = "",
    folder: Path | None = None,
    memory: int | None = None,
) -> xr.Dataset:
    """Every combination of the axes as one data set with these axes and "evaluation".

    make(**{axis: value}) -> Run; all of them with as many evaluations. Variables are the histories,
    "step" among them, and "diverged_at" (-1 if not). Histories of diverged runs are NaN from the
    step on. Attributes: `missing`, the number of runs that are not finished (NaN), and `seconds`.
    Raises OutOfTime if the deadline left none finished, else as `run_all`.
    """
    sizes = [len(values) for values in axes.values()]
    runs = [make(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())]
    lengths = {len(run.eval_steps) for run in runs}
    if len(lengths) > 1:
        raise ValueError(f"runs of one grid need as many evaluations each, got {sorted(lengths)}")
    results, seconds = run_all(problem, runs, label=label, folder=folder, memory=memory)
    finished = [result for result in results if result is not None]
    if not finished:
        raise OutOfTime(f"{label}: the deadline came before a run was finished")
    variables = {}
    for name, example in finished[0].history.items():
        empty = np.full(example.shape, np.nan)
        values = np.stack([empty if r is None else _masked(r, name) for r in results])
        extra = [f"{name}_{i}" for i in range(example.ndim - 1)]
        dims = (*axes, *extra, "evaluation")
        variables[name] = (dims, values.reshape(*sizes, *example.shape))
    variables["step"] = (
        (*axes, "evaluation"),
        np.reshape([run.eval_steps for run in runs], (*sizes, -1)),
    )
    diverged = [np.nan if r is None else r.diverged_at for r in results]
    variables["diverged_at"] = (tuple(axes), np.reshape(diverged, sizes))
    coordinates = {name: np.asarray(values) for name, values in axes.items()}
    attributes = {"missing": len(runs) - len(finished), "seconds": seconds}
    return xr.Dataset(variables, coordinates, attributes)


def _masked(result: Result, name: str) -> np.ndarray:
    values = np.asarray(result.history[name], dtype=float)
    if result.diverged_at < 0 or name == "step":
        return values
    return np.where(result.history["step"] > result.diverged_at, np.nan, values)


class _Kind(NamedTuple):
    """What must agree for runs to share a program, and a loop."""

    program: tuple
    eval_steps: tuple[int, ...]


def _is_plain(run: Run) -> bool:
    return run.period == 1 and not run.until_solved


def _kind(run: Run) -> _Kind:
    penalized = run.penalty > 0
    program = (_is_plain(run), run.until_solved, penalized, run.optimizer, run.examples)
    return _Kind(program, run.eval_steps)


class _Program:
    """The compiled loop and evaluation of one kind of runs, for any number of them at once."""

    def __init__(self, problem: Problem, example: Run):
        self.problem, self.example = problem, example
        self.base = Algorithm(
            f=problem.f,
            loss=problem.loss,
            optimizer=OPTIMIZERS[example.optimizer](example.step_size),
            batch_size=problem.batch_size,
            augment=problem.augment,
            penalized=example.penalty > 0,
            reset_optimizer=problem.reset_optimizer,
            solved=problem.solved if example.until_solved else None,
            plain=_is_plain(example),
            normalization=problem.normalization,
        )
        self._compiled = {}

    @cached_property
    def memory(self) -> int:
        """Bytes that a step of one run takes: an upper bound, as if nothing were reused."""
        state, values, examples = self._inputs([self.example])

        def first(tree):
            return jax.tree.map(lambda leaf: leaf[0], tree)

        alone = TrainState(state.step, *[first(leaf) for leaf in state[1:]])
        jaxpr = jax.make_jaxpr(self._step)(
            alone, first(values), first(examples), self.problem.train
        )
        return _bytes(jaxpr.jaxpr)

    def run(self, runs, *, label, folder, data_digest):
        if len(runs) not in self._compiled:
            self._compiled[len(runs)] = self._programs(len(runs))
        advance, observe, digests = self._compiled[len(runs)]
        state, values, examples = self._inputs(runs)
        shared = (self.problem.train, self.problem.evaluate)
        eval_steps = np.asarray(runs[0].eval_steps)
        checkpoint, fingerprint = None, ""
        if folder is not None:
            if not digests:
                one = jnp.asarray(1, jnp.int32)
                digests.append(advance.trace(state, values, examples, shared[0], one).jaxpr)
                digests.append(observe.trace(state, values, examples, *shared).jaxpr)
                digests[:] = [checkpoints.fingerprint(digests)]
            fingerprint = checkpoints.fingerprint(
                [*digests, data_digest], state, values, examples, eval_steps
            )
            checkpoint = folder / f"{fingerprint[:24]}.npz"
        if out_of_time() and (checkpoint is None or not checkpoint.exists()):
            raise OutOfTime(label)
        outcome = run_in_chunks(
            state,
            lambda s, count: advance(s, values, examples, shared[0], count),
            lambda s: observe(s, values, examples, *shared),
            eval_steps,
            label=label,
            checkpoint=checkpoint,
            fingerprint=fingerprint,
        )
        diverged = np.asarray(outcome.state.diverged_at)
        found = []
        for index, run in enumerate(runs):
            history = {n: v if n == "step" else v[index] for n, v in outcome.history.items()}
            found.append(Result(run, history, int(diverged[index])))
        return found, outcome.seconds

    def _inputs(self, runs):
        """Initial states, the numbers in which the runs differ, and their examples."""
        keys = jnp.stack([jax.random.fold_in(jax.random.key(0), run.seed) for run in runs])
        values = {
            "period": jnp.asarray([int(min(run.period, NEVER)) for run in runs], jnp.int32),
            "step_size": jnp.asarray([run.step_size for run in runs]),
            "penalty": jnp.asarray([run.penalty for run in runs]),
        }
        size = self.example.examples
        if size is None:
            size = len(self.problem.train[1])
            examples = jnp.tile(jnp.arange(size, dtype=jnp.int32), (len(runs), 1))
        else:
            chosen = [self.problem.subset(size, run.seed) for run in runs]
            examples = jnp.asarray(np.stack(chosen), jnp.int32)

        def start(key, one_values, one_examples):
            data = (*self.problem.train, one_examples)
            params = self.problem.init(key)
            return self._algorithm(one_values).start(params, data, jax.random.fold_in(key, 1))

        state = jax.vmap(start, out_axes=STATE_AXES)(keys, values, examples)
        return state, values, examples

    def _algorithm(self, values) -> Algorithm:
        optimizer = OPTIMIZERS[self.example.optimizer](values["step_size"])
        return dataclasses.replace(self.base, optimizer=optimizer, penalty=values["penalty"])

    def _schedule(self, values):
        return (when_solved if self.example.until_solved else every)(values["period"])

    def _step(self, state, values, examples, train):
        data = (*train, examples)
        return self._algorithm(values).step(state, data, self._schedule(values))

    def _programs(self, size):
        """advance and observe for `size` runs; a single one is not vmapped."""

        def advance(state, values, examples, train, count):
            data = (*train, examples)
            return self._algorithm(values).advance(state, data, count, self._schedule(values))

        def observe(state, values, examples, train, evaluate):
            algorithm = self._algorithm(values)
            see = observer(algorithm, evaluate, self.problem.metrics, slice_size=SLICE)
            seen = see(state)
            if self.problem.diagnose:
                sample = tuple(part[: self.problem.diagnose] for part in train)
                seen |= kernel_diagnostics(
                    algorithm.network(state), state.params, state.anchor, sample, self.problem.loss
                )
            if self.problem.observe is not None:
                seen |= self.problem.observe(state)
            return seen

        if size == 1:
            return jax.jit(_alone(advance, True)), jax.jit(_alone(observe, False)), []
        axes = (STATE_AXES, 0, 0, None, None)
        return (
            jax.jit(jax.vmap(advance, axes, STATE_AXES)),
            jax.jit(jax.vmap(observe, axes)),
            [],
        )


def _alone(function, returns_state):
    """A program of one run, called with leaves that lead with that run."""

    def first(tree):
        return jax.tree.map(lambda leaf: leaf[0], tree)

    def rest(tree):
        return jax.tree.map(lambda leaf: leaf[None], tree)

    def apply(state, values, examples, *others):
        single = TrainState(state.step, *[first(leaf) for leaf in state[1:]])
        out = function(single, first(values), first(examples), *others)
        if returns_state:
            return TrainState(out.step, *[rest(leaf) for leaf in out[1:]])
        return rest(out)

    return apply


def _bytes(jaxpr) -> int:
    """Sum over all intermediate values, loops counted once."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [
            value.jaxpr if hasattr(value, "jaxpr") else value
            for parameter in equation.params.values()
            for value in (parameter if isinstance(parameter, tuple | list) else [parameter])
            if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")
        ]
        total += sum(_bytes(part) for part in inner)
        if not inner:
            total += sum(
                variable.aval.size * variable.aval.dtype.itemsize
                for variable in equation.outvars
                if hasattr(variable.aval, "size")
            )
    return total


def _memory() -> int:
    device = jax.devices()[0]
    if device.platform == "cpu":
        return CPU_MEMORY
    return int(GPU_SHARE * device.memory_stats()["bytes_limit"])


def _say(line: str) -> None:
    if os.environ.get(PROGRESS):
        print(line, file=sys.stderr, flush=True)


def _check(problem: Problem, run: Run) -> None:
    try:
        positive_integer("period", run.period, infinity=True)
        positive("step_size", run.step_size)
        non_negative("penalty", run.penalty)
        one_of("optimizer", run.optimizer, OPTIMIZERS)
        steps = np.asarray(run.eval_steps)
        if (
            steps.size == 0
            or steps[0] < 0
            or np.any(np.diff(steps) <= 0)
            or steps.dtype.kind != "i"
        ):
            raise ValueError("eval_steps must be whole, increasing and not negative")
        size = len(problem.train[1]) if run.examples is None else run.examples
        if not 0 < size <= len(problem.train[1]):
            raise ValueError(f"{size} examples asked of the {len(problem.train[1])} there are")
        if run.examples is not None and problem.subset is None:
            raise ValueError("a run on fewer examples needs the problem's subset")
        if problem.batch_size is not None and problem.batch_size > size:
            raise ValueError(f"batch_size {problem.batch_size} exceeds its {size} examples")
        if run.until_solved and problem.solved is None:
            raise ValueError("until_solved needs the problem's rule `solved`")
    except ValueError as error:
        raise ValueError(f"{error} (in {run._replace(eval_steps=run.eval_steps[-1:])})") from None
