"""Networks with running statistics: where they begin, their fixed parameters, the normalisation."""

import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.networks.normalization import Normalization, normalize
from iterlin_study.networks import convnets


def test_running_statistics_begin_at_mean_0_and_variance_1():
    initial = convnets.resnet18((8, 8, 1), width=2, normalization="batch").normalization.initial
    shortcut = initial["stage2_block1"]["shortcut"]["norm"]
    np.testing.assert_array_equal(shortcut["mean"], np.zeros(4))
    np.testing.assert_array_equal(shortcut["variance"], np.ones(4))


def test_fixed_parameters_are_bound_in_training_and_in_evaluation_alike():
    def apply(params, statistics, x):
        return params["scale"] * x + params["shift"], statistics + x.mean()

    def evaluate(params, statistics, x):
        return params["scale"] * (x - statistics) + params["shift"]

    moving, fixed = {"scale": 3.0, "shift": None}, {"scale": None, "shift": 0.5}
    of_moving = Normalization(0.0, apply, evaluate).bind_fixed(fixed)
    outputs, statistics = of_moving.apply(moving, of_moving.initial, jnp.asarray([1.0, 3.0]))
    np.testing.assert_array_equal(outputs, [3.5, 9.5])
    assert of_moving.evaluate(moving, statistics, 4.0) == 6.5


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 6, 3)])
def test_channels_come_last_and_each_has_its_own_scale(shape):
    h = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    mean, scale, bias = np.array([[1.0, -2.0, 0.5], [2.0, 0.5, 1.0], [0.0, 1.0, -3.0]])
    variance = np.array([4.0, 0.25, 1.0])
    found = normalize(h, *map(jnp.asarray, (mean, variance, scale, bias)))
    for c in range(3):
        expected = scale[c] * (h[..., c] - mean[c]) / np.sqrt(variance[c] + 1e-5) + bias[c]
        np.testing.assert_allclose(found[..., c], expected, rtol=1e-12)
