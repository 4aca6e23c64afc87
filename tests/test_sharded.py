import os
import re
import subprocess
import sys
from pathlib import Path

import iterlin as il
import jax.numpy as jnp
import problems
import pytest


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What `sharded_kernel.py` says on four devices of this host, and the programs it ran there."""
    programs = tmp_path_factory.mktemp("programs")
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    flags += " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags += f" --xla_dump_to={programs} --xla_dump_hlo_module_re=jit_kernel_rows"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("sharded_kernel.py")],
        env=environment | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.split() for line in done.stdout.splitlines())
    printed = {name: tuple(map(float, numbers)) for name, *numbers in lines}
    return printed, [path.read_text() for path in programs.glob("*after_optimizations.txt")]


def test_four_devices_give_the_kernel_of_one(ended):
    printed, _ = ended
    kernels = {name: found for name, found in printed.items() if "/" in name}
    assert len(kernels) == 8
    assert max(largest for largest, _ in kernels.values()) < 1e-5


def test_each_device_has_its_rows_alone(ended):
    printed, programs = ended
    assert {rows for name, (_, rows) in printed.items() if "/16/" in name} == {4}
    assert printed["two"] == (2, 8)
    assert sum("num_partitions=4" in text for text in programs) == 8
    assert not any(re.search(r"all-(reduce|gather|to-all)|collective-", t) for t in programs)


def test_one_device_is_the_kernel_itself():
    f, params, x, _ = problems.network((3, 6, 4), examples=5)
    assert jnp.array_equal(il.sharded_ntk(f, params, x), il.empirical_ntk(f, params, x, x))


def test_refuses_what_is_no_set_of_examples():
    f, params, x, _ = problems.network((3, 6, 4), examples=5)
    with pytest.raises(ValueError, match="devices"):
        il.sharded_ntk(f, params, x, devices=[])
    for nothing in (x[:0], {"a": x, "b": x[:2]}):
        with pytest.raises(ValueError, match="example"):
            il.sharded_ntk(f, params, nothing)
    with pytest.raises(ValueError, match="trace and diagonal"):
        il.sharded_ntk(f, params, x, trace=True, diagonal=True)
