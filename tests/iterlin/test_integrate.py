"""Every engine beside the explicit steps that it stands for."""

import time
from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
import roads
from iterlin import Algorithm, Step, Watch
from iterlin.exact import engines
from iterlin.exact.checks import check_engine
from iterlin.exact.choice import ENGINES, choose
from iterlin.exact.integrator import train_by_engine
from iterlin.exact.task import Task, quadratic
from iterlin.kernels.gradient_flow import eigenmodes
from iterlin.training import loop, losses, schedules
from iterlin.training.schedules import Solved
from refusals import fails, refused

by_engine = roads.train
STEP_SIZE, LENGTH, PERIOD = 0.05, 60, 20
EVAL_STEPS = [0, 3, 7, 20, 45, 60]
CROSS_ENTROPY = losses.mean(losses.cross_entropy)
SQUARED = losses.mean(losses.squared_error, over="examples")


def when_solved(*rule, **more):
    return {"schedule": schedules.when_solved(Solved(*rule, **more), max_period=10**6)}


def setting(loss=CROSS_ENTROPY, **changes):
    f, params, x, y = problems.network((3, 6, 4), examples=12)
    data = x, (jnp.argmax(y, 1) if loss is CROSS_ENTROPY else y)
    settings = {"loss": loss, "schedule": PERIOD, "num_steps": LENGTH, "progress": False}
    settings |= {"evaluate": {"test": data}, "eval_steps": EVAL_STEPS}
    return (f, params, data), settings | changes


def linear(x, y, loss=SQUARED, step_size=0.1, **changes):
    """A task that is its own linearisation, and its parameters, all zero."""
    params = jnp.zeros((x.shape[1], y.shape[1]))
    task = Task(lambda p, x: x @ p, (x, y), loss, step_size, 0.0, 1e-3, 2**30, None)
    return params, task._replace(**changes)


def classify(step_size=1e-3, **changes):
    """The parameters and the task of the network in `setting`."""
    f, params, data = setting()[0]
    task = Task(f, data, CROSS_ENTROPY, step_size, 0.0, 1e-3, 2**30, None)
    return params, task._replace(**changes)


def by_steps(problem, settings, step_size=STEP_SIZE):
    return roads.train(*problem, optimizer=step_size, **settings)


def largest_curvature(problem, loss, params):
    """lambda_max(J^T H J) by dense matrices."""
    f, _, (x, y) = problem
    jacobian, outputs = problems.dense(f, params, x), f(params, x)
    hessian = jax.jit(jax.hessian(lambda u: loss(u.reshape(outputs.shape), y)))(outputs.ravel())
    return np.linalg.eigvalsh(jacobian.T @ hessian @ jacobian)[-1]


@pytest.mark.parametrize(
    ("engine", "loss"),
    [("closed_form", SQUARED), ("function_space", CROSS_ENTROPY), ("kept_steps", CROSS_ENTROPY)],
)
def test_exact_engines_are_the_steps_to_rounding(engine, loss, monkeypatch):
    monkeypatch.setattr(engines, "DESCENT_BURST", 6)
    problem, settings = setting(loss, penalty=0.3)
    began = time.monotonic()
    found = by_engine(*problem, step_size=STEP_SIZE, engine=engine, **settings)
    assert 0 < found[1]["seconds"][-1] < time.monotonic() - began
    problems.assert_same_run(found, by_steps(problem, settings), 1e-10)
    if engine == "closed_form":
        largest = largest_curvature(problem, loss, found[0].anchor) + 2 * 0.3
        np.testing.assert_allclose(found[1]["stability"][-1], STEP_SIZE * largest)


def test_a_closed_form_decomposes_once_however_often_it_is_looked_at(monkeypatch):
    decomposed = []

    def counted(*arguments, **settings):
        jax.debug.callback(lambda: decomposed.append(1))
        return eigenmodes(*arguments, **settings)

    monkeypatch.setattr(engines, "eigenmodes", counted)
    problem, settings = setting(SQUARED, schedule=LENGTH // 2)
    settings["eval_steps"] = list(range(LENGTH + 1))
    _, history = by_engine(*problem, step_size=STEP_SIZE, engine="closed_form", **settings)
    jax.effects_barrier()
    assert len(decomposed) == history["evaluations"][-1] == 2


@pytest.mark.parametrize(
    ("engine", "loss", "period", "reached_at"),
    [
        ("function_space", CROSS_ENTROPY, 5, 7),  # between two linearisations
        ("closed_form", SQUARED, PERIOD, 0),
    ],
)
def test_a_target_loss_ends_a_run_at_the_next_linearisation(engine, loss, period, reached_at):
    problem, settings = setting(loss, schedule=period)
    _, history = by_steps(problem, settings | {"evaluate": {"train": problem[2]}})
    settings["target_loss"] = float(history["train_loss"][EVAL_STEPS.index(reached_at)]) + 1e-9
    state, _ = found = by_engine(*problem, step_size=STEP_SIZE, engine=engine, **settings)
    problems.assert_same_run(found, by_steps(problem, settings), 1e-10)
    assert int(state.converged_at) == -(-reached_at // period) * period


def test_flow_is_the_limit_of_small_steps():
    distances = []
    for shrink in (10, 100):
        length, size = LENGTH * shrink, STEP_SIZE / shrink
        changes = {"num_steps": length, "schedule": length // 3, "eval_steps": [length]}
        problem, settings = setting(**changes)
        flow, _ = by_engine(*problem, engine="flow", step_size=size, tolerance=1e-8, **settings)
        steps, _ = by_steps(problem, settings, size)
        distances.append(np.max(np.abs(problems.flat(flow.params) - problems.flat(steps.params))))
    # The distance is of first order in the step size, with nothing left over.
    assert distances[0] < 5e-4
    assert distances[1] == pytest.approx(distances[0] / 10, rel=0.1)


def test_flow_is_the_same_with_the_kernel_and_in_short_bursts(monkeypatch):
    monkeypatch.setattr(engines, "FLOW_BURST", 3)
    problem, settings = setting(step_size=STEP_SIZE, tolerance=1e-8)
    state, history = by_engine(*problem, engine="flow", **settings)
    other, reference = by_engine(*problem, engine="function_space_flow", **settings)
    expected = other, {"test_loss": reference["test_loss"]}
    problems.assert_same_run((state, history), expected, 1e-9)
    assert not bool(state.ended)
    stability = STEP_SIZE * largest_curvature(problem, CROSS_ENTROPY, problem[1])
    assert 0.9 * stability < history["stability"][0] < 1.001 * stability


def test_times_that_single_precision_cannot_count_are_reached():
    """In float32 the time of this many steps is nearest to that of a step less."""
    far = 28_942_601
    assert round(float(np.float32(far) * np.float32(0.01)) / 0.01) < far
    changes = {"schedule": schedules.never(), "num_steps": far, "eval_steps": [far]}
    (f, *given), settings = setting(**changes, evaluate={})
    state, _ = by_engine(f, *problems.single(given), step_size=0.01, engine="flow", **settings)
    assert int(state.step) == far
    assert not bool(state.ended)
    assert problems.flat(state.params).dtype == jnp.float32


def test_minimum_is_the_end_of_the_penalised_flow():
    half = 3 * 10**4
    changes = {"schedule": half, "eval_steps": [half], "num_steps": 2 * half, "penalty": 0.05}
    problem, settings = setting(step_size=0.01, tolerance=1e-7, **changes)
    flow, _ = by_engine(*problem, engine="flow", **settings)
    for engine in ("minimum", "function_space_minimum"):
        state, _ = by_engine(*problem, engine=engine, **settings)
        ours, theirs = problems.flat(state.params), problems.flat(flow.params)
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
        assert int(state.updates) == int(flow.updates) == 1


def test_a_minimum_is_ridge_regression_also_where_an_example_never_moves():
    """The example at 0 tells the model nothing, and is no sign of a failure."""
    x = jnp.array([[1.0, 2.0], [0.0, 0.0], [-1.0, 0.5]])
    y = jnp.array([[1.0], [1.0], [2.0]])
    params, task = linear(x, y, penalty=0.1, tolerance=1e-8)
    engine = ENGINES["minimum"](task)
    end = engine.forward(engine.begin(params), 10)
    assert (end.steps, end.failed) == (10, False)
    ridge = jnp.linalg.solve(x.T @ x + 3 * 2 * 0.1 * jnp.eye(2), x.T @ y)
    np.testing.assert_allclose(engine.parameters(end), ridge, atol=1e-8)


@pytest.mark.parametrize("engine", ["flow", "minimum"])
def test_outputs_that_overflow_end_the_run_as_diverged(engine):
    """The second linearisation is of a network whose outputs overflow."""
    (f, params, data), settings = setting(eval_steps=[0, 20, 40, 60], penalty=0.1)

    def overflowing(p, x):
        moved = jax.tree.map(lambda a, b: jnp.any(a != b), p, params)
        return f(p, x) + jnp.where(jnp.any(jnp.stack(jax.tree.leaves(moved))), jnp.inf, 0.0)

    state, _ = by_engine(overflowing, params, data, step_size=STEP_SIZE, engine=engine, **settings)
    assert (int(state.diverged_at), int(state.step)) == (40, 60)
    assert np.isfinite(problems.flat(state.params)).all()


def test_one_parameter_that_is_not_finite_ends_the_run_as_diverged():
    def f(p, x):
        return x @ p["a"] + jnp.array([1e200, 1.0]) @ p["b"]

    params, data = {"a": jnp.zeros(2), "b": jnp.zeros(2)}, (jnp.eye(2), jnp.full(2, 1e200))
    settings = {"loss": SQUARED, "step_size": 0.1, "schedule": 1, "num_steps": 1}
    state, _ = by_engine(f, params, data, engine="kept_steps", **settings)
    assert int(state.diverged_at) == 1


@pytest.mark.parametrize("factor", [1e-20, 1e20])
def test_a_quadratic_loss_is_found_in_any_unit(factor):
    y = jnp.abs(problems.normal(3, 2)).at[0, 0].set(0)
    for size in (1e6, 1e-6):
        found, targets = quadratic(lambda u, y: factor * losses.squared_error(u, y), size * y)
        assert found == pytest.approx(factor, rel=1e-8)
        np.testing.assert_allclose(targets, size * y, rtol=1e-8)


def test_a_quadratic_loss_is_told_from_others():
    y = jnp.abs(problems.normal(3, 2))
    weights = jnp.arange(1.0, 7.0).reshape(3, 2)
    for other in (
        lambda e: e**4,
        lambda e: weights * e**2,
        lambda e: jnp.where(e < 10, e**2, 20 * e - 100),  # not quadratic far out
        lambda e: -(e**2),
        jnp.zeros_like,
    ):
        assert quadratic(lambda u, y, of=other: 1e-20 * jnp.sum(of(u - y)), 0 * y) is None
    assert quadratic(lambda u, y: jnp.sum((u - y["a"]) ** 2), {"a": y, "b": y}) is None
    assert quadratic(losses.squared_error, jnp.ones((3, 2), jnp.int32)) is None
    half = (9 * y).astype(jnp.bfloat16)  # the outputs are of a wider type
    assert quadratic(lambda u, y: jnp.sum(jnp.log(jnp.cosh(u - y))), half) is None
    assert quadratic(losses.squared_error, half)[0] == pytest.approx(1)


def test_the_closed_form_of_a_float64_network_is_exact_for_float32_targets():
    y = jnp.full((3, 1), 0.1, jnp.float32)
    params, task = linear(jnp.eye(3), y, losses.mean(losses.squared_error))
    engine = ENGINES["closed_form"](task)
    end = engine.forward(engine.begin(params), 10)
    steps = (1 - (1 - 0.1 / 3) ** 10) * y.astype(float)
    np.testing.assert_allclose(engine.parameters(end), steps, rtol=1e-12)


def test_the_closed_form_says_that_integer_targets_are_not_for_it():
    params, task = linear(jnp.eye(3), jnp.ones((3, 1), jnp.int32))
    with pytest.raises(ValueError, match="of floating point targets: take 'flow'"):
        check_engine("closed_form", task, params)


def sequences(params, x):
    return jnp.einsum("nd,dtv->ntv", x, params["slope"]) + params["places"]


@pytest.mark.parametrize("kind", ["examples", "places of sequences"])
def test_solved_stops_where_the_steps_of_train_do(kind):
    changes = {"num_steps": 600, "eval_steps": [0, 600]}
    problem, settings = setting(**changes, **when_solved(5, accuracy=0.6))
    engine = "function_space"
    if kind != "examples":  # each place counts by itself, and all must be right
        params = {"slope": jnp.zeros((1, 2, 3)), "places": jnp.arange(6.0).reshape(1, 2, 3)}
        problem = sequences, params, (jnp.array([[2.0], [-1.0]]), jnp.array([[0, 1], [2, 0]]))
        settings |= {"evaluate": {}, **when_solved(4, accuracy=1.0)}
        engine = "kept_steps"
    found = by_engine(*problem, step_size=0.05, engine=engine, **settings)
    assert int(found[0].updates) > 0
    problems.assert_same_run(found, by_steps(problem, settings), 1e-9)


@pytest.mark.parametrize("name", ["flow", "kept_steps"])
def test_solved_is_a_gradient_that_has_fallen_far_enough(name, monkeypatch):
    """Of two examples that do not touch, each gradient falls as exp(-t / 2), or by each step."""
    monkeypatch.setattr(engines, "FLOW_BURST", 3)
    rule, targets = Solved(5, accuracy=None, gradient=0.25), jnp.array([[3.0], [4.0]])
    params, task = linear(jnp.eye(2), targets, step_size=0.02, tolerance=1e-6, solved=rule)
    engine = ENGINES[name](task)

    def ends(params, steps):
        position = engine.begin(params)
        while not (position.solved or position.failed or position.steps >= steps):
            position = engine.forward(position, steps)
        return position, 1 - engine.parameters(position) / targets

    end, left = ends(params, 1000)
    assert end.solved
    if name == "flow":
        assert np.all((left > 0.1) & (left < 0.25 + 1e-6))
        np.testing.assert_allclose(left, np.exp(-end.steps * 0.02 / 2), rtol=0.02)
        _, left = ends(params, 30)  # before it is solved
        np.testing.assert_allclose(left, np.exp(-30 * 0.02 / 2), atol=1e-4)
    else:
        assert end.steps == 140  # 0.99^138 is the first below a quarter; each fifth is seen
        np.testing.assert_allclose(left, 0.99**140)
        resting, _ = ends(targets, 1000)  # with nothing left to fall
        assert (resting.steps, resting.solved) == (5, True)


def test_a_linearisation_lasts_a_step_at_least_however_soon_it_is_solved():
    """A flow's own steps are shorter than one of the steps that it stands for here."""
    settings = {"loss": SQUARED, "step_size": 1e3, "num_steps": 3, "engine": "flow"}
    problem = lambda p, x: x @ p, jnp.zeros(2), (jnp.eye(2), jnp.ones(2))
    state, _ = by_engine(*problem, **settings, **when_solved(1, accuracy=None, gradient=0.999))
    assert (int(state.step), int(state.updates)) == (3, 2)


def moved_far(state):
    return optax.tree.norm(jax.tree.map(jnp.subtract, state.params, state.anchor)) > 1


@pytest.mark.parametrize(
    ("schedule", "stopped_by"),
    [(schedules.every(700), "crash"), (schedules.when(moved_far, check_every=100), "deadline")],
)
def test_resume_is_bit_identical(schedule, stopped_by, tmp_path, monkeypatch):
    """The checkpoint is written at a deadline, however recent the last, and regularly before."""
    (f, params, data), settings = setting()
    step = Step(Algorithm(f, CROSS_ENTROPY, 0.01), schedule)
    shared = {"engine": "flow", "num_steps": 2000}
    shared["watch"] = Watch(settings["evaluate"], at=[0, 30, 500, 2000])

    def run(stop_at=None, **checkpoint):
        """The run, and how often it has looked whether it is out of time."""
        looks = count(1)

        def look():
            stops = next(looks) == stop_at
            if stops and stopped_by == "crash":
                raise KeyboardInterrupt
            return stops

        found = train_by_engine(step, params, data, **shared, **checkpoint, out_of_time=look)
        return found, next(looks) - 1

    whole, in_all = run()
    assert int(whole[0].updates) > 1
    kept = {"checkpoint": tmp_path / "run.npz"}
    monkeypatch.setattr(loop, "CHECKPOINT", 0.0 if stopped_by == "crash" else 60.0)
    monkeypatch.setattr(time, "monotonic", count(step=1e-3).__next__)  # which all calls agree on
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt if stopped_by == "crash" else loop.OutOfTime):
        run(in_all - 2, **kept)
    again, looks = run(**kept)
    assert looks < in_all  # it did not start over
    problems.assert_same_run(again, whole)
    assert np.all(np.diff(again[1]["seconds"]) > 0)
    assert again[1]["seconds"][-1] < time.monotonic() - began  # of both parts, nothing else
    assert run(**kept)[1] == 0  # of a run that has ended


HALF = optax.tree.cast(setting()[0][1], jnp.bfloat16)

GIVEN = dict(zip(("f", "params", "data"), setting()[0], strict=True)) | setting()[1]
GIVEN |= {"step_size": STEP_SIZE, "engine": "flow"}
test_bad_input_is_refused_by_name = refused(
    lambda changes: by_engine(**GIVEN | changes),
    ({"engine": "magic"}, "engine"),
    ({"engine": "minimum"}, "'minimum' needs a positive penalty"),
    ({"engine": "function_space", "memory_limit": 100}, "memory_limit=100: take engine 'flow'"),
    ({"memory_limit": 0}, "memory_limit must be a positive integer, got 0"),
    ({"step_size": 0.0}, "step size"),
    ({"tolerance": 2.0}, "tolerance"),
    ({"eval_steps": [-1, LENGTH]}, r"watch.at must lie in \[0, "),
    ({"eval_steps": np.array([5, 3], np.uint64)}, "watch.at must be a strictly increasing"),
    ({"params": HALF}, "float32 or float64, .* there are bfloat16"),
)


def test_auto_says_what_it_takes_and_is_cheap_for_long_periods(capsys):
    long = 10**6
    changes = {"num_steps": long, "eval_steps": [long], "schedule": schedules.never()}
    problem, settings = setting(progress=None, engine="auto", **changes)
    # A key that nothing draws from does no harm, whichever engine is taken.
    _, history = by_engine(*problem, step_size=0.01, key=jax.random.key(0), **settings)
    assert "engine function_space_flow: " in capsys.readouterr().err
    assert set(history["engine"]) == {"function_space_flow"}
    assert history["evaluations"][-1] < 1e5
    assert history["test_loss_proxy"][-1] < 5e-2


SIZE = 8 * 6 * 6  # of J, in bytes


@pytest.mark.parametrize(
    ("period", "memory_limit", "engine"),
    [(999, 2**30, "steps"), (1000, SIZE, "closed_form"), (10**4, SIZE - 1, "function_space_flow")],
)
def test_auto_takes_a_closed_form_of_a_long_period_that_fits(period, memory_limit, engine):
    params, task = linear(jnp.eye(3), jnp.ones((3, 2)), step_size=1e-3, memory_limit=memory_limit)
    assert choose(task, params, period)[0] == engine


def test_a_closed_form_is_for_a_squared_error_of_the_outputs():
    params, task = linear(jnp.eye(3), jnp.ones((3, 2)))
    x, y = task.data
    for changes in (
        {"data": (x, y[:, :1]), "loss": lambda u, y: jnp.sum((u - y) ** 2)},
        {"loss": lambda u, y: jnp.sum((u - y) ** 4)},
        {"solved": Solved(5, accuracy=None, gradient=0.1)},
    ):
        changed = task._replace(**changes)
        assert choose(changed, params, 10**4)[0] != "closed_form"
        fails("'closed_form'", check_engine, "closed_form", changed, params)


@pytest.mark.parametrize(
    ("stability", "unit", "engine"), [(0.095, 100, "function_space_flow"), (0.125, 1, "steps")]
)
def test_auto_takes_a_flow_for_small_steps_alone_in_any_unit_of_the_loss(stability, unit, engine):
    problem = setting()[0]
    step_size = stability / largest_curvature(problem, CROSS_ENTROPY, problem[1]) / unit
    params, task = classify(step_size, loss=lambda u, y: unit * CROSS_ENTROPY(u, y))
    assert choose(task, params, 10**4)[0] == engine


def test_coupled_examples_are_trained_all_at_once_or_refused():
    """Their network has neither rows of J nor slices of its own."""
    params, task = linear(jnp.eye(4), jnp.ones((4, 2)), step_size=1e-3)
    coupled = task._replace(f=lambda p, x: jnp.tanh((x - x.mean(0, keepdims=True)) @ p))
    little = coupled._replace(memory_limit=100)
    assert choose(coupled, params, 10**4)[0] == "flow"
    assert choose(little, params, 10**4)[0] == "steps"
    for engine, given, others in (
        ("closed_form", coupled, "'flow'$"),
        ("flow", little, "'flow' with a larger memory_limit"),
        ("kept_steps", little, "'flow' with a larger memory_limit"),
    ):
        fails(f"'{engine}'.* couples .*'steps', or {others}", check_engine, engine, given, params)


def test_a_state_does_not_share_the_caller_s_parameters():
    (f, params, data), settings = setting(schedule=schedules.never(), num_steps=1, eval_steps=[1])
    given = jax.tree.map(np.array, params)
    state, _ = by_engine(f, given, data, engine="kept_steps", step_size=0.1, **settings)
    for leaf in jax.tree.leaves(given):
        leaf += 1
    jax.tree.map(np.testing.assert_array_equal, state.anchor, params)


def test_auto_takes_a_flow_without_a_kernel_where_what_it_is_built_from_does_not_fit():
    params, task = classify()
    f, (x, y) = task.f, task.data
    few = task._replace(data=(x[:1], y[:1]))
    assert choose(few, params, 10**4)[0] == "function_space_flow"
    kernel = 8 * f(params, x[:1]).size ** 2
    assert choose(few._replace(memory_limit=kernel), params, 10**4)[0] == "flow"
