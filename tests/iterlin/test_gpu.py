"""On a GPU the numbers are the CPU's, and runs share its memory. Skipped where JAX sees none.

`make test` keeps JAX to the CPU; with a GPU: ``python -m pytest tests/iterlin/test_gpu.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import Algorithm, Step, empirical_ntk, every, linearized_gradient_flow, losses, mlp
from iterlin.linearise import costs
from iterlin.linearise.precision import full_precision
from iterlin_study.networks import convnets
from iterlin_study.runs import grids
from problems import flat, single


@pytest.fixture(scope="module")
def gpu():
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("JAX sees no GPU here")


def assert_equal(gpu, function, *arrays):
    """Require of a function of the arrays the same on the GPU and on the CPU."""
    found = []
    for device in (gpu, jax.devices("cpu")[0]):
        with jax.default_device(device), full_precision():
            result = jax.jit(function)(*jax.device_put(arrays, device))
        assert {d for leaf in jax.tree.leaves(result) for d in leaf.devices()} == {device}
        found.append(flat(jax.device_get(result)))
    theirs, ours = found
    assert np.isfinite(ours).all()
    assert np.abs(ours).max() > 0
    np.testing.assert_allclose(theirs, ours, atol=1e-5 * np.abs(ours).max())


@pytest.fixture(scope="module")
def lenet():
    model = convnets.lenet((12, 12, 1), channels=4, kernel_size=3, hidden=(8,))
    params = single(model.init(jax.random.key(0)))
    x = single(jax.random.normal(jax.random.key(1), (10, 12, 12, 1)))
    return model.apply, params, x, jnp.arange(10, dtype=jnp.int32)


def test_steps(gpu, lenet):
    f, params, x, y = lenet
    algorithm = Algorithm(f, losses.mean(losses.cross_entropy), 0.1)

    def trained(params, x, y):
        step = Step(algorithm, every(2), batch_size=5)
        state = step.start(params, (x, y), jax.random.key(2))
        return step.advance(state, (x, y), 3).params

    assert_equal(gpu, trained, params, x, y)


@pytest.mark.parametrize("form", [{}, {"trace": True}, {"diagonal": True}], ids=str)
def test_an_empirical_kernel(gpu, lenet, form):
    f, params, x, _ = lenet
    assert_equal(gpu, lambda params, x: empirical_ntk(f, params, x, **form), params, x)


def test_a_flow(gpu):
    model = mlp((3, 6, 2), activation="tanh")
    x, y = (jax.random.normal(jax.random.key(seed), (5, size)) for seed, size in ((1, 3), (2, 2)))

    def flow(params, x, y):
        return linearized_gradient_flow(model.apply, params, x, y, time=2.0)

    assert_equal(gpu, flow, model.init(jax.random.key(0)), x, y)


def test_products_are_not_rounded_to_tf32(gpu):
    a, b = (np.random.default_rng(seed).normal(size=(256, 256)) for seed in (0, 1))
    a, b = (np.asarray(matrix, np.float32) for matrix in (a, b))
    exact = a.astype(float) @ b.astype(float)

    def error():
        product = jax.jit(lambda a, b: a @ b)(*jax.device_put((a, b), gpu))
        return np.abs(np.asarray(product, float) - exact).max() / np.abs(exact).max()

    with full_precision():
        assert error() < 3e-6


def test_runs_take_a_share_of_the_memory(gpu):
    whole = gpu.memory_stats()["bytes_limit"]
    assert costs.device_memory(1, 0.5) == pytest.approx(whole / 2, rel=0.1)
    assert 2**28 < grids.group_memory() < whole
