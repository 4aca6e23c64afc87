"""Data on four devices, as `jax.make_mesh` spreads them or otherwise, give what one device does."""

import os
import subprocess
import sys
from pathlib import Path

import iterlin as il
import jax.numpy as jnp
import problems
import pytest

FLAGS = (
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"
)


@pytest.fixture(scope="module")
def printed():
    """What `on_four_devices.py` prints: name -> (difference from one device, sizes)."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    flags = f"{environment.get('XLA_FLAGS', '')} {FLAGS}"  # those that compile sooner, too
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("on_four_devices.py")],
        env=environment | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: (float(far), set(map(int, sizes))) for name, far, *sizes in lines}


def test_four_devices_give_the_numbers_of_one(printed):
    """By every call on Explicit axes, by sharded kernels and by each way of training."""
    assert len(printed) == 13 + 4 + 9
    bounds = {name: 1e-9 if name.startswith("explicit/") else 1e-5 for name in printed}
    assert {name for name, (far, _) in printed.items() if far > bounds[name]} == {"two"}


@pytest.mark.parametrize(
    ("name", "of_a_device"),
    [
        ("full", {16}),
        ("batches", {4}),
        ("run", {4, 2}),  # 18 are four each, and two by all
        ("slices", {7, 1}),  # eight, seven at a time
        ("iterated", {4}),
        ("sweep", {4}),
    ],
)
def test_each_device_has_its_part_of_a_batch(printed, name, of_a_device):
    _, traced = printed[name]
    elsewhere = {1, 2, 7, 64} if name in ("slices", "iterated") else {1, 64}  # looks at the whole
    assert of_a_device <= traced <= of_a_device | elsewhere


@pytest.mark.parametrize("name", ["keyed", "loss", "unsaid"])
def test_batches_that_cannot_be_split_stay_whole(printed, name):
    _, traced = printed[name]
    assert 16 in traced
    assert 4 not in traced


def test_each_device_computes_its_rows_of_a_kernel(printed):
    assert printed["kernel"][1] == {4}
    assert printed["two"] == (2, {8})


def test_one_device_gives_the_kernel_itself():
    f, params, x, _ = problems.network((3, 6, 4), examples=5)
    assert jnp.array_equal(il.sharded_ntk(f, params, x), il.empirical_ntk(f, params, x, x))


X = jnp.ones((5, 3))


@pytest.mark.parametrize(
    ("x", "settings", "message"),
    [
        (X, {"devices": []}, "devices"),
        (X, {"trace": True, "diagonal": True}, "trace and diagonal"),
        (X.at[2].set(jnp.nan), {}, "number 2"),
        ({"a": X, "b": X[:2]}, {}, "example"),
    ],
)
def test_bad_input_is_refused(x, settings, message):
    f, params, *_ = problems.network((3, 6, 4))
    with pytest.raises(ValueError, match=message):
        il.sharded_ntk(f, params, x, **settings)
