"""Networks with running statistics: where they begin, and the normalisation."""

import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.networks.normalization import normalize
from iterlin_study.networks import convnets


def test_running_statistics_begin_at_mean_0_and_variance_1():
    initial = convnets.resnet18((8, 8, 1), width=2, normalization="batch").normalization.initial
    shortcut = initial["stage2_block1"]["shortcut"]["norm"]
    np.testing.assert_array_equal(shortcut["mean"], np.zeros(4))
    np.testing.assert_array_equal(shortcut["variance"], np.ones(4))


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 6, 3)])
def test_channels_come_last_and_each_has_its_own_scale(shape):
    h = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    mean, scale, bias = np.array([[1.0, -2.0, 0.5], [2.0, 0.5, 1.0], [0.0, 1.0, -3.0]])
    variance = np.array([4.0, 0.25, 1.0])
    found = normalize(h, *map(jnp.asarray, (mean, variance, scale, bias)))
    for c in range(3):
        expected = scale[c] * (h[..., c] - mean[c]) / np.sqrt(variance[c] + 1e-5) + bias[c]
        np.testing.assert_allclose(found[..., c], expected, rtol=1e-12)
