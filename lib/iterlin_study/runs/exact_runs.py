"""Train grids of full-batch runs with the engines of `iterlin.exact` (`grids` trains by steps)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import xarray as xr
from iterlin.exact.checks import unfit_for_engines
from iterlin.exact.choice import ENGINE_NAMES
from iterlin.exact.integrator import train_by_engine
from iterlin.exact.trainer import SPENT, spent_by_steps
from iterlin.linearise.devices import to_array
from iterlin.linearise.validation import check_one_of
from iterlin.training.loop import OutOfTime
from iterlin.training.step import Step

from iterlin_study.records import environment
from iterlin_study.records.extension import unless_recorded
from iterlin_study.runs.grids import check_settings, combined, run_all, say, tabulate
from iterlin_study.runs.groups import (
    SLICE,
    Problem,
    Result,
    Run,
    key_of,
    step_of,
    unknown_history,
    with_own_examples,
)


@unless_recorded
def exact_grid(
    problem: Problem,
    axes: Mapping[str, Sequence],
    make: Callable[..., Run],
    *,
    engine: Callable[[Run], str],
    tolerance: float = 1e-3,
    label: str = "",
    folder: Path | None = None,
) -> xr.Dataset:
    """Train a grid with an engine for each run, one run after the other.

    A seed gives the same initial parameters and examples as in `grids.grid`. The problem must be
    full batch, without augmentation or running statistics.

    Args:
        problem, axes, make, label, folder: As for `grids.grid`.
        engine: engine(run) -> name of an engine of `train`; "steps" trains with `grids.run_all`.
        tolerance: As for `train`.

    Returns:
        A data set as `grids.grid` returns it, without kernel diagnostics, and with the variables
        "evaluations" (products with J J^T so far), "stability" and "seconds" of `train`. Errors as
        `grids.grid`, and ValueError if an engine does not apply to a run.
    """
    problem = replace(problem, diagnose=0)
    runs = combined(axes, make)
    engines = [engine(run) for run in runs]
    for run, name in zip(runs, engines, strict=True):
        check_settings(problem, run)
        check_one_of("engine", name, ENGINE_NAMES)
        if run.optimizer != "sgd" or run.momentum or run.halve_after:
            raise ValueError(f"exact engines are for plain gradient descent, got {run}")
        if why := unfit_for_engines(_exact_step(problem, run)):
            raise ValueError(why)
    results = [None] * len(runs)
    # Train seed by seed, so that an interrupted grid has results for every setting.
    for number, index in enumerate(sorted(range(len(runs)), key=lambda i: runs[i].seed), start=1):
        run, name = runs[index], engines[index]
        said = f"{label} {number}/{len(runs)}: {name}, period {run.period:g}, seed {run.seed}"
        say(said)
        if name == "steps":
            [result], seconds = run_all(problem, [run], label=said, folder=folder)
            if result is not None:
                spent = spent_by_steps(result.history["step"], seconds)
                results[index] = result._replace(history=result.history | spent)
        elif not environment.out_of_time():
            results[index] = _integrate(problem, run, name, tolerance, folder)

    def unknown():
        spent = dict.fromkeys(SPENT, np.full(len(runs[0].eval_steps), np.nan))
        return unknown_history(problem, runs[0]) | spent

    found = tabulate(axes, runs, results, unknown)
    return found.assign_attrs(seconds=float(found.seconds.max("evaluation").sum()))


def _exact_step(problem: Problem, run: Run) -> Step:
    """Return the step of the run, with a number as its optimizer, as engines need it."""
    step = step_of(problem, run)
    return replace(step, algorithm=replace(step.algorithm, optimizer=run.step_size))


def _integrate(
    problem: Problem, run: Run, engine: str, tolerance: float, folder: Path | None
) -> Result | None:
    """Train one run; return its result, or None if the deadline or another share has it."""
    if folder is not None:
        if environment.is_left_to_others():
            return None
        folder.mkdir(parents=True, exist_ok=True)
    x, y = problem.train
    watch = problem.watch._replace(
        observe=problem.observe, batch_size=SLICE, at=np.asarray(run.eval_steps)
    )
    if run.examples is not None:
        chosen = to_array(problem.subset(run.examples, run.seed), jnp.int32)
        watch = watch._replace(sets=with_own_examples(watch.sets, problem.train, chosen))
        x, y = jnp.take(x, chosen, 0), jnp.take(y, chosen, 0)
    try:
        state, history = train_by_engine(
            _exact_step(problem, run),
            problem.init(key_of(run.seed)),
            (x, y),
            engine=engine,
            num_steps=run.eval_steps[-1],
            watch=watch,
            checkpoint=folder,
            progress=False,
            tolerance=tolerance,
            out_of_time=environment.out_of_time,
        )
    except OutOfTime:
        return None
    del history["engine"]  # The caller has chosen it.
    return Result(history, int(state.diverged_at))
