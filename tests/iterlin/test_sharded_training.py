import re
from collections import defaultdict

import four_devices
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise.devices import find_mesh
from jax.sharding import Mesh


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What `sharded_training.py` prints on four devices, by name, and the programs it ran."""
    programs = tmp_path_factory.mktemp("programs")
    lines, texts = four_devices.run("sharded_training.py", programs, "jit_advance")
    found = defaultdict(list)
    for name, difference, *traced in lines:
        found[name].append((difference, set(map(int, traced))))
    return found, texts


def test_four_devices_train_as_one(ended):
    """However the data lie on them: spread over all, or copied."""
    found = [(name, difference) for name in ended[0] for difference, _ in ended[0][name]]
    differences = {pair for pair in found if pair[1] != "-"}
    assert {name for name, _ in differences} == {
        "batches",
        "remainder",
        "slices",
        "iterable",
        "sweep",
    }
    assert max(float(difference) for _, difference in differences) < 1e-6


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
    found, _ = ended
    elsewhere = {1, 2, 7, 64} if name in ("slices", "iterable") else {1, 64}  # looks at the whole
    for _, traced in found[name]:
        assert of_a_device <= traced <= of_a_device | elsewhere


@pytest.mark.parametrize("name", ["keyed", "loss", "unsaid"])
def test_batches_that_cannot_be_split_stay_whole(ended, name):
    found, _ = ended
    for _, traced in found[name]:
        assert 16 in traced
        assert 4 not in traced


def test_the_devices_exchange_sums(ended):
    _, programs = ended
    spread = [text for text in programs if "num_partitions=4" in text]
    assert spread
    assert all(re.search(r"= .* all-reduce(-start)?\(", text) for text in spread)


def test_data_on_one_device_have_no_mesh():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    assert find_mesh((jnp.ones(3), np.ones(3), 1, None)) is None
    assert find_mesh(jax.device_put(jnp.ones(3), place)) is None
