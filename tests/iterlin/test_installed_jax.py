"""The installed JAX computes right Jacobians in single precision, which one release did not."""

import runpy
import warnings
from importlib import metadata

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
