"""The centred, scaled network: what the scale changes, and what it does not."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import flat

NET = il.mlp((3, 12, 2), activation="tanh", parameterization="ntk", bias_scale=0.3)
X = jnp.asarray(np.random.default_rng(1).normal(size=(7, 3)))
Y = jnp.asarray(np.random.default_rng(2).normal(size=(7, 2)))
START = NET.init(jax.random.key(0))
ALPHAS = (0.1, 30.0)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_it_is_zero_where_it_starts_and_scaled_elsewhere_and_its_kernel_by_the_square(alpha):
    f = il.centred(NET.apply, START, alpha)
    assert np.all(f(START, X) == 0)
    other = NET.init(jax.random.key(5))
    change = NET.apply(other, X) - NET.apply(START, X)
    np.testing.assert_allclose(f(other, X), alpha * change, rtol=1e-14)
    kernel = il.ntk_matrix(NET.apply, other, X)
    np.testing.assert_allclose(il.ntk_matrix(f, other, X), alpha**2 * kernel, rtol=1e-12)


def test_linearised_outputs_do_not_depend_on_the_scale_in_its_own_time():
    outputs, moved = [], []
    for alpha in ALPHAS:
        f = il.centred(NET.apply, START, alpha)
        algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.05 / alpha**2)
        state, _ = il.train(algorithm, START, (X, Y), schedule=il.never(), num_steps=40)
        outputs.append(il.linearize(f, START)(state.params, X))
        moved.append(alpha * (flat(state.params) - flat(START)))
    np.testing.assert_allclose(*outputs, atol=1e-10)
    np.testing.assert_allclose(*moved, atol=1e-10)


@pytest.mark.parametrize("scale", [0.0, float("nan")])
def test_a_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        il.centred(NET.apply, START, scale)


def test_a_scale_of_numpy_leaves_the_outputs_their_type():
    f = il.centred(lambda p, x: p * x, jnp.float32(1), np.sqrt(2.0))
    assert f(jnp.float32(2), jnp.ones(3, jnp.float32)).dtype == jnp.float32
