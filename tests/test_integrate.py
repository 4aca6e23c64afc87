"""Every engine against explicit steps, which are what it stands for."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
import roads
from iterlin import losses, schedules
from iterlin.exact import engines, modelled
from iterlin.exact import run as exact_run
from iterlin.exact.choice import ENGINES, estimate
from iterlin.exact.task import Task, quadratic, slice_size
from iterlin.runtime import checkpoints
from iterlin.runtime.chunks import OutOfTime
from iterlin.runtime.costs import kept_bytes
from iterlin.schedules import Solved
from roads import integrate, integrator

STEP_SIZE, LENGTH, PERIOD = 0.05, 60, 20
EVAL_STEPS = [0, 3, 7, 20, 45, 60]
CROSS_ENTROPY = losses.mean(losses.cross_entropy)
SQUARED = losses.mean(losses.squared_error)


def setting(loss=CROSS_ENTROPY, **changes):
    f, params, x, y = problems.network((3, 6, 4), examples=12)
    targets = jnp.argmax(y, 1) if loss is CROSS_ENTROPY else y
    settings = {
        "loss": loss,
        "schedule": schedules.every(PERIOD),
        "num_steps": LENGTH,
        "evaluate": {"test": (x, targets)},
        "eval_steps": EVAL_STEPS,
        "progress": False,
    }
    return (f, params, (x, targets)), settings | changes


def by_steps(problem, settings, step_size=STEP_SIZE):
    return roads.train(*problem, optimizer=step_size, **settings)


def assert_same(found, expected, tolerance):
    (state, history), (other, reference) = found, expected
    np.testing.assert_allclose(
        problems.flat(state.params), problems.flat(other.params), atol=tolerance
    )
    for name, values in reference.items():
        np.testing.assert_allclose(history[name], values, atol=tolerance, err_msg=name)
    assert int(state.updates) == int(other.updates)
    assert int(state.anchored_at) == int(other.anchored_at)


def largest_curvature(problem, loss, params):
    """lambda_max(J^T H J) by dense matrices."""
    f, _, (x, y) = problem
    jacobian, outputs = problems.dense(f, params, x), f(params, x)
    hessian = jax.hessian(lambda u: loss(u.reshape(outputs.shape), y))(outputs.reshape(-1))
    return np.linalg.eigvalsh(jacobian.T @ hessian @ jacobian)[-1]


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize(
    ("engine", "loss"),
    [
        ("closed_form", SQUARED),
        ("function_space", SQUARED),
        ("function_space", CROSS_ENTROPY),
        ("kept_steps", CROSS_ENTROPY),
        ("steps", CROSS_ENTROPY),
    ],
)
def test_exact_engines_are_the_steps_to_rounding(engine, loss, penalty, monkeypatch):
    monkeypatch.setattr(engines, "DESCENT_BURST", 6)
    problem, settings = setting(loss, penalty=penalty)
    found = integrate(*problem, step_size=STEP_SIZE, engine=engine, **settings)
    assert_same(found, by_steps(problem, settings), 1e-10)
    state, history = found
    if engine == "closed_form":  # one decomposition a stop, one of which is no look: at 40
        assert history["evaluations"].tolist() == [0, 1, 2, 3, 5, 6]
        largest = largest_curvature(problem, loss, state.anchor) + 2 * penalty
        np.testing.assert_allclose(history["stability"][-1], STEP_SIZE * largest)
    else:
        assert history["evaluations"].tolist() == EVAL_STEPS


@pytest.mark.parametrize("engine", ["function_space", "kept_steps"])
@pytest.mark.parametrize("period", [PERIOD, 5])
@pytest.mark.parametrize("reached_at", [7, 20])  # between two linearisations, and at one
def test_a_target_loss_ends_a_run_at_the_linearisation_that_sees_it(engine, period, reached_at):
    problem, settings = setting(schedule=schedules.every(period))
    _, history = by_steps(problem, settings | {"evaluate": {"train": problem[2]}})
    settings["target_loss"] = float(history["train_loss"][EVAL_STEPS.index(reached_at)]) + 1e-9
    state, _ = found = integrate(*problem, step_size=STEP_SIZE, engine=engine, **settings)
    expected = by_steps(problem, settings)
    assert_same(found, expected, 1e-10)
    assert int(state.converged_at) == int(expected[0].converged_at)
    assert int(state.converged_at) == -(-reached_at // period) * period
    settings["target_loss"] = 100.0  # from the start
    state, _ = integrate(*problem, step_size=STEP_SIZE, engine=engine, **settings)
    assert int(state.converged_at) == 0


def test_flow_is_what_the_steps_tend_to():
    distances = []
    for shrink in (1, 10):
        length = 60 * shrink
        problem, settings = setting(
            num_steps=length, schedule=schedules.every(length // 3), eval_steps=[length]
        )
        size = STEP_SIZE / shrink
        settings |= {"step_size": size, "tolerance": 1e-8}
        flow, _ = integrate(*problem, engine="flow", **settings)
        del settings["step_size"], settings["tolerance"]
        steps, _ = by_steps(problem, settings, size)
        distances.append(np.max(np.abs(problems.flat(flow.params) - problems.flat(steps.params))))
    # Of first order in the step size, with nothing left over.
    assert distances[0] < 5e-3
    assert distances[1] == pytest.approx(distances[0] / 10, rel=0.1)


@pytest.mark.parametrize("engine", ["function_space", "function_space_flow"])
def test_in_function_space_the_kernel_is_kept(engine, monkeypatch):
    class Kept(Exception):
        pass

    def keep(*_, **__):
        raise Kept

    monkeypatch.setattr(modelled, "kept_ntk", keep)
    problem, settings = setting(step_size=STEP_SIZE)
    with pytest.raises(Kept):
        integrate(*problem, engine=engine, **settings)


def test_flow_is_the_same_with_the_kernel(monkeypatch):
    """However often it returns on its way."""
    monkeypatch.setattr(engines, "FLOW_BURST", 3)
    problem, settings = setting(step_size=STEP_SIZE, tolerance=1e-8)
    found = [
        integrate(*problem, engine=engine, **settings) for engine in ("flow", "function_space_flow")
    ]
    assert_same(found[0], (found[1][0], {"test_loss": found[1][1]["test_loss"]}), 1e-9)
    assert not bool(found[0][0].ended)
    stability = STEP_SIZE * largest_curvature(problem, CROSS_ENTROPY, problem[1])
    assert 0.9 * stability < found[0][1]["stability"][0] < 1.001 * stability


def test_period_of_a_hundred_million_takes_thousands_of_products():
    steps = 3 * 10**8
    problem, settings = setting(
        num_steps=steps, schedule=schedules.every(10**8), eval_steps=[0, 10**8, steps]
    )
    state, history = integrate(*problem, step_size=0.01, engine="flow", **settings)
    assert int(state.updates) == 2
    assert history["updates"].tolist() == [0, 0, 2]
    assert history["evaluations"][-1] < 1e5
    assert set(history["engine"]) <= {"flow", "function_space_flow"}
    assert history["test_loss_proxy"][1] < 1e-2
    assert np.all(history["stability"] < 0.1)


def test_minimum_is_the_end_of_the_penalised_flow():
    long = 10**6
    problem, settings = setting(
        penalty=0.05, num_steps=long, schedule=schedules.every(long // 2), eval_steps=[long // 2]
    )
    ends = [
        integrate(*problem, step_size=0.01, engine=engine, tolerance=1e-7, **settings)
        for engine in ("flow", "minimum", "function_space_minimum")
    ]
    flow, *minima = (problems.flat(state.params) for state, _ in ends)
    for minimum in minima:
        np.testing.assert_allclose(minimum, flow, atol=1e-4)
    assert {int(state.updates) for state, _ in ends} == {1}


@pytest.mark.parametrize("engine", ["minimum", "function_space_minimum"])
def test_a_minimum_that_is_none_is_a_divergence(engine):
    """Where nothing is a number there is no gradient to follow either."""
    (f, params, (x, y)), settings = setting(
        penalty=0.1, schedule=schedules.every(3), num_steps=6, eval_steps=[3, 6]
    )
    x = x.at[0].set(jnp.nan)
    state, _ = integrate(f, params, (x, y), step_size=0.01, engine=engine, **settings)
    assert int(state.diverged_at) == 3


def test_a_loss_is_quadratic_in_outputs_near_targets_of_their_kind():
    """Its factor and where it ends; none for counted targets, several of them, and other losses."""
    y = jax.random.normal(jax.random.key(0), (3, 2))
    factor, targets = quadratic(SQUARED, y)
    move = jax.random.normal(jax.random.key(1), y.shape)
    np.testing.assert_allclose(factor * (move - targets), jax.grad(SQUARED)(move, y), atol=1e-12)

    def summed(outputs, y):
        return sum(jnp.vdot(outputs - t, outputs - t) for t in jax.tree.leaves(y))

    assert quadratic(summed, y)[0] == pytest.approx(2.0)
    assert quadratic(summed, {"a": y, "b": y}) is None
    assert quadratic(summed, jnp.ones((3, 2), jnp.int32)) is None
    assert quadratic(CROSS_ENTROPY, jnp.argmax(y, 1)) is None


def test_as_many_examples_go_together_as_there_is_memory_for():
    f, params, x, _ = problems.network((3, 6, 4), examples=12)
    needed = kept_bytes(f, params, x)
    sizes = [slice_size(f, params, x, bytes) for bytes in (needed, needed - 1, needed // 2, 1)]
    assert sizes == [None, 11, 6, 1]


@pytest.mark.parametrize("factor", [1e-20, 1.0, 1e20])
def test_a_quadratic_loss_is_told_from_others_in_any_unit(factor):
    y = jax.random.normal(jax.random.key(0), (3, 2)).at[0, 0].set(0)
    for size in (1e6, 1e-6):
        found, targets = quadratic(lambda u, y: factor * losses.squared_error(u, y), size * y)
        assert found == pytest.approx(factor, rel=1e-8)
        np.testing.assert_allclose(targets, size * y, rtol=1e-8)
    weights = jnp.arange(1.0, 7.0).reshape(3, 2)
    for other in (
        lambda e: e**4,
        lambda e: weights * e**2,
        lambda e: jnp.where(e < 10, e**2, 20 * e - 100),  # far out it is not
        lambda e: jnp.where(jnp.sum(e**2) < 100, 1, 2) * e**2,  # nor here: another one
        lambda e: -(e**2),
        jnp.zeros_like,
    ):
        assert quadratic(lambda u, y, of=other: factor * jnp.sum(of(u - y)), 0 * y) is None


@pytest.mark.parametrize("engine", ["flow", "function_space"])
def test_when_solved_ends_a_linearisation_early(engine):
    problem, settings = setting(
        schedule=schedules.when_solved(10**6), num_steps=600, eval_steps=[0, 600]
    )
    state, history = integrate(
        *problem, step_size=0.05, engine=engine, solved=Solved(1, accuracy=0.6), **settings
    )
    assert int(state.updates) > 1
    assert history["test_loss"][-1] < history["test_loss"][0]


def test_a_flow_is_solved_after_a_time_whatever_its_steps():
    """The steps that it stands for are that time over their size."""
    times = []
    for step_size in (0.05, 0.0125):
        steps = round(30 / step_size)
        problem, settings = setting(
            schedule=schedules.when_solved(10**6), num_steps=steps, eval_steps=[0, steps]
        )
        rule = Solved(1, accuracy=0.6)
        state, _ = integrate(*problem, step_size=step_size, engine="flow", solved=rule, **settings)
        assert int(state.updates) > 1
        times.append(int(state.anchored_at) * step_size)
    assert abs(times[0] - times[1]) < 0.05 * int(state.updates)


def test_solved_stops_where_the_steps_of_train_do():
    rule = Solved(5, accuracy=0.6)
    problem, settings = setting(
        schedule=schedules.when_solved(10**6), num_steps=600, eval_steps=[0, 600], solved=rule
    )
    found = integrate(*problem, step_size=0.05, engine="function_space", **settings)
    reference = by_steps(problem, settings, 0.05)
    assert int(reference[0].updates) > 0
    assert_same(found, reference, 1e-9)


@pytest.mark.parametrize("stopped_by", ["deadline", "crash"])
def test_goes_on_from_its_checkpoint(tmp_path, monkeypatch, stopped_by):
    """Written at the deadline, however short ago the last was; and before a crash, now and then."""
    (f, params, data), settings = setting(num_steps=2000, eval_steps=[0, 30, 500, 2000])
    shared = {name: settings.pop(name) for name in ("loss", "evaluate")}
    settings["schedule"], settings["at"] = schedules.every(700), settings.pop("eval_steps")
    run = integrator(f, data, step_size=0.01, engine="flow", **shared)
    whole = run(params, **settings)
    settings["checkpoint"] = tmp_path / "run.npz"
    began = time.monotonic()
    looks = iter([False, False, False, True])

    def look():
        ends = next(looks, False)
        if ends and stopped_by == "crash":
            raise KeyboardInterrupt
        return ends

    monkeypatch.setattr(exact_run, "CHECKPOINT", 0.0 if stopped_by == "crash" else 1e9)
    monkeypatch.setattr(exact_run, "out_of_time", look)
    with pytest.raises(KeyboardInterrupt if stopped_by == "crash" else OutOfTime):
        run(params, **settings)
    kept = settings["checkpoint"].read_bytes()
    again = run(params, **settings)
    assert settings["checkpoint"].read_bytes() != kept
    np.testing.assert_array_equal(problems.flat(again[0].params), problems.flat(whole[0].params))
    for name in whole[1].keys() - {"seconds"}:
        np.testing.assert_array_equal(again[1][name], whole[1][name])
    assert np.all(np.diff(again[1]["seconds"]) > 0)
    assert again[1]["seconds"][-1] < time.monotonic() - began  # of both parts, nothing else
    other = integrator(f, data, step_size=0.02, engine="flow", **shared)
    with pytest.raises(checkpoints.CheckpointError, match="other settings"):
        other(params, **settings)
    with pytest.raises(checkpoints.CheckpointError, match="other settings"):
        run(params, **settings | {"schedule": schedules.every(701)})
    aiming = integrator(f, data, step_size=0.01, engine="flow", target_loss=1e-6, **shared)
    with pytest.raises(checkpoints.CheckpointError, match="other settings"):
        aiming(params, **settings)


def test_runs_of_an_integrator_share_its_programs(monkeypatch):
    """Neither parameters nor periods nor lengths compile anything anew."""
    (f, params, data), settings = setting()
    made = []

    def flow(task):
        made.append(engines.GradientFlow(task))
        return made[-1]

    monkeypatch.setitem(ENGINES, "flow", flow)
    run = integrator(f, data, loss=settings["loss"], step_size=0.01, engine="flow")
    for period, scale in ((20, 1.0), (30, 1.1)):
        start = jax.tree.map(lambda leaf, scale=scale: scale * leaf, params)
        run(start, schedule=schedules.every(period), num_steps=3 * period)
    [engine] = made
    assert [engine._go_on._cache_size(), engine._parameters._cache_size()] == [1, 1]
    assert engine._start._cache_size() == 2  # the first linearisation, and one after another


def test_times_beyond_what_single_precision_counts_are_arrived_at():
    """In float32 the time of this many steps is nearest to that of a step less."""
    far = 28_942_601
    assert round(float(np.float32(far) * np.float32(0.01)) / 0.01) < far
    (f, params, (x, y)), settings = setting(
        schedule=schedules.never(), num_steps=far, eval_steps=[far]
    )
    params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, x))
    settings["evaluate"] = {"test": (x, y)}
    state, _ = integrate(f, params, (x, y), step_size=0.01, engine="flow", **settings)
    assert int(state.step) == far
    assert not bool(state.ended)
    assert problems.flat(state.params).dtype == jnp.float32


@pytest.mark.parametrize("engine", ["flow", "function_space"])
def test_what_is_not_finite_ends_the_run_as_diverged(engine):
    """The second linearisation is of a network whose outputs overflow."""
    (f, params, data), settings = setting(num_steps=60, eval_steps=[0, 20, 40, 60])

    def overflowing(p, x):
        pairs = zip(jax.tree.leaves(p), jax.tree.leaves(params), strict=True)
        moved = jnp.stack([jnp.any(a != b) for a, b in pairs])
        return f(p, x) + jnp.where(jnp.any(moved), jnp.inf, 0.0)

    state, _ = integrate(overflowing, params, data, step_size=STEP_SIZE, engine=engine, **settings)
    assert int(state.diverged_at) == 40
    assert int(state.step) == 60
    assert np.isfinite(problems.flat(state.params)).all()


def test_a_schedule_may_look_at_solved_where_nothing_is_ever_solved():
    """Without a rule that solves, how it looks is no reason to follow it step by step."""

    def schedule(step, state):
        return ~state.solved & (step % PERIOD == 0)

    problem, settings = setting(schedule=schedule)
    found = integrate(*problem, step_size=STEP_SIZE, engine="function_space", **settings)
    assert_same(found, by_steps(problem, settings), 1e-10)
    with pytest.raises(ValueError, match="looks at `solved` in another way"):
        integrate(
            *problem, step_size=STEP_SIZE, engine="function_space", solved=Solved(5), **settings
        )


def moved_far(step, state):
    """A schedule that looks where training has led."""
    distance = optax.tree.norm(jax.tree.map(jnp.subtract, state.params, state.anchor))
    return distance > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "magic"}, "engine"),
        ({"engine": "closed_form"}, "squared error"),
        ({"engine": "minimum"}, "'minimum' needs a positive penalty"),
        ({"engine": "function_space_minimum"}, "'function_space_minimum' needs a positive penalty"),
        ({"engine": "function_space", "memory_limit": 100}, "memory_limit"),
        ({"memory_limit": 0}, "memory_limit must be a positive integer, got 0"),
        ({"step_size": 0.0}, "step size"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"num_steps": 2**31}, "num_steps"),
        ({"eval_steps": [-1, LENGTH]}, r"watch.at must lie in \[0, "),
        ({"schedule": moved_far}, "looks at the parameters"),
        ({"dtype": jnp.bfloat16}, "needs float32 or float64, and there is bfloat16"),
    ],
)
def test_refuses_bad_input_by_name(changes, message):
    problem, settings = setting()
    if "num_steps" in changes:
        settings["eval_steps"] = [0]
    arguments = {"step_size": STEP_SIZE, "engine": "flow"} | settings | changes
    if dtype := arguments.pop("dtype", None):
        problem = jax.tree.map(lambda leaf: leaf.astype(dtype), problem[1])
        problem = (setting()[0][0], problem, setting()[0][2])
    with pytest.raises(ValueError, match=message):
        integrate(*problem, **arguments)


def test_a_closed_form_does_not_look_for_when_a_problem_is_solved():
    problem, settings = setting(
        SQUARED,
        schedule=schedules.when_solved(30),
        solved=Solved(5, accuracy=None, gradient=0.1),
    )
    with pytest.raises(ValueError, match="'closed_form' does not look for when"):
        integrate(*problem, step_size=STEP_SIZE, engine="closed_form", **settings)


def test_auto_follows_a_schedule_that_looks_at_parameters_step_by_step():
    problem, settings = setting(schedule=moved_far)
    found = integrate(*problem, step_size=STEP_SIZE, **settings)
    assert set(found[1]["engine"]) == {"steps"}
    np.testing.assert_array_equal(
        problems.flat(found[0].params), problems.flat(by_steps(problem, settings)[0].params)
    )


def test_auto_takes_steps_where_half_precision_leaves_no_other():
    (f, params, (x, y)), settings = setting(num_steps=10, eval_steps=[10])
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    _, history = integrate(f, params, (x, y), step_size=STEP_SIZE, **settings)
    assert set(history["engine"]) == {"steps"}


def test_an_integrator_looks_where_its_watch_says_unless_told():
    (f, params, data), settings = setting()
    shared = {"loss": settings["loss"], "engine": "function_space", "eval_steps": [5, 10]}
    run = integrator(f, data, step_size=STEP_SIZE, **shared)
    for at, expected in ((None, [5, 10, 20]), ([7], [7, 20])):
        _, history = run(params, schedule=schedules.every(10), num_steps=20, at=at)
        assert history["step"].tolist() == expected


def test_steps_tell_how_long_they_took_in_all():
    problem, settings = setting()
    began = time.monotonic()
    _, history = integrate(*problem, step_size=STEP_SIZE, engine="steps", **settings)
    assert np.isnan(history["seconds"][:-1]).all()
    assert 0 < history["seconds"][-1] < time.monotonic() - began


def test_auto_takes_what_it_estimates_to_be_cheapest(capsys):
    long = 10**7
    problem, settings = setting(
        num_steps=long, schedule=schedules.every(long // 2), eval_steps=[long], progress=None
    )
    _, history = integrate(*problem, step_size=0.01, **settings)
    said = capsys.readouterr().err
    assert "integrate: " in said
    assert "estimated operations: steps" in said
    assert history["evaluations"][-1] < 1e5
    assert set(history["engine"]) <= {"flow", "function_space_flow"}
    problem, settings = setting(SQUARED, num_steps=long, eval_steps=[long])
    settings["schedule"] = schedules.every(long // 2)
    _, history = integrate(*problem, step_size=0.01, **settings)
    assert history["evaluations"][-1] == 2  # two decompositions
    assert set(history["engine"]) == {"closed_form"}


@pytest.mark.parametrize(("stability", "small"), [(0.095, True), (0.125, False)])
def test_a_flow_stands_for_small_steps_alone(stability, small):
    problem, settings = setting()
    f, params, data = problem
    step_size = stability / largest_curvature(problem, settings["loss"], params)
    task = Task(f, data, settings["loss"], step_size, 0.0, 1e-3, 2**30, None)
    found = estimate(task, params, period=10, num_steps=100)
    assert ({"flow", "function_space_flow"} <= set(found)) == small
    assert ("flow" in found) == small


def test_an_estimate_leaves_out_a_kernel_that_cannot_be_built():
    """The kernel fits, but what it is built from does not: the other engines are still there."""
    (f, params, (x, y)), settings = setting()
    few = (x[:1], y[:1])
    task = Task(f, few, settings["loss"], 1e-3, 0.0, 1e-3, 2**30, None)
    found = estimate(task, params, period=10, num_steps=100)
    kernel = 8 * f(params, few[0]).size ** 2
    tight = estimate(task._replace(memory_limit=kernel), params, period=10, num_steps=100)
    assert {"function_space", "function_space_flow"} <= set(found)
    assert set(tight) == set(found) - {"function_space", "function_space_flow"}


def test_the_kernel_of_the_last_anchor_makes_room_before_the_next(monkeypatch):
    x, y = jnp.eye(3), jnp.array([0, 1, 1])
    loss = losses.mean(losses.cross_entropy)
    task = Task(lambda p, x: x @ p, (x, y), loss, 0.1, 0.0, 1e-3, 2**20, None)
    engine = ENGINES["function_space"](task)
    kept, held = modelled.kept_ntk, []

    def noted(*arguments, **settings):
        held.append(engine._kernel[1])
        return kept(*arguments, **settings)

    monkeypatch.setattr(modelled, "kept_ntk", noted)
    for scale in (0.0, 1.0):
        engine.begin(scale * jnp.ones((3, 2)))
    assert len(held) == 2
    assert not any(jax.tree.leaves(held))
    assert jax.tree.leaves(engine._kernel[1])
