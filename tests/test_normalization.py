"""Running statistics: where they begin, how they are updated, refusals."""

import jax
import numpy as np
import pytest
from iterlin.networks import convnets
from iterlin.networks.normalization import update_statistics


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


@pytest.mark.parametrize("momentum", [-0.1, 0.0, 1.0, float("nan")])
def test_bad_momentum_is_refused(momentum):
    with pytest.raises(ValueError, match="momentum must"):
        update_statistics({}, {}, momentum=momentum)
