"""The installed JAX computes right Jacobians in single precision, which one release did not."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def scaled(h):
    return h * h.sum(-1, keepdims=True)


def layer_norm(h):
    centred = h - h.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def attention(h):
    return jax.nn.softmax(h @ h.T) @ scaled(h)


@pytest.mark.parametrize("shape", [(16, 48), (64, 10), (1, 48)])
@pytest.mark.parametrize("f", [scaled, layer_norm, attention])
def test_compiled_jacobians_are_right_in_single_precision(f, shape):
    h = np.random.default_rng(0).normal(size=shape)
    exact = jax.jacfwd(f)(jnp.asarray(h))
    found = jax.jit(jax.jacrev(f))(jnp.asarray(h, jnp.float32))
    error = np.max(np.abs(found - exact)) / np.max(np.abs(exact))
    assert error < 1e-5


def test_products_with_several_cotangents_are_right_in_single_precision():
    draw = np.random.default_rng(1).normal
    h, cotangents = draw(size=(16, 48)), draw(size=(200, 16, 48))

    def products(dtype):
        at, several = jnp.asarray(h, dtype), jnp.asarray(cotangents, dtype)
        return jax.jit(lambda h, u: jax.vmap(jax.vjp(scaled, h)[1])(u))(at, several)[0]

    exact = products(jnp.float64)
    np.testing.assert_allclose(products(jnp.float32), exact, atol=1e-4 * np.max(np.abs(exact)))


@pytest.mark.parametrize(("version", "warned"), [("0.10.2", True), ("0.10.1", False)])
def test_the_release_that_is_wrong_is_warned_of(version, warned):
    code = f"from importlib import metadata; metadata.version = lambda name: {version!r}\n"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code + "import iterlin"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("wrong float32 Jacobians" in done.stderr) == warned
