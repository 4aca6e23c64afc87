import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.runtime.devices import mesh_of, sum_over_devices
from jax.sharding import Mesh


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What `sharded_training.py` says on four devices of this host, and the programs it ran."""
    programs = tmp_path_factory.mktemp("programs")
    flags = "--xla_force_host_platform_device_count=4 --xla_dump_hlo_as_text "
    flags += f"--xla_dump_to={programs} --xla_dump_hlo_module_re=jit_advance "
    flags += "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("sharded_training.py")],
        env=environment | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = defaultdict(list)
    for name, difference, *traced in map(str.split, done.stdout.splitlines()):
        found[name].append((difference, set(map(int, traced))))
    return found, [path.read_text() for path in programs.glob("*after_optimizations.txt")]


@pytest.mark.optimized
def test_four_devices_train_as_one(ended):
    """However the data lie on them: spread over all, over some, or copied."""
    found, _ = ended
    counts = {"batches": 3, "slices": 2, "iterable": 2, "coupled": 2}
    counts |= dict.fromkeys(("remainder", "fixed", "sweep"), 1)
    trained = {
        name: [float(difference) for difference, _ in runs if difference != "-"]
        for name, runs in found.items()
    }
    assert {name: len(runs) for name, runs in trained.items() if runs} == counts
    assert max(max(runs) for runs in trained.values() if runs) < 1e-6


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("name", "of_a_device"),
    [
        ("full", {16}),
        ("batches", {4}),
        ("remainder", {4, 2}),  # 18 are four each, and two by all
        ("fewer", {3}),
        ("slices", {7, 1}),  # eight, seven at a time
        ("iterable", {4}),
        ("fixed", {4}),
        ("sweep", {4}),
    ],
)
def test_each_device_has_its_part_of_a_batch(ended, name, of_a_device):
    found, _ = ended
    elsewhere = {1, 2, 7, 64} if name in ("slices", "iterable") else {1, 64}  # looks at the whole
    for _, traced in found[name]:
        assert of_a_device <= traced <= of_a_device | elsewhere


@pytest.mark.optimized
@pytest.mark.parametrize("name", ["coupled", "keyed", "loss", "unsaid"])
def test_what_cannot_be_dealt_out_is_whole(ended, name):
    found, _ = ended
    for _, traced in found[name]:
        assert 16 in traced
        assert 4 not in traced


@pytest.mark.optimized
def test_the_devices_exchange_sums(ended):
    _, programs = ended
    spread = [text for text in programs if "num_partitions=4" in text]
    assert len(spread) >= 8
    assert all(re.search(r"= .* all-reduce(-start)?\(", text) for text in spread)


def test_one_device_is_no_mesh():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    assert mesh_of((jnp.ones(3), np.ones(3), 1, None)) is None
    assert mesh_of(jax.device_put(jnp.ones(3), place)) is None


def test_a_sum_over_one_device_is_the_sum():
    mesh, x = Mesh(np.array(jax.devices()[:1]), ("data",)), jnp.arange(6.0).reshape(3, 2)
    total = sum_over_devices(lambda a, b: {"s": (a * b).sum(0)}, mesh, x, x + 1)
    np.testing.assert_allclose(total["s"], (x * (x + 1)).sum(0))
