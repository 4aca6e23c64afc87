"""Train grids of runs: several runs at once if memory allows, with checkpoints on disk.

A grid is a list of `Run`s of one `Problem`. Runs that differ only in numbers (period, seed, step
size, penalty, examples) share a compiled program. An estimate of the memory of one run decides how
many runs the program trains together. With a folder, each such group of runs has a checkpoint
there, named by a digest of its settings (`iterlin.training.identity`). The same call then continues
after an interruption, and a call with other settings starts new runs.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import jax
import numpy as np
import xarray as xr
from iterlin.linearise import costs
from iterlin.linearise.digests import digest
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import (
    check_non_negative,
    check_non_negative_integer,
    check_one_of,
    check_positive,
    check_positive_integer,
)
from iterlin.training.checks import check_functions
from iterlin.training.loop import OutOfTime
from iterlin.training.schedules import as_schedule

from iterlin_study.records import environment, provenance
from iterlin_study.records.extension import unless_recorded
from iterlin_study.runs.groups import (
    OPTIMIZERS,
    Problem,
    Result,
    Run,
    key_of,
    kind_of,
    step_costs,
    step_of,
    trainer,
    unknown_history,
)

# A step of more operations fills a GPU: such runs are hardly faster together (4 % for five LeNets
# of 50 channels on an H200), and one by one they finish one by one.
FILLS_A_GPU = 4e9


def store(tier: str) -> Path | None:
    """Return the folder for the checkpoints of a tier's runs; None for the quick tier."""
    return None if tier == "quick" else provenance.project_root() / "_build" / "runs"


@full_precision()
def run_all(
    problem: Problem,
    runs: Sequence[Run],
    *,
    label: str = "",
    folder: Path | None = None,
    memory: int | None = None,
) -> tuple[list[Result | None], float]:
    """Train runs, in groups that share a compiled program.

    A run that diverges stops at that step, and the others continue. Matrix products are computed in
    full precision (`precision.full_precision`).

    Args:
        problem: What the runs have in common.
        runs: The runs.
        label: Name of the grid in progress reports.
        folder: Folder for checkpoints; None for none.
        memory: Bytes that the runs of a group may take together; by default `group_memory()`.

    Returns:
        The results, in the order of the runs, with None for a run that the deadline has left
        unfinished or that another share trains; and the seconds that training took.

    Raises:
        ValueError: Before any training, as `check_settings`, or for a label outside the classes.
        CheckpointError: If the folder cannot be written.
    """
    for run in runs:
        check_settings(problem, run)
    if runs:
        key = key_of(runs[0].seed)
        drawn = jax.eval_shape(problem.init, key)
        check_functions(step_of(problem, runs[0]), drawn, key, problem.train, problem.watch)
    memory = group_memory() if memory is None else memory
    results: dict[int, Result] = {}
    seconds, data_digest = 0.0, None
    if folder is not None:
        data_digest = digest((problem.train, dict(problem.watch.sets)))
    trainers: dict[tuple, Callable] = {}
    # Train seed by seed, so that an interrupted grid has whole seeds rather than whole periods.
    kinds = {}
    for index in sorted(range(len(runs)), key=lambda index: runs[index].seed):
        run = runs[index]
        kinds.setdefault((kind_of(run), run.eval_steps), []).append(index)
    groups = []
    for (program, eval_steps), members in kinds.items():
        example = runs[members[0]]
        trainers.setdefault(program, trainer(problem, example))
        each, operations = step_costs(problem, example)
        size = max(1, min(len(members), memory // max(1, each)))
        size = -(-len(members) // -(-len(members) // size))
        if operations > FILLS_A_GPU and jax.default_backend() == "gpu":
            size = 1
        say(
            f"{label}: {len(members)} runs of {eval_steps[-1]} steps, {size} at a time "
            f"(up to {each / 2**20:.0f} MiB each, {memory / 2**20:.0f} MiB in all), "
            f"{len(members) * eval_steps[-1] * operations:.1e} operations to train"
        )
        groups += [(program, members[i : i + size]) for i in range(0, len(members), size)]
    groups.sort(key=lambda group: runs[group[1][0]].seed)
    for number, (program, members) in enumerate(groups, start=1):
        try:
            found, taken = trainers[program](
                [runs[index] for index in members],
                label=f"{label} {number}/{len(groups)}",
                folder=folder,
                data_digest=data_digest,
            )
        except OutOfTime:
            continue
        results |= zip(members, found, strict=True)
        seconds += taken
    return [results.get(index) for index in range(len(runs))], seconds


@unless_recorded
def grid(
    problem: Problem,
    axes: Mapping[str, Sequence],
    make: Callable[..., Run],
    *,
    label: str = "",
    folder: Path | None = None,
    memory: int | None = None,
) -> xr.Dataset:
    """Train a run for every combination of the axes' values.

    Args:
        problem, folder, memory: As for `run_all`.
        axes: Values of each axis.
        make: ``make(**{axis: value})`` -> Run. All runs need equally many evaluations.
        label: Name of the grid in progress reports.

    Returns:
        A data set over the axes and "evaluation". Its variables are "step", the recorded histories,
        NaN after a run has diverged, and "diverged_at", -1 for a run that has not. Its attributes
        are `missing`, the number of unfinished runs, whose values are NaN, and `seconds`.

    Raises:
        ValueError: If an axis has no value, the numbers of evaluations differ, and as `run_all`.
        CheckpointError: As `run_all`.
    """
    runs = combined(axes, make)
    lengths = {len(run.eval_steps) for run in runs}
    if len(lengths) > 1:
        raise ValueError(f"runs of one grid need as many evaluations each, got {sorted(lengths)}")
    results, seconds = run_all(problem, runs, label=label, folder=folder, memory=memory)
    unknown = partial(unknown_history, problem, runs[0])
    return tabulate(axes, runs, results, unknown).assign_attrs(seconds=seconds)


def combined(axes: Mapping[str, Sequence], make: Callable[..., Run]) -> list[Run]:
    """Return the run of every combination of values; the last axis varies fastest.

    Raises ValueError if an axis has no value.
    """
    for name, values in axes.items():
        if len(values) == 0:
            raise ValueError(f"the axis '{name}' has no value: there is no run to make")
    return [make(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def tabulate(
    axes: Mapping[str, Sequence],
    runs: Sequence[Run],
    results: Sequence[Result | None],
    unknown: Callable[[], Mapping[str, np.ndarray]],
) -> xr.Dataset:
    """Return the results of a grid, in the order of `combined`, as a data set (see `grid`).

    A result is None if the run is not finished; unknown() -> the history of such a run.
    """
    sizes = [len(values) for values in axes.values()]
    finished = [result for result in results if result is not None]
    known = finished[0].history if finished else unknown()
    variables = {}
    for name, example in known.items():
        empty = np.full(example.shape, np.nan)
        values = np.stack([empty if r is None else r.history[name] for r in results], dtype=float)
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
    ds = xr.Dataset(variables, coordinates, {"missing": len(runs) - len(finished)})
    alive = (ds.diverged_at < 0) | (ds.step <= ds.diverged_at)
    return ds.assign({name: ds[name].where(alive) for name in known if name != "step"})


def group_memory() -> int:
    """Return the bytes that the runs of one group may take together by default.

    On a CPU, runs are faster together only if they fit into its cache together: 24 MiB. On a GPU
    they may take half of the memory.
    """
    return costs.device_memory(24 * 2**20, 0.5)


def say(line: str) -> None:
    """Print a line of progress to stderr if the environment asks for it."""
    if environment.reporting():
        print(line, file=sys.stderr, flush=True)


def check_settings(problem: Problem, run: Run) -> None:
    """Require settings in range that fit the problem; the ValueError names the run."""
    try:
        check_non_negative_integer("seed", run.seed, below=2**32)
        check_positive_integer("period", run.period, infinity=True)
        check_positive("step_size", run.step_size)
        check_non_negative("penalty", run.penalty)
        check_one_of("optimizer", run.optimizer, OPTIMIZERS)
        steps = np.asarray(run.eval_steps)
        if steps.size == 0 or steps.dtype.kind != "i" or np.any(np.diff(steps, prepend=-1) <= 0):
            raise ValueError("eval_steps must be whole, increasing and not negative")
        check_non_negative_integer("the last of eval_steps", steps[-1], below=2**31)
        size = len(problem.train[1]) if run.examples is None else run.examples
        if not 0 < size <= len(problem.train[1]):
            raise ValueError(
                f"{size} examples asked of the {len(problem.train[1])} in the data set"
            )
        if run.examples is not None and problem.subset is None:
            raise ValueError("a run on fewer examples needs the problem's subset")
        batch_size = problem.batch_size
        if batch_size is not None and batch_size > size:
            raise ValueError(f"batch_size {batch_size} exceeds its {size} examples")
        if run.until_solved and problem.solved is None:
            raise ValueError("until_solved needs the problem's rule `solved`")
        if run.schedule is not None:
            as_schedule(run.schedule)
            if run.period != np.inf or run.until_solved:
                raise ValueError("a schedule takes the place of a period: leave that infinite")
        if not 0 <= run.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {run.momentum}")
        if run.momentum and run.optimizer != "sgd":
            raise ValueError(f"momentum is for the optimizer sgd, not {run.optimizer}")
        check_non_negative("decay", run.decay)
        if run.decay and run.optimizer != "adamw":
            raise ValueError(f"decay is for the optimizer adamw, not {run.optimizer}")
        if run.halve_after:
            _check_halvings(problem, run)
    except ValueError as error:
        raise ValueError(f"{error} (in {run._replace(eval_steps=run.eval_steps[-1:])})") from None


def _check_halvings(problem: Problem, run: Run) -> None:
    if np.any(np.diff(run.halve_after, prepend=0) <= 0):
        raise ValueError("halve_after must be positive numbers, increasing")
    if run.period == np.inf or run.until_solved:
        raise ValueError("halve_after needs a fixed period that is finite")
    steps = np.asarray(run.halve_after) * run.period
    if np.any(abs(steps - np.rint(steps)) > 1e-6):
        raise ValueError("halve_after must name whole steps")
    if problem.algorithm.reset_optimizer:
        raise ValueError("halve_after counts steps in the optimiser, which is not to be reset")
