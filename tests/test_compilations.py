"""What compiled training takes over and what it is given: buffers, and data as arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import roads
from iterlin import losses, training
from iterlin.exact import run
from iterlin.networks.mlp import mlp
from iterlin.schedules import every
from iterlin.study import groups
from iterlin.study.runs import Run

ENTROPY = losses.mean(losses.cross_entropy)
MODEL = mlp((2, 5, 2), activation="tanh")
X = jax.random.normal(jax.random.key(1), (24, 2))
Y = (jnp.prod(X, 1) > 0).astype(jnp.int32)
STEPS = (0, 3, 40, 300)


def test_a_run_leaves_its_start_alone():
    """The loop takes its state's buffers over, but not those it was given."""
    params = MODEL.init(jax.random.key(0))
    settings = {"loss": ENTROPY, "optimizer": optax.sgd(0.1), "schedule": every(3)}
    state, _ = roads.train(MODEL.apply, params, (X, Y), num_steps=300, **settings)
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
