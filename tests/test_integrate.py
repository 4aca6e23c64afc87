"""Every engine against explicit steps, which are what it stands for."""

import inspect
import json
import re
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
import roads
from iterlin import losses, schedules
from iterlin.exact import engines, linear_model, modelled
from iterlin.exact import integrate as exact
from iterlin.exact import run as exact_run
from iterlin.exact.checks import check_engine
from iterlin.exact.choice import ENGINES, choose, default_memory
from iterlin.exact.task import Task, quadratic, slice_size
from iterlin.ntk import kept_ntk
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


def product(params, x):
    return x @ params


def linear(x, y, loss=SQUARED, step_size=0.1, **changes):
    """A problem that is its own linearisation, from no parameters: these and its task."""
    params = jnp.zeros((x.shape[1], y.shape[1] if y.ndim > 1 else int(y.max()) + 1))
    task = Task(product, (x, y), loss, step_size, 0.0, 1e-3, 2**30, None)
    return params, task._replace(**changes)


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


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"auto", "steps", "closed_form"}))
def test_in_function_space_alone_the_kernel_is_kept(name, monkeypatch):
    """The others are for where it does not fit; with it, no product goes through the network."""
    used = set()

    def noted(function):
        def call(*arguments, **settings):
            used.add(function.__name__)
            return function(*arguments, **settings)

        return call

    monkeypatch.setattr(modelled, "kept_ntk", noted(kept_ntk))
    monkeypatch.setattr(linear_model, "from_products", noted(linear_model.from_products))
    params, task = linear(jnp.eye(3), jnp.ones((3, 2)), penalty=0.1)
    ENGINES[name](task).programs(params)
    assert used == {"kept_ntk" if name.startswith("function_space") else "from_products"}


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


def test_a_minimum_where_an_example_never_moves():
    """It tells the model nothing, and is no sign that there is no way down."""
    x = jnp.array([[1.0, 2.0], [0.0, 0.0], [-1.0, 0.5]])
    y = jnp.array([[1.0], [1.0], [2.0]])
    params, task = linear(x, y, penalty=0.1, tolerance=1e-8)
    check_engine("minimum", task, params)
    with pytest.raises(ValueError, match="takes no steps at which the schedule could look"):
        check_engine("minimum", task, params, stops=True)
    engine = ENGINES["minimum"](task)
    start = engine.begin(params)
    end = engine.forward(start, 10)
    assert (start.evaluations, start.steps, end.steps, end.failed) == (0, 0, 10, False)
    ridge = jnp.linalg.solve(x.T @ x + 3 * 2 * 0.1 * jnp.eye(2), x.T @ y)
    np.testing.assert_allclose(engine.parameters(end), ridge, atol=1e-8)


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
    y = jnp.abs(jax.random.normal(jax.random.key(0), (3, 2))).at[0, 0].set(0)
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


@pytest.mark.parametrize("name", ["flow", "kept_steps"])
def test_solved_is_a_gradient_that_has_fallen_far_enough(name, monkeypatch):
    """Of two examples that do not touch, each gradient falls as exp(-t / 2), or by each step."""
    monkeypatch.setattr(engines, "FLOW_BURST", 3)  # returns on its way, and is told to go on
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


def test_solved_counts_the_right_labels_of_every_place():
    """Each place of a sequence by itself, all of which a rule may ask for."""
    labels = jnp.array([[0, 1], [2, 0]])
    rows = jnp.array([[2.0], [-1.0]])

    def f(params, x):
        return jnp.einsum("nd,dtv->ntv", x, params["slope"]) + params["places"]

    params = {"slope": jnp.zeros((1, 2, 3)), "places": jnp.arange(6.0).reshape(1, 2, 3)}
    loss, rule = losses.mean(losses.cross_entropy), Solved(4, accuracy=1.0)
    task = Task(f, (rows, labels), loss, 0.1, 0.0, 1e-3, 2**30, rule)
    end = ENGINES["kept_steps"](task)
    end = end.forward(end.begin(params), 1000)
    taken, right = 0, False
    descend = jax.jit(jax.grad(lambda p: loss(f(p, rows), labels)))
    while not (right and taken % 4 == 0):
        params, taken = jax.tree.map(lambda p, g: p - 0.1 * g, params, descend(params)), taken + 1
        right = bool(jnp.all(jnp.argmax(f(params, rows), -1) == labels))
    assert (end.steps, end.solved) == (taken, True)
    assert taken > 4


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


def test_a_linearisation_lasts_a_step_at_least_however_soon_it_is_solved():
    """A flow's own steps are shorter than one of the steps that it stands for here."""
    rule = Solved(1, accuracy=None, gradient=0.999)
    schedule = schedules.when_solved(10**6)
    _, settings = setting(SQUARED, schedule=schedule, num_steps=3, eval_steps=[3], evaluate={})
    problem = lambda p, x: x @ p, jnp.zeros(2), (jnp.eye(2), jnp.ones(2))
    state, _ = integrate(*problem, step_size=1e3, engine="flow", solved=rule, **settings)
    assert int(state.step) == 3
    assert int(state.updates) == 2


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
    monkeypatch.setattr(exact_run, "out_of_time", lambda: True)
    with pytest.raises(OutOfTime):  # with nothing written, too
        run(params, **settings)
    settings["checkpoint"] = tmp_path / "run.npz"
    began = time.monotonic()
    looks = iter([False, False, False, True])

    def look():
        ends = next(looks, False)
        if ends and stopped_by == "crash":
            raise KeyboardInterrupt
        return ends

    written, save = [], checkpoints.save

    def noted(*arguments, **settings):
        written.append(arguments)
        save(*arguments, **settings)

    monkeypatch.setattr(checkpoints, "save", noted)
    monkeypatch.setattr(exact_run, "CHECKPOINT", 0.0 if stopped_by == "crash" else 60.0)
    monkeypatch.setattr(exact_run, "out_of_time", look)
    with pytest.raises(KeyboardInterrupt if stopped_by == "crash" else OutOfTime):
        run(params, **settings)
    assert len(written) == (3 if stopped_by == "crash" else 1)
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
    without_note(settings["checkpoint"], "spent")
    with pytest.raises(checkpoints.CheckpointError, match="lacks its notes"):
        run(params, **settings)


def without_note(path, name):
    with np.load(path) as file:
        leaves = dict(file)
    head = json.loads(leaves["head"].tobytes())
    del head["notes"][name]
    np.savez(path, **leaves | {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)})


def test_a_bar_is_drawn_to_the_last_step_on_a_terminal_or_where_it_is_asked_for(
    capsys, monkeypatch
):
    data = jnp.eye(2), jnp.ones(2)
    run = integrator(lambda p, x: x @ p, data, loss=SQUARED, step_size=0.01, engine="kept_steps")
    settings = {"schedule": schedules.never(), "num_steps": 60, "at": [20]}
    for progress, terminal in ((None, True), (True, False), (False, True)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        run(jnp.zeros(2), progress=progress, **settings)
        assert ("60/60" in capsys.readouterr().err) == (progress is not False)


def test_a_closed_form_goes_on_from_its_checkpoint(tmp_path):
    params, task = linear(jnp.array([[1.0, 0.5]]), jnp.array([[1.0]]))
    shared = {"loss": SQUARED, "engine": "closed_form"}
    settings = {"schedule": 4, "num_steps": 8, "checkpoint": tmp_path / "run.npz"}
    run = integrator(product, task.data, step_size=0.1, **shared)
    (state, _), (again, _) = run(params, **settings), run(params, **settings)
    assert int(again.step) == 8
    np.testing.assert_array_equal(again.params, state.params)
    with pytest.raises(checkpoints.CheckpointError, match="other settings"):
        integrator(product, task.data, step_size=0.2, **shared)(params, **settings)
    # The loss at no parameters is a half, which is a target that is reached.
    aiming = integrator(product, task.data, step_size=0.1, target_loss=0.5, **shared)
    state, _ = aiming(params, schedule=4, num_steps=8)
    assert int(state.converged_at) == 0


def test_an_integrator_and_integrate_have_the_same_defaults():
    one, other = (inspect.signature(f).parameters for f in (exact.integrate, exact.integrator))
    for name in other.keys() - {"algorithm", "data"}:
        assert one[name].default == other[name].default, name


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


def test_one_entry_that_is_not_finite_ends_the_run_as_diverged():
    def f(p, x):
        return x @ p["a"] + jnp.array([1e200, 1.0]) @ p["b"]

    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    data = jnp.eye(2), jnp.full(2, 1e200)
    _, settings = setting(SQUARED, num_steps=1, eval_steps=[1], evaluate={})
    state, _ = integrate(f, params, data, step_size=0.1, engine="kept_steps", **settings)
    assert int(state.diverged_at) == 1


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
        ({"engine": "function_space", "memory_limit": 100}, "memory_limit=100: take engine 'flow'"),
        ({"memory_limit": 0}, "memory_limit must be a positive integer, got 0"),
        ({"step_size": 0.0}, "step size"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"num_steps": 2**31}, "num_steps"),
        ({"num_steps": schedules.NEVER}, "num_steps must be below"),
        ({"eval_steps": [-1, LENGTH]}, r"watch.at must lie in \[0, "),
        ({"schedule": moved_far}, "looks at the parameters"),
        ({"dtype": jnp.bfloat16}, "float32 or float64, .* there are bfloat16"),
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
    assert history["seconds"].shape == history["step"].shape
    assert np.isnan(history["seconds"][:-1]).all()
    assert 0 < history["seconds"][-1] < time.monotonic() - began


def test_auto_says_what_it_takes_and_why(capsys):
    long = 10**7
    problem, settings = setting(
        num_steps=long, schedule=schedules.every(long // 2), eval_steps=[long], progress=None
    )
    _, history = integrate(*problem, step_size=0.01, **settings)
    said = capsys.readouterr().err
    assert "integrate: function_space_flow (periods of 5000000 steps, step_size" in said
    assert history["evaluations"][-1] < 1e5
    assert set(history["engine"]) == {"function_space_flow"}
    problem, settings = setting(SQUARED, num_steps=long, eval_steps=[long])
    settings["schedule"] = schedules.every(long // 2)
    _, history = integrate(*problem, step_size=0.01, **settings)
    assert history["evaluations"][-1] == 2  # two decompositions
    assert set(history["engine"]) == {"closed_form"}
    assert not capsys.readouterr().err  # unless it is told to be silent


@pytest.mark.parametrize(("period", "engine"), [(999, "steps"), (1000, "closed_form")])
def test_auto_takes_steps_for_short_periods(period, engine):
    params, task = linear(jnp.eye(3), jnp.ones((3, 2)))
    assert choose(task, params, period)[0] == engine


def test_auto_takes_no_closed_form_of_a_jacobian_beyond_memory():
    params, task = linear(jnp.eye(3), jnp.ones((3, 2)), step_size=1e-3)
    for limit, engine in ((8 * 6 * 6, "closed_form"), (8 * 6 * 6 - 1, "function_space_flow")):
        assert choose(task._replace(memory_limit=limit), params, 10**4)[0] == engine


def test_a_closed_form_is_for_a_squared_error_of_the_outputs():
    """Not for one of other targets that broadcast, for other losses, nor for a rule `solved`."""
    params, task = linear(jnp.eye(3), jnp.ones((3, 2)))
    x, y = task.data
    for changes in (
        {"data": (x, y[:, :1]), "loss": lambda u, y: jnp.sum((u - y) ** 2)},
        {"loss": lambda u, y: jnp.sum((u - y) ** 4)},
        {"solved": Solved(5, accuracy=None, gradient=0.1)},
    ):
        changed = task._replace(**changes)
        assert choose(changed, params, 10**4)[0] != "closed_form"
        with pytest.raises(ValueError, match="'closed_form'"):
            check_engine("closed_form", changed, params)


@pytest.mark.parametrize(("stability", "small"), [(0.095, True), (0.125, False)])
def test_a_flow_stands_for_small_steps_alone(stability, small):
    def loss(outputs, y):  # in other units, in which a step is not of size 1
        return 100 * CROSS_ENTROPY(outputs, y)

    f, params, data = problem = setting()[0]
    step_size = stability / largest_curvature(problem, loss, params)
    task = Task(f, data, loss, step_size, 0.0, 1e-3, 2**30, None)
    engine = "function_space_flow" if small else "steps"
    assert choose(task, params, 10**4)[0] == engine
    # In other units of the loss the steps are the same.
    task = task._replace(loss=CROSS_ENTROPY, step_size=100 * step_size)
    assert choose(task, params, 10**4)[0] == engine


def test_auto_trains_what_couples_its_examples_without_a_kernel():
    """As with a mean over the batch: the engines that remain are those of all examples at once."""
    (f, params, data), settings = setting(num_steps=40, eval_steps=[40])

    def coupled(params, x):
        outputs = f(params, x)
        return outputs - outputs.mean(0, keepdims=True)

    task = Task(coupled, data, settings["loss"], 1e-3, 0.0, 1e-3, 2**30, None)
    assert choose(task, params, 10**4)[0] == "flow"
    problem = coupled, params, data
    state, history = integrate(*problem, step_size=STEP_SIZE, **settings)
    assert set(history["engine"]) <= {"steps", "flow"}
    expected = by_steps(problem, settings)[0].params
    np.testing.assert_allclose(
        problems.flat(state.params), problems.flat(expected), rtol=0.02, atol=0.02
    )


def test_auto_takes_a_flow_without_a_kernel_that_cannot_be_built():
    """The kernel fits, but what it is built from does not."""
    (f, params, (x, y)), settings = setting()
    few = (x[:1], y[:1])
    task = Task(f, few, settings["loss"], 1e-3, 0.0, 1e-3, 2**30, None)
    assert choose(task, params, 10**4)[0] == "function_space_flow"
    kernel = 8 * f(params, few[0]).size ** 2
    assert choose(task._replace(memory_limit=kernel), params, 10**4)[0] == "flow"


def test_a_kernel_that_does_not_fit_says_what_would_do():
    params, task = linear(jnp.eye(3, 7), jnp.ones((3, 2)))

    def refused(limit):
        with pytest.raises(ValueError, match="take engine 'flow', or fewer examples") as error:
            check_engine("function_space", task._replace(memory_limit=limit), params)
        return int(re.search(r"takes (\d+) bytes", str(error.value))[1])

    needed = refused(1)
    assert refused(needed - 1) == needed
    check_engine("function_space", task._replace(memory_limit=needed), params)


@pytest.mark.parametrize(("platform", "bytes"), [("cpu", 2**31), ("gpu", 600)])
def test_memory_unless_told_is_some_of_what_there_is(platform, bytes, monkeypatch):
    device = SimpleNamespace(platform=platform, memory_stats=lambda: {"bytes_limit": 1000})
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert default_memory() == bytes


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
        engine.parameters(engine.begin(scale * jnp.ones((3, 2))))
    assert len(held) == 2  # one each, for all that is done with it
    assert not any(jax.tree.leaves(held))
    assert jax.tree.leaves(engine._kernel[1])
