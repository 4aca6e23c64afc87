"""Data on four devices, as `jax.make_mesh` spreads them or otherwise, give what one device does."""

import os
import subprocess
import sys
from pathlib import Path

import iterlin as il
import jax.numpy as jnp
import problems
import pytest
from refusals import refused

FLAGS = (
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"
)


@pytest.fixture(scope="module")
def printed():
    """What `on_four_devices.py` prints: name -> (difference from one device, sizes)."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"  # those that compile sooner, too
    path = os.pathsep.join([str(Path(problems.__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, Path(__file__).with_name("on_four_devices.py")]
    variables = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: (float(far), set(map(int, sizes))) for name, far, *sizes in lines}


def test_four_devices_give_the_numbers_of_one(printed):
    bounds = {name: 1e-9 if name.startswith("explicit/") else 1e-5 for name in printed}
    assert 1e-9 in bounds.values()
    assert {"trace", "of_last", *SIZES} < printed.keys()
    assert {name for name, (far, _) in printed.items() if far > bounds[name]} == {"two"}


# Of a device's part of a batch, and others that are traced: looks at the whole, what is left over.
SIZES = {
    "full": ({16}, {1, 64}),
    "batches": ({4}, {1, 64}),
    "run": ({4, 2}, {1, 64}),  # 18 are four each, and two by all
    "slices": ({7, 1}, {2, 64}),  # eight, seven at a time
    "iterated": ({4}, {1, 2, 7, 64}),
    "looked_up": ({16}, {1, 64}),
    "sweep": ({4}, {1, 64}),
    "kernel": ({4}, set()),  # rows
}


@pytest.mark.parametrize("name", SIZES)
def test_each_device_has_its_part_of_a_batch_and_its_rows_of_a_kernel(printed, name):
    part, others = SIZES[name]
    assert part <= printed[name][1] <= part | others


def test_batches_that_cannot_be_split_stay_whole(printed):
    for name in ("keyed", "loss", "unsaid"):
        assert 16 in printed[name][1]
        assert 4 not in printed[name][1]
    assert printed["two"] == (2, {8})


def test_one_device_gives_the_kernel_itself():
    f, params, x, _ = problems.network((3, 6, 4), examples=5)
    assert jnp.array_equal(il.sharded_ntk(f, params, x), il.empirical_ntk(f, params, x, x))


X = jnp.ones((5, 3))

test_bad_input_is_refused = refused(
    lambda x, settings: il.sharded_ntk(*problems.network((3, 6, 4))[:2], x, **settings),
    (X, {"devices": []}, "devices"),
    (X, {"trace": True, "diagonal": True}, "trace and diagonal"),
    (X.at[2].set(jnp.nan), {}, "number 2"),
    ({"a": X, "b": X[:2]}, {}, "example"),
)
