"""A checkpoint is taken by the run that wrote it and by no other."""

from functools import partial

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin.exact.kernel_product_engine import KernelProductEngine
from iterlin.linearise.digests import digest, program_digest
from iterlin.training import identity, loop, losses, schedules
from iterlin.training.checkpoints import CheckpointError
from iterlin.training.watching import Watch
from refusals import fails

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(6, 3)))
Y = jnp.array([0, 1, 1, 0, 1, 0])
# What the first and the second run differ in: a sign, which changes no norm.
FIRST = jnp.asarray(RNG.normal(size=(3, 4)))
SECOND = -FIRST
ENTROPY = losses.mean(losses.cross_entropy)


def start():
    return jnp.asarray(0.1 * np.random.default_rng(1).normal(size=(4, 2)))


def custom_vjp(w):
    @jax.custom_vjp
    def product(x):
        return x @ w

    product.defvjp(lambda x: (x @ w, None), lambda _, g: (g @ w.T,))
    return product


# x -> x @ w, by how a program holds w.
HOLDS = {
    "closure": lambda w: lambda x: x @ w,
    "jit": lambda w: jax.jit(lambda x: x @ w),
    "partial of NumPy": lambda w: jax.jit(partial(lambda w, x: x @ w, np.asarray(w))),
    "scan": lambda w: lambda x: jax.lax.map(jax.jit(lambda row: row @ w), x),
    "cond": lambda w: (
        lambda x: jax.lax.cond(
            x[0, 0] < 9, jax.jit(lambda x: x @ w), lambda x: jnp.zeros((len(x), 4), x.dtype), x
        )
    ),
    "custom_vjp": lambda w: jax.jit(custom_vjp(w)),
}


def network(hold, w):
    return lambda p, x: jnp.tanh(HOLDS[hold](w)(x)) @ p


@pytest.mark.parametrize("hold", HOLDS)
def test_a_program_is_told_by_the_arrays_that_it_holds(hold):
    def of(w):
        f = network(hold, w)
        slope = jax.grad(lambda p, x: f(p, x).sum())
        return [program_digest(jax.jit(g).trace(start(), X).jaxpr) for g in (f, slope)]

    assert of(FIRST) == of(FIRST + 0)
    assert all(np.not_equal(of(FIRST), of(SECOND)))


def train(path, f=None, optimizer=0.5, params=None, data=(X, Y), **changes):
    """Parameters of a run of eight steps with its checkpoint in that file."""
    algorithm = iterlin.Algorithm(f or network("closure", FIRST), ENTROPY, optimizer)
    settings = {"schedule": 3, "num_steps": 8, "key": KEY, "checkpoint": path} | changes
    params = start() if params is None else params
    return iterlin.train(algorithm, params, data, **settings)[0].params


def observe(scale):
    return Watch(observe=lambda state: {"seen": jax.jit(lambda p: scale[0] * p)(state.params)})


def drifted(limit):
    far = jax.jit(lambda p, a: jnp.sum((p - a) ** 2) > limit[0])
    return schedules.when(lambda state: far(state.params, state.anchor), check_every=2)


ONE, TWO = jnp.array([1.0]), jnp.array([1.5])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("identity") / "run.npz"
    train(path)
    return path


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("schedule", 4, r"max_period of the schedule \(3, here 4\)"),
        ("optimizer", 0.25, r"optimizer of the algorithm \(0.5, here 0.25\)"),
        ("data", (X.at[1, 1].add(1e-6), Y), "the data"),
        ("params", start() * 1.1, "the first parameters"),
        ("key", jax.random.key(1), "the key"),
        ("watch", Watch({"t": (X, Y)}), "the watched sets"),
        ("watch", Watch(at=[3]), "the steps looked at"),
    ],
)
def test_train_names_what_differs(checkpoint, name, other, words):
    with pytest.raises(CheckpointError, match=f"it differs in [^\n]*{words}[^\n]*: name another"):
        train(checkpoint, **{name: other})


@pytest.mark.parametrize(
    ("name", "one", "other", "words"),
    [
        ("f", network("jit", FIRST), network("jit", SECOND), "the step"),
        ("schedule", drifted(ONE), drifted(TWO), "the step"),
        ("watch", observe(ONE), observe(TWO), "what is recorded"),
        ("optimizer", optax.adam(0.1), optax.adam(0.2), "the step"),
    ],
)
def test_train_tells_functions_by_what_they_hold(tmp_path, monkeypatch, name, one, other, words):
    path = tmp_path / "run.npz"
    wanted = train(path, **{name: one})
    with pytest.raises(CheckpointError, match=f"it differs in {words}[^\n]*: name another"):
        train(path, **{name: other})
    trained_again = lambda state: pytest.fail("trained again")  # noqa: E731
    monkeypatch.setattr(loop.jax, "block_until_ready", trained_again)
    np.testing.assert_array_equal(train(path, **{name: one}), wanted)


def test_train_sweep_refuses_the_checkpoint_of_another_network(tmp_path):
    def sweep(w, periods):
        algorithm = iterlin.Algorithm(network("jit", w), ENTROPY, 0.5)
        settings = {"periods": periods, "keys": jax.random.split(KEY, 2), "num_steps": 6}
        settings["checkpoint"] = tmp_path / "run.npz"
        iterlin.train_sweep(algorithm, lambda key: start(), (X, Y), **settings)

    sweep(FIRST, [2, 3])
    fails("differs in the step", sweep, SECOND, [2, 3], error=CheckpointError)
    fails(r"the periods \(\[2, 3\], here \[2, 5\]\)", sweep, FIRST, [2, 5], error=CheckpointError)


def test_an_engine_refuses_the_file_of_another_run_and_finds_its_own_in_a_folder(tmp_path):
    by_engine = partial(train, engine="function_space", optimizer=0.1, key=None)
    pair = [network("jit", w) for w in (FIRST, SECOND)]
    wanted, file, folder = [by_engine(None, f) for f in pair], tmp_path / "run.npz", tmp_path / "in"
    by_engine(file, pair[0])
    fails("differs in the step", by_engine, file, pair[1], error=CheckpointError)
    with pytest.raises(CheckpointError, match=r"engine \(function_space, here kept_steps\)"):
        by_engine(file, pair[0], engine="kept_steps")
    folder.mkdir()
    for _ in range(2):
        for expected, f in zip(wanted, pair, strict=True):
            np.testing.assert_array_equal(by_engine(folder, f), expected)
        assert len(list(folder.iterdir())) == 2


def test_a_finished_run_of_an_engine_is_read_without_its_kernel(tmp_path, monkeypatch):
    """The kernel of a large network takes a minute, and a page may have many finished runs."""
    again = partial(train, tmp_path / "run.npz", engine="function_space", optimizer=0.1, key=None)
    wanted = again()
    monkeypatch.setattr(KernelProductEngine, "_model", None)  # which makes the kernel
    np.testing.assert_array_equal(again(), wanted)


def test_the_file_of_another_version_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    train(path)
    monkeypatch.setattr(identity, "VERSION", "JAX 99")
    fails(r"differs in version \(JAX .*, here JAX 99\): name", train, path, error=CheckpointError)


def test_a_digest_sees_numbers_shapes_types_and_nesting():
    x = jnp.ones(2)
    trees = [x, x + 1, x.astype(jnp.float16), [x], x.reshape(2, 1), x[0], x[:1], {"a": x}]
    assert len({digest(tree) for tree in trees}) == len(trees)
    assert digest(np.ones((2, 3)).T) == digest(np.ones((3, 2)))


def test_a_digest_does_not_tell_where_in_memory_a_module_has_its_functions():
    activation = jax.tree_util.register_static(type("Activation", (), {}))
    assert digest(activation()) == digest(activation())
