"""Training on data that lie on four devices is training on one, and each has its part."""

import four_devices
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise.devices import find_mesh
from jax.sharding import Mesh


@pytest.fixture(scope="module")
def ended():
    """What `sharded_training.py` prints on four devices: name -> (difference, sizes traced)."""
    lines = four_devices.run("sharded_training.py")
    return {name: (difference, set(map(int, sizes))) for name, difference, *sizes in lines}


def test_four_devices_train_as_one(ended):
    """However the data lie on them: spread over all, or copied."""
    differences = {name: float(found) for name, (found, _) in ended.items() if found != "-"}
    assert differences.keys() == {"remainder", "iterable", "sweep"}
    assert max(differences.values()) < 1e-6
    assert ended["exchanges"][1] == {0}


@pytest.mark.parametrize(
    ("name", "of_a_device"),
    [
        ("full", {16}),
        ("batches", {4}),
        ("remainder", {4, 2}),  # 18 are four each, and two by all
        ("slices", {7, 1}),  # eight, seven at a time
        ("iterable", {4}),
        ("sweep", {4}),
    ],
)
def test_each_device_has_its_part_of_a_batch(ended, name, of_a_device):
    _, traced = ended[name]
    elsewhere = {1, 2, 7, 64} if name in ("slices", "iterable") else {1, 64}  # looks at the whole
    assert of_a_device <= traced <= of_a_device | elsewhere


@pytest.mark.parametrize("name", ["keyed", "loss", "unsaid"])
def test_batches_that_cannot_be_split_stay_whole(ended, name):
    _, traced = ended[name]
    assert 16 in traced
    assert 4 not in traced


def test_data_on_one_device_have_no_mesh():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    assert find_mesh((jnp.ones(3), np.ones(3), 1, None)) is None
    assert find_mesh(jax.device_put(jnp.ones(3), place)) is None
