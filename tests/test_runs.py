"""Grids of runs: the same as runs one by one, however they are grouped, kept or interrupted."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roads
from iterlin import losses, schedules
from iterlin.networks.mlp import mlp
from iterlin.runtime import chunks
from iterlin.runtime.slices import in_slices
from iterlin.schedules import Solved, every
from iterlin.study import environment, groups, runs
from iterlin.study.runs import Run

ENTROPY = losses.mean(losses.cross_entropy)
MODEL = mlp((2, 5, 2), activation="tanh")
X = jax.random.normal(jax.random.key(1), (24, 2))
Y = (jnp.prod(X, 1) > 0).astype(jnp.int32)
STEPS = (0, 3, 10, 20)


def subset(size, seed):
    return np.random.default_rng(seed).permutation(24)[:size]


def problem(**changes):
    settings = {
        "f": MODEL.apply,
        "init": MODEL.init,
        "train": (X, Y),
        "loss": ENTROPY,
        "evaluate": {"test": (X[:7], Y[:7])},
        "metrics": {"loss": ENTROPY, "accuracy": losses.accuracy},
        "batch_size": 6,
        "subset": subset,
    }
    return roads.problem(**settings | changes)


RUNS = [
    Run(0, 1, 0.1, STEPS),
    Run(1, 1, 0.2, STEPS),
    Run(0, 4, 0.1, STEPS),
    Run(2, 4, 0.1, STEPS, examples=12),
    Run(1, math.inf, 0.3, STEPS),
    Run(1, 5, 0.1, STEPS, penalty=0.2),
    Run(1, 5, 0.01, STEPS, optimizer="adam"),
]


def alone(run):
    """The run as `train` makes it."""
    key = jax.random.fold_in(jax.random.key(0), run.seed)
    chosen = slice(None) if run.examples is None else subset(run.examples, run.seed)
    optimizer = runs.OPTIMIZERS[run.optimizer](run.step_size)
    return roads.train(
        MODEL.apply,
        MODEL.init(key),
        (X[chosen], Y[chosen]),
        loss=ENTROPY,
        optimizer=optimizer,
        schedule=every(run.period),
        num_steps=STEPS[-1],
        eval_steps=list(STEPS),
        batch_size=6,
        key=jax.random.fold_in(key, 1),
        evaluate={"test": (X[:7], Y[:7])},
        metrics={"loss": ENTROPY, "accuracy": losses.accuracy},
        penalty=run.penalty,
        progress=False,
    )[1]


@pytest.mark.parametrize(("memory", "chosen"), [(1, RUNS[2:3]), (2**30, RUNS)])
def test_runs_of_a_grid_are_runs_by_themselves(memory, chosen):
    began = time.perf_counter()
    found, seconds = runs.run_all(problem(), chosen, memory=memory)
    assert 0 < seconds <= time.perf_counter() - began
    for run, result in zip(chosen, found, strict=True):
        assert result.run == run
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
    squared = losses.mean(losses.squared_error)
    targets = jax.nn.one_hot(Y, 2)
    grid = runs.grid(
        problem(
            loss=squared,
            train=(X, targets),
            evaluate={"test": (X, targets)},
            metrics={"loss": squared},
            diagnose=5,
        ),
        {"period": [1, math.inf], "seed": [0, 1, 2]},
        make,
    )
    assert grid.test_loss.dims == ("period", "seed", "evaluation")
    assert grid.step.values.tolist() == [[list(STEPS)] * 3] * 2
    assert (grid.diverged_at.values >= 0).tolist() == [[False, True, False]] * 2
    late = grid.test_loss.where(grid.step > grid.diverged_at.clip(0), drop=True)
    assert np.isnan(late.sel(seed=1)).all()
    assert np.isfinite(grid.test_loss.sel(seed=[0, 2])).all()
    assert grid.attrs["missing"] == 0
    for name in ("kernel_eigenvalue", "curvature", "kernel_drift", "parameter_distance"):
        assert np.isfinite(grid[name].sel(seed=0)).all()


def test_finished_runs_are_not_computed_again(tmp_path, monkeypatch):
    first, spent = runs.run_all(problem(), RUNS[:4], folder=tmp_path)
    kept = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(
        chunks.jax, "block_until_ready", lambda state: pytest.fail("a chunk was computed")
    )
    again, later = runs.run_all(problem(), RUNS[:4], folder=tmp_path)
    assert later == spent > 0
    for one, two in zip(first, again, strict=True):
        for name, values in one.history.items():
            np.testing.assert_array_equal(values, two.history[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


@pytest.mark.parametrize(
    "change",
    [
        {"loss": losses.cross_entropy},
        {"train": (X + 1e-6, Y)},
        {"evaluate": {"test": (X[:6], Y[:6])}},
        {"batch_size": 5},
        {"augment": lambda key, x: x},
        {"f": lambda p, x: 1.001 * MODEL.apply(p, x)},
        {"init": lambda key: jax.tree.map(lambda leaf: 1.001 * leaf, MODEL.init(key))},
        {"diagnose": 3},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_problem_is_another_run(tmp_path, change):
    run = Run(0, 2, 0.1, (2,))
    runs.run_all(problem(), [run], folder=tmp_path)
    runs.run_all(problem(**change), [run], folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_changed_run_is_another_run(tmp_path):
    run = Run(0, 2, 0.1, (2,))
    others = [
        run._replace(seed=1),
        run._replace(period=3),
        run._replace(step_size=0.2),
        run._replace(eval_steps=(1, 2)),
        run._replace(penalty=0.1),
        run._replace(optimizer="adam"),
        run._replace(examples=12),
        run._replace(momentum=0.9),
        run._replace(halve_after=(1,)),
    ]
    for number, other in enumerate([run, *others], start=1):
        runs.run_all(problem(), [other], folder=tmp_path)
        assert len(list(tmp_path.iterdir())) == number, other


def test_at_the_deadline_whole_seeds_are_there_and_the_rest_goes_on(tmp_path, monkeypatch):
    axes = {"period": [1, 4], "seed": [0, 1]}

    def make(period, seed):
        return Run(seed, period, 0.1, STEPS)

    def found():
        return runs.grid(problem(), axes, make, folder=tmp_path, memory=1)

    # The clock strikes after the groups of the first seed.
    both_are_kept = lambda: len(list(tmp_path.iterdir())) == 2  # noqa: E731
    monkeypatch.setattr(environment, "out_of_time", both_are_kept)
    part = found()
    assert part.attrs["missing"] == 2
    assert np.isfinite(part.test_loss.sel(seed=0)).all()
    assert np.isnan(part.test_loss.sel(seed=1)).all()
    monkeypatch.setattr(environment, "out_of_time", lambda: True)
    assert found().attrs["missing"] == 2
    monkeypatch.undo()
    whole = found()
    assert whole.attrs["missing"] == 0
    np.testing.assert_array_equal(whole.test_loss.sel(seed=0), part.test_loss.sel(seed=0))


def test_a_grid_of_which_nothing_is_finished_is_out_of_time(tmp_path, monkeypatch):
    monkeypatch.setenv(environment.DEADLINE, "0")
    with pytest.raises(chunks.OutOfTime, match="before a run was finished"):
        runs.grid(problem(), {"seed": [0]}, lambda seed: RUNS[0], folder=tmp_path)


@pytest.mark.parametrize(("set_by", "left"), [(-3600, -1), (3600, 60)], ids=["back", "forward"])
def test_a_clock_that_is_set_moves_no_deadline(monkeypatch, set_by, left):
    now = time.time()
    monkeypatch.setenv(environment.DEADLINE, str(now + left))
    monkeypatch.setattr(time, "time", lambda: now + set_by)
    assert environment.out_of_time() == (left < 0)
    monkeypatch.delenv(environment.DEADLINE)
    assert not environment.out_of_time()


def test_fewer_runs_go_together_where_memory_is_short(capsys, monkeypatch):
    monkeypatch.setenv(environment.PROGRESS, "1")
    eight = [Run(seed, 2, 0.1, (1,)) for seed in range(8)]
    each = groups.step_memory(problem(), eight[0])
    assert each > 6 * 5 * 8  # at least one batch of hidden activations
    runs.run_all(problem(), eight, memory=3 * each)
    assert "8 runs of 1 steps, 3 at a time (up to" in capsys.readouterr().err
    runs.run_all(problem(), eight, memory=100 * each)
    assert "8 at a time" in capsys.readouterr().err


def test_an_axis_without_values_is_named():
    def make(seed, period):
        return Run(seed, period, 0.1, (1,))

    for axes in ({"seed": [], "period": [1]}, {"seed": [0], "period": np.arange(0)}):
        empty = next(name for name, values in axes.items() if len(values) == 0)
        with pytest.raises(ValueError, match=f"the axis '{empty}' has no value"):
            runs.grid(problem(), axes, make)
        with pytest.raises(ValueError, match=f"the axis '{empty}' has no value"):
            runs.tabulate(axes, [], [])


def test_labels_outside_the_classes_are_refused_before_any_run(monkeypatch):
    monkeypatch.setattr(runs, "trainer", lambda *a: pytest.fail("a run was prepared"))
    with pytest.raises(ValueError, match="targets must be labels of 2 classes, 0 to 1: got 2"):
        runs.run_all(problem(train=(X, Y + 1)), RUNS[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"period": 0}, "period must be"),
        ({"step_size": -1.0}, "step_size must be"),
        ({"penalty": -1.0}, "penalty must"),
        ({"optimizer": "lion"}, "lion"),
        ({"eval_steps": (3, 3)}, "eval_steps must be"),
        ({"eval_steps": ()}, "eval_steps must be"),
        ({"eval_steps": (0, 2**31)}, "the last of eval_steps must be below 2147483648"),
        ({"seed": 1.5}, "seed must be a non-negative integer, got 1.5"),
        ({"seed": -1}, "seed must be a non-negative integer, got -1"),
        ({"seed": 2**32}, "seed must be below 4294967296"),
        ({"examples": 25}, "25 examples asked of the 24"),
        ({"examples": 5}, "batch_size 6 exceeds its 5 examples"),
        ({"until_solved": True}, "needs the algorithm's rule"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"momentum": 0.9, "optimizer": "adam"}, "momentum is for the optimizer sgd"),
        ({"period": 4, "halve_after": (2, 2)}, "halve_after must be positive"),
        ({"period": 4, "halve_after": (0,)}, "halve_after must be positive"),
        ({"period": math.inf, "halve_after": (2,)}, "needs a fixed period"),
        ({"period": math.inf, "schedule": 5}, r"schedule must be a function \(step, state\)"),
        ({"period": 4, "schedule": schedules.every(4)}, "takes the place of a period"),
    ],
)
def test_a_bad_run_is_refused_before_any_is_made(change, message, monkeypatch):
    monkeypatch.setattr(runs, "trainer", lambda *a: pytest.fail("a run was prepared"))
    with pytest.raises(ValueError, match=rf"{message}.*in Run\(seed="):
        runs.run_all(problem(), [RUNS[0], RUNS[0]._replace(**change)])


def test_a_schedule_takes_the_place_of_a_period():
    """Of the same steps: the same bits; and one that looks at the parameters is asked."""
    by_period = RUNS[0]._replace(period=2, eval_steps=(0, 4, 8))
    free = by_period._replace(period=math.inf)
    far = schedules.when(lambda state: jnp.asarray(True), check_every=3)
    chosen = [by_period, free._replace(schedule=schedules.every(2)), free._replace(schedule=far)]
    (first, same, looking), _ = runs.run_all(problem(), chosen)
    for name, values in first.history.items():
        np.testing.assert_array_equal(same.history[name], values, err_msg=name)
    assert looking.history["updates"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("memory", [1, None])
def test_halved_steps_keep_the_time_of_a_period(memory):
    """Runs together and alone against `train` with the step sizes and linearisations spelt out."""
    momentum, halve_after = 0.8, (1, 3)
    chosen = [
        Run(seed, period, 0.1, tuple(groups.ends_of_problems(period, 4, halve_after).tolist()))
        for seed in (0, 1)
        for period in (2, 2)
    ]
    chosen = [run._replace(momentum=momentum, halve_after=halve_after) for run in chosen]
    results, _ = runs.run_all(problem(), chosen, memory=memory)
    assert chosen[0].eval_steps == (2, 6, 10, 18)
    sizes = jnp.repeat(jnp.asarray([0.1, 0.05, 0.05, 0.025]), jnp.asarray([2, 4, 4, 8]))
    for run, result in zip(chosen, results, strict=True):
        key = groups.key_of(run.seed)
        _, history = roads.train(
            MODEL.apply,
            MODEL.init(key),
            (X, Y),
            loss=ENTROPY,
            optimizer=optax.sgd(lambda step: sizes[step], momentum=momentum),
            schedule=lambda step, state: jnp.isin(step, jnp.asarray([0, 2, 6, 10])),
            num_steps=18,
            eval_steps=list(run.eval_steps),
            batch_size=6,
            key=jax.random.fold_in(key, 1),
            evaluate={"test": (X[:7], Y[:7])},
            progress=False,
        )
        assert result.history["updates"].tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(result.history["test_loss"], history["test_loss"], rtol=1e-9)


def test_gradient_descent_with_halved_steps_stays_gradient_descent():
    run = Run(0, 1, 0.1, (2, 6, 10), halve_after=(2, 6))
    (result,), _ = runs.run_all(problem(), [run])
    sizes = jnp.repeat(jnp.asarray([0.1, 0.05, 0.025]), jnp.asarray([2, 4, 4]))
    key = groups.key_of(0)
    _, history = roads.train(
        MODEL.apply,
        MODEL.init(key),
        (X, Y),
        loss=ENTROPY,
        optimizer=optax.sgd(lambda step: sizes[step]),
        schedule=every(1),
        num_steps=10,
        eval_steps=[2, 6, 10],
        batch_size=6,
        key=jax.random.fold_in(key, 1),
        evaluate={"test": (X[:7], Y[:7])},
        progress=False,
    )
    assert result.history["updates"].tolist() == [1, 5, 9]
    np.testing.assert_allclose(result.history["test_loss"], history["test_loss"], rtol=1e-9)


def test_grids_need_as_many_evaluations_of_each_run():
    with pytest.raises(ValueError, match=r"as many evaluations each, got \[1, 4\]"):
        runs.grid(
            problem(),
            {"seed": [0, 1]},
            lambda seed: Run(seed, 1, 0.1, STEPS if seed else (5,)),
        )


def test_quick_runs_are_not_stored():
    assert runs.store("quick") is None
    assert runs.store("gpu").parts[-2:] == ("_build", "runs")


@pytest.mark.parametrize("memory", [1, None])
def test_sliced_networks_run_the_same_together_and_alone(memory):
    chosen = [Run(seed, period, 0.1, STEPS) for seed in (0, 1) for period in (1, 3)]
    whole, _ = runs.run_all(problem(), chosen)
    sliced, _ = runs.run_all(problem(f=in_slices(MODEL.apply, 4)), chosen, memory=memory)
    for one, other in zip(whole, sliced, strict=True):
        for name in one.history:
            np.testing.assert_allclose(other.history[name], one.history[name], atol=1e-12)


@pytest.mark.parametrize("solved", [None, Solved(1, None, 0.1)])
def test_operations_are_those_of_a_step(solved):
    """Products with the weights of both layers: forward, along, and back but for the inputs."""
    layer = 2 * 6 * 2 * 5
    for period, products in ((1, 2 + 3), (4, 2 + 3 + 3)):
        run = Run(0, period, 0.1, STEPS, until_solved=solved is not None and period > 1)
        assert groups.step_operations(problem(solved=solved), run) == products * layer
