"""The installed JAX with all of XLA's optimisations, as users run it: Jacobians in single precision
are right, which those of one release were not, and K = 1 is gradient descent to the bit."""

import runpy
import warnings
from importlib import metadata

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin import every
from problems import single
from roads import train
from test_training import MEAN_ENTROPY, batches, classification

pytestmark = pytest.mark.optimized


def scaled(h):
    return h * h.sum(-1, keepdims=True)


def layer_norm(h):
    centred = h - h.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def attention(h):
    return jax.nn.softmax(h @ h.T) @ scaled(h)


@pytest.mark.parametrize("f", [scaled, layer_norm, attention])
def test_compiled_jacobians_are_right_in_single_precision(f):
    h = np.random.default_rng(0).normal(size=(16, 48))
    exact = jax.jacfwd(f)(jnp.asarray(h))
    found = jax.jit(jax.jacrev(f))(jnp.asarray(h, jnp.float32))
    error = np.max(np.abs(found - exact)) / np.max(np.abs(exact))
    assert error < 1e-5


@pytest.mark.parametrize(("version", "warned"), [("0.10.2", True), ("0.10.1", False)])
def test_the_release_that_is_wrong_is_warned_of(monkeypatch, version, warned):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        runpy.run_path(iterlin.__file__)
    assert any("wrong float32 Jacobians" in str(each.message) for each in found) == warned


def test_period_one_is_plain_gradient_descent_bit_for_bit():
    f, *given = classification()
    params, (x, y) = single(given)
    key, num_steps, batch_size = jax.random.key(3), 40, 4
    settings = {"loss": MEAN_ENTROPY, "optimizer": optax.sgd(0.1), "schedule": every(1)}
    settings |= {"num_steps": num_steps, "batch_size": batch_size, "key": key}
    state, _ = train(f, params, (x, y), **settings)

    @jax.jit
    def step(params, x, y):
        gradient = jax.grad(lambda p: MEAN_ENTROPY(f(p, x), y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    for rows in batches(key, 10, batch_size, num_steps):
        params = step(params, x[rows], y[rows])
    for found, expected in zip(jax.tree.leaves(state.params), jax.tree.leaves(params), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, expected)
