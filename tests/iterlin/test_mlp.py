"""The multilayer perceptron against matrix arithmetic, its initialisation and its refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.networks.mlp import mlp, parameter_count
from problems import bare

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
    assert parameter_count(first) == 3 * 4 + 4 + 4 + 1
    assert not any(layer["bias"].any() for layer in first)  # unless it is asked for


@pytest.mark.parametrize(
    ("widths", "settings", "message"),
    [
        ((3, 1), {"activation": "gelu"}, "activation 'gelu'"),
        ((3, 1), {"parameterization": "mup"}, "parameterization 'mup'"),
        (5, {}, "widths must .* got 5"),
        ((3,), {}, "widths must hold at least"),
        ((3, 1), {"bias_scale": -1.0}, "bias_scale must .* got -1.0"),
        ((3, 1), {"weight_scale": 1.0, "parameterization": "ntk"}, "weight_scale has no meaning"),
    ],
)
def test_bad_settings_are_refused(widths, settings, message):
    with pytest.raises(ValueError, match=message):
        bare(mlp)(widths, **settings)
