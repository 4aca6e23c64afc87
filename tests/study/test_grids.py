"""Grids of runs: the same as runs one by one, however they are grouped, kept or interrupted."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roads
from iterlin import every, losses, mlp, schedules
from iterlin.training.loop import OutOfTime
from iterlin_study.records import environment
from iterlin_study.runs import grids, groups
from iterlin_study.runs.grids import Run
from problems import by_factor, start

ENTROPY = losses.mean(losses.cross_entropy)
MODEL = mlp((2, 5, 2), activation="tanh")
X = jnp.asarray(np.random.default_rng(1).normal(size=(24, 2)))
Y = (jnp.prod(X, 1) > 0).astype(jnp.int32)
STEPS = (0, 3, 10, 20)
INIT = by_factor(start(MODEL.init))


def subset(size, seed):
    return np.random.default_rng(seed).permutation(24)[:size]


COMMON = {"loss": ENTROPY, "evaluate": {"test": (X[:7], Y[:7])}, "batch_size": 6}
COMMON |= {"metrics": {"loss": ENTROPY, "accuracy": losses.accuracy}}


def problem(**changes):
    settings = {"f": MODEL.apply, "init": INIT, "train": (X, Y), "subset": subset}
    return roads.problem(**settings | COMMON | changes)


RUNS = [
    Run(0, 1, 0.1, STEPS),
    Run(0, 4, 0.1, STEPS),
    Run(1, math.inf, 0.3, STEPS),
    Run(2, 5, 0.01, STEPS, penalty=0.2, optimizer="adam", examples=12),
]


def alone(run, optimizer=None, schedule=None):
    """The run as `train` makes it."""
    key = jax.random.fold_in(jax.random.key(0), run.seed)
    chosen = slice(None) if run.examples is None else subset(run.examples, run.seed)
    return roads.train(
        MODEL.apply,
        INIT(key),
        (X[chosen], Y[chosen]),
        optimizer=optimizer or grids.OPTIMIZERS[run.optimizer](run.step_size),
        schedule=schedule or every(run.period),
        num_steps=run.eval_steps[-1],
        eval_steps=list(run.eval_steps),
        key=jax.random.fold_in(key, 1),
        penalty=run.penalty,
        progress=False,
        **COMMON,
    )[1]


def test_runs_of_a_grid_are_runs_by_themselves():
    found, seconds = grids.run_all(problem(), RUNS)
    assert seconds > 0
    for run, result in zip(RUNS, found, strict=True):
        assert result.diverged_at == -1
        expected = alone(run)
        assert set(expected) == set(result.history)
        for name, values in expected.items():
            np.testing.assert_allclose(
                result.history[name], values, rtol=1e-10, atol=1e-12, err_msg=f"{run} {name}"
            )


def test_a_grid_has_its_axes_and_marks_what_diverged():
    def make(period, seed):
        return Run(seed, period, 1e300 if seed == 1 else 0.1, STEPS)

    # Squared error diverges where cross-entropy only grows.
    squared, data = losses.mean(losses.squared_error), (X, jax.nn.one_hot(Y, 2))
    changes = {"train": data, "evaluate": {"test": data}, "metrics": {"loss": squared}}
    changed = problem(loss=squared, **changes)
    grid = grids.grid(changed, {"period": [4, math.inf], "seed": [0, 1, 2]}, make)
    assert grid.test_loss.dims == ("period", "seed", "evaluation")
    assert grid.step.values.tolist() == [[list(STEPS)] * 3] * 2
    assert (grid.diverged_at.values >= 0).tolist() == [[False, True, False]] * 2
    late = grid.test_loss.where(grid.step > grid.diverged_at.clip(0), drop=True)
    assert np.isnan(late.sel(seed=1)).all()
    assert np.isfinite(grid.test_loss.sel(seed=[0, 2])).all()
    assert grid.attrs["missing"] == 0


def test_a_changed_run_is_another_run(tmp_path, monkeypatch):
    """Each would be kept in a file of its own."""
    paths = []

    def noted(*_, checkpoint, **__):
        paths.append(checkpoint)
        raise OutOfTime

    monkeypatch.setattr(groups, "run_to_end", noted)
    run = Run(0, 2, 0.1, (2,))
    changed = {"seed": 1, "period": 3, "step_size": 0.2, "eval_steps": (1, 2), "penalty": 0.1}
    changed |= {"examples": 12, "halve_after": (1,)}
    others = [run._replace(**{name: value}) for name, value in changed.items()]
    grids.run_all(problem(), [run, *others], folder=tmp_path, memory=1)
    assert len(paths) == len(set(paths)) == 1 + len(others)


def test_at_the_deadline_whole_seeds_are_there_and_the_rest_goes_on(tmp_path, monkeypatch):
    def found():
        axes = {"period": [4, 7], "seed": [0, 1]}
        make = lambda period, seed: Run(seed, period, 0.1, STEPS)  # noqa: E731
        return grids.grid(problem(), axes, make, folder=tmp_path, memory=1)

    # The deadline comes after the groups of the first seed.
    both_are_kept = lambda: len(list(tmp_path.iterdir())) == 2  # noqa: E731
    monkeypatch.setattr(environment, "out_of_time", both_are_kept)
    part = found()
    assert part.attrs["missing"] == 2
    assert np.isfinite(part.test_loss.sel(seed=0)).all()
    assert np.isnan(part.test_loss.sel(seed=1)).all()
    monkeypatch.setattr(environment, "out_of_time", lambda: True)
    nothing = grids.grid(problem(), {"seed": [7]}, lambda seed: RUNS[0])
    assert nothing.attrs["missing"] == 1
    assert np.isnan(nothing.test_loss).all()
    assert nothing.test_loss.dims == ("seed", "evaluation")
    monkeypatch.undo()
    whole = found()
    assert whole.attrs["missing"] == 0
    np.testing.assert_array_equal(whole.test_loss.sel(seed=0), part.test_loss.sel(seed=0))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"period": 0}, "period"),
        ({"optimizer": "lion"}, "lion"),
        ({"eval_steps": (3, 3)}, "eval_steps"),
        ({"examples": 25}, "25 examples"),
        ({"until_solved": True}, "rule"),
        ({"momentum": 0.9, "optimizer": "adam"}, "momentum"),
        ({"decay": 0.1}, "decay"),
        ({"period": math.inf, "halve_after": (2,)}, "fixed period"),
        ({"period": 5, "halve_after": (2.5,)}, "whole steps"),
        ({"period": 4, "schedule": schedules.every(4)}, "place of a period"),
    ],
)
def test_a_bad_run_is_refused_before_any_is_made(change, named, monkeypatch):
    monkeypatch.setattr(grids, "trainer", lambda *a: pytest.fail("a run was prepared"))
    with pytest.raises(ValueError, match=rf"{named}.*in Run\(seed="):
        grids.run_all(problem(), [RUNS[0], RUNS[0]._replace(**change)])


def test_a_schedule_takes_the_place_of_a_period():
    """Of the same steps: the same bits; and one that looks at the parameters is asked."""
    by_period = RUNS[0]._replace(period=2, eval_steps=(0, 4, 8))
    free = by_period._replace(period=math.inf)
    far = schedules.when(lambda state: jnp.asarray(True), check_every=3)
    chosen = [by_period, free._replace(schedule=schedules.every(2)), free._replace(schedule=far)]
    (first, same, looking), _ = grids.run_all(problem(), chosen)
    for name, values in first.history.items():
        np.testing.assert_array_equal(same.history[name], values, err_msg=name)
    assert looking.history["updates"].tolist() == [0, 1, 2]


def test_places_are_rounded_down_to_whole_steps_which_double_where_they_are_halved():
    assert groups.steps_at([2.3], 100).tolist() == [230]  # not a float below 230
    assert groups.steps_at([0.5, 1.5], 5).tolist() == [2, 7]
    assert groups.steps_at(range(5), 2, (1, 2.5)).tolist() == [0, 2, 6, 12, 20]


@pytest.mark.parametrize(
    ("period", "halve_after", "ends", "lengths"),
    [
        (2, (1, 2.5), [0, 2, 6, 12, 20], [2, 6, 12]),
        (1, (2, 10), range(19), [2, 8, 8]),  # K = 1 stays gradient descent
    ],
)
def test_halved_steps_keep_the_time_of_a_period(period, halve_after, ends, lengths):
    """Runs together against `train` with the step sizes and linearisations spelt out."""
    settings = {"momentum": 0.8, "halve_after": halve_after}
    chosen = [Run(seed, period, 0.1, (2, 10, 18), **settings) for seed in (0, 1)]
    results, _ = grids.run_all(problem(), chosen)
    sizes = jnp.repeat(jnp.asarray([0.1, 0.05, 0.025]), jnp.asarray(lengths))
    optimizer, due = optax.sgd(lambda step: sizes[step], momentum=0.8), jnp.asarray(ends)
    for run, result in zip(chosen, results, strict=True):
        history = alone(run, optimizer, lambda step, state: jnp.isin(step, due))
        np.testing.assert_array_equal(result.history["updates"], history["updates"])
        np.testing.assert_allclose(result.history["test_loss"], history["test_loss"], rtol=1e-9)


def test_a_grid_that_makes_no_rectangle_is_refused():
    make = lambda seed: Run(seed, 1, 0.1, STEPS if seed else (5,))  # noqa: E731
    for seeds, named in (([0, 1], r"\[1, 4\]"), ([], "'seed'")):
        with pytest.raises(ValueError, match=named):
            grids.grid(problem(), {"seed": seeds}, make)
