"""The networks: the perceptron, what scales and centres one."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin.networks.mlp import mlp
from problems import bare, flat, start
from refusals import fails, refused

ACTIVATIONS = {"relu": lambda h: np.maximum(h, 0), "tanh": np.tanh, "identity": lambda h: h}


@pytest.mark.parametrize(
    ("activation", "parameterization", "output_bias"),
    [("relu", "ntk", True), ("tanh", "standard", False), ("identity", "standard", True)],
)
def test_apply_is_the_formula(activation, parameterization, output_bias):
    settings = {"activation": activation, "parameterization": parameterization}
    model = mlp((3, 5, 4, 2), bias_scale=0.5, output_bias=output_bias, **settings)
    params = model.init(jax.random.key(0))
    x = h = np.random.default_rng(0).normal(size=(6, 3))
    for index, layer in enumerate(params):
        weight = np.asarray(layer["weight"])
        scale = np.sqrt(len(weight)) if parameterization == "ntk" else 1
        h = (h if index == 0 else ACTIVATIONS[activation](h)) @ weight / scale
        h = h + np.asarray(layer.get("bias", 0))
    assert ["bias" in layer for layer in params] == [True, True, output_bias]
    np.testing.assert_allclose(model.apply(params, jnp.asarray(x)), h, atol=1e-13)


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({}, 1 / np.sqrt(400), 1 / np.sqrt(300)),
        ({"parameterization": "ntk"}, 1, 1),
        ({"weight_scale": 0.1}, 0.1, 0.1),
    ],
)
def test_scale_of_the_weights(settings, first, second):
    params = mlp((400, 300, 200), bias_scale=0.3, **settings).init(jax.random.key(1))
    for layer, scale in zip(params, (first, second), strict=True):
        weight = np.asarray(layer["weight"])
        assert weight.std() == pytest.approx(scale, rel=0.02)
        assert abs(weight.mean()) < 5 * scale / np.sqrt(weight.size)
    assert np.asarray(params[0]["bias"]).std() == pytest.approx(0.3, rel=0.2)


def test_initialisation_depends_on_the_key_alone():
    model = mlp((3, 4, 1))
    first, again, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[0]["weight"], again[0]["weight"])
    assert np.any(first[0]["weight"] != other[0]["weight"])
    assert np.any(first[0]["weight"][:3, :1] != first[1]["weight"][:3])
    assert optax.tree.size(first) == 3 * 4 + 4 + 4 + 1
    assert not any(layer["bias"].any() for layer in first)  # unless it is asked for


test_bad_settings_are_refused = refused(
    lambda widths, settings: bare(mlp)(widths, **settings),
    ((3, 1), {"activation": "gelu"}, "activation 'gelu'"),
    ((3, 1), {"parameterization": "mup"}, "parameterization 'mup'"),
    (5, {}, "widths must .* got 5"),
    ((3,), {}, "widths must hold at least"),
    ((3, 1), {"bias_scale": -1.0}, "bias_scale must .* got -1.0"),
    ((3, 1), {"weight_scale": 1.0, "parameterization": "ntk"}, "weight_scale has no meaning"),
    ((3, 1), {"output_bias": "no"}, "output_bias must be True or False"),
)

NET = il.mlp((3, 12, 2), activation="tanh", parameterization="ntk", bias_scale=0.3)
X = jnp.asarray(np.random.default_rng(1).normal(size=(7, 3)))
Y = jnp.asarray(np.random.default_rng(2).normal(size=(7, 2)))
START = start(NET.init)
ALPHAS = (0.1, 30.0)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_it_is_zero_where_it_starts_and_scaled_elsewhere_and_its_kernel_by_the_square(alpha):
    f = il.centred(NET.apply, START, alpha)
    assert np.all(f(START, X) == 0)
    other = start(NET.init, seed=1)
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


def test_a_scale_of_numpy_leaves_the_outputs_their_type():
    f = il.centred(lambda p, x: p * x, jnp.float32(1), np.sqrt(2.0))
    assert f(jnp.float32(2), jnp.ones(3, jnp.float32)).dtype == jnp.float32
    fails("scale must be one number, got an array", il.centred, NET.apply, START, jnp.ones(2))
