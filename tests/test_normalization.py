"""Running statistics: where they begin, how they are updated, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.networks import convnets
from iterlin.networks.normalization import Normalization, normalize, update_statistics


def test_initial_statistics_and_their_update():
    initial = convnets.resnet18((8, 8, 1), width=2, normalization="batch").normalization.initial
    shortcut = initial["stage2_block1"]["shortcut"]["norm"]
    np.testing.assert_array_equal(shortcut["mean"], np.zeros(4))
    np.testing.assert_array_equal(shortcut["variance"], np.ones(4))
    batch = jax.tree.map(lambda leaf: leaf + 2, initial)
    running = initial
    for _ in range(3):
        running = update_statistics(running, batch, momentum=0.8)
    np.testing.assert_allclose(running["stem"]["norm"]["mean"], 2 * (1 - 0.8**3))
    np.testing.assert_allclose(running["stem"]["norm"]["variance"], 3 - 2 * 0.8**3)
    default = update_statistics(initial, batch)
    np.testing.assert_allclose(default["stem"]["norm"]["mean"], 0.2)


def test_fixed_parameters_are_bound_in_training_and_in_evaluation_alike():
    def apply(params, x):
        return params["scale"] * x + params["shift"], x.mean()

    def evaluate(params, statistics, x):
        return params["scale"] * (x - statistics) + params["shift"]

    moving, fixed = {"scale": 3.0, "shift": None}, {"scale": None, "shift": 0.5}
    of_moving = Normalization(0.0, apply, evaluate).bound(fixed)
    assert of_moving.initial == 0.0
    outputs, statistics = of_moving.apply(moving, jnp.asarray([1.0, 3.0]))
    np.testing.assert_array_equal(outputs, [3.5, 9.5])
    assert of_moving.evaluate(moving, statistics, 4.0) == 6.5
    assert of_moving.update(1.0, statistics) == pytest.approx(0.9 * 1 + 0.1 * 2)


@pytest.mark.parametrize("momentum", [-0.1, 0.0, 1.0, float("nan")])
def test_bad_momentum_is_refused(momentum):
    with pytest.raises(ValueError, match="momentum must"):
        update_statistics({}, {}, momentum=momentum)


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 6, 3)])
def test_channels_come_last_and_each_has_its_own_scale(shape):
    h = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    mean, scale, bias = np.array([[1.0, -2.0, 0.5], [2.0, 0.5, 1.0], [0.0, 1.0, -3.0]])
    variance = np.array([4.0, 0.25, 1.0])
    found = normalize(h, *map(jnp.asarray, (mean, variance, scale, bias)))
    for c in range(3):
        expected = scale[c] * (h[..., c] - mean[c]) / np.sqrt(variance[c] + 1e-5) + bias[c]
        np.testing.assert_allclose(found[..., c], expected, rtol=1e-12)
