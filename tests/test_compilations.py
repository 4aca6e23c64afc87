"""What is compiled, and how often: not anew for another period, seed, step size or chunk."""

import math
from collections import Counter
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roads
from iterlin import losses, training
from iterlin.exact import run
from iterlin.networks.mlp import mlp
from iterlin.ntk import empirical_ntk
from iterlin.runtime import chunks
from iterlin.schedules import every
from iterlin.study import groups, runs
from iterlin.study.runs import Run

COMPILED = "/jax/core/compile/backend_compile_duration"
ENTROPY = losses.mean(losses.cross_entropy)
MODEL = mlp((2, 5, 2), activation="tanh")
X = jax.random.normal(jax.random.key(1), (24, 2))
Y = (jnp.prod(X, 1) > 0).astype(jnp.int32)
STEPS = (0, 3, 40, 300)


@contextmanager
def compilations():
    """How often each function is compiled within the block, by its name."""
    found, counting = Counter(), True

    def listen(event, duration, **details):
        if counting and event == COMPILED:
            found[details["fun_name"].removeprefix("jit(").removesuffix(")")] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        counting = False


def test_what_counts_compilations_does():
    def twice(x):
        return 2 * x

    with compilations() as found:
        compiled = jax.jit(twice)
        for size in (3, 3, 4):
            compiled(jnp.ones(size))
    compiled(jnp.ones(5))
    assert found["twice"] == 2


@pytest.mark.parametrize("form", [{}, {"trace": True}, {"diagonal": True}])
def test_a_kernel_compiles_its_factors_and_their_products_and_nothing_else(form):
    params = MODEL.init(jax.random.key(0))
    jax.clear_caches()
    with compilations() as found:
        empirical_ntk(MODEL.apply, params, X, **form)
    assert found == {"factors_of": 1, "_written": 1}


@pytest.mark.parametrize("memory", [1, None])
def test_runs_of_a_kind_share_two_programs(memory, monkeypatch):
    """One at a time or all together; a chunk may have any length."""
    monkeypatch.setattr(chunks, "CHUNK", 1e-9)
    problem = roads.problem(
        MODEL.apply, MODEL.init, (X, Y), loss=ENTROPY, evaluate={"test": (X, Y)}, batch_size=6
    )
    chosen = [
        Run(seed, period, step_size, STEPS)
        for seed in (0, 1)
        for period in (2, 7, math.inf)
        for step_size in (0.01, 0.1)
    ]
    with compilations() as found:
        results, _ = runs.run_all(problem, chosen, memory=memory)
    assert len({float(result.history["test_loss"][-1]) for result in results}) == len(chosen)
    assert found["advance"] == found["observe"] == 1


def test_a_sweep_is_one_program():
    with compilations() as found:
        roads.train_sweep(
            MODEL.apply,
            MODEL.init,
            (X, Y),
            periods=[1, 2, 5, math.inf],
            keys=jax.random.split(jax.random.key(0), 3),
            loss=ENTROPY,
            optimizer=optax.sgd(0.1),
            num_steps=300,
            eval_steps=[0, 1, 7, 300],
        )
    assert found["advance"] == found["observe"] == 1


def test_a_run_is_one_program_and_leaves_its_start_alone():
    """The loop takes its state's buffers over, but not those it was given."""
    params = MODEL.init(jax.random.key(0))
    settings = {"loss": ENTROPY, "optimizer": optax.sgd(0.1), "schedule": every(3)}
    with compilations() as found:
        state, _ = roads.train(MODEL.apply, params, (X, Y), num_steps=300, **settings)
    assert found["advance"] == found["observe"] == 1
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    roads.train(MODEL.apply, state, (X, Y), num_steps=310, **settings)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_the_loop_takes_its_buffers_over():
    problem = roads.problem(MODEL.apply, MODEL.init, (X, Y), loss=ENTROPY, batch_size=6)
    for size in (1, 2):
        group = [Run(seed, 2, 0.1, STEPS) for seed in range(size)]
        advance, _ = groups.programs(problem, group[0], size)
        state, values, examples = groups.inputs(problem, group)
        state = jax.tree.map(jnp.copy, state)
        advance(state, values, examples, problem.train, jnp.asarray(5, jnp.int32))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.anchor)))


@pytest.mark.parametrize("road", ["train", "train_sweep", "integrate"])
def test_data_are_arguments_of_the_programs(road, tmp_path, monkeypatch):
    """As constants they would be folded, copied into each program and kept on one device."""
    programs = []

    def keep(found):
        programs.extend(found)
        return "0" * 64

    for module in (training, run):
        monkeypatch.setattr(module, "program_digest", keep)
    settings = {"loss": ENTROPY, "num_steps": 4, "evaluate": {"test": (X, Y)}, "eval_steps": [0, 4]}
    settings |= {"checkpoint": tmp_path / "run.npz", "step_size": 0.1}
    start = MODEL.init(jax.random.key(0))
    if road == "train":
        roads.train(MODEL.apply, start, (X, Y), schedule=every(2), **settings)
    elif road == "integrate":
        settings |= {"schedule": every(2), "engine": "function_space"}
        roads.integrate(MODEL.apply, start, (X, Y), **settings)
    else:
        keys = jax.random.split(jax.random.key(0), 2)
        roads.train_sweep(MODEL.apply, MODEL.init, (X, Y), periods=[2], keys=keys, **settings)
    constants = [np.size(c) for program in programs for c in getattr(program, "consts", ())]
    assert programs
    assert max(constants, default=0) < Y.size
