"""Data on a mesh as `jax.make_mesh` gives it, with Explicit axes, give what one device does."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np


def test_every_call_takes_data_on_explicit_axes():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    flags += " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("explicit_axes.py")],
        env=environment | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split("|") for line in done.stdout.splitlines())
    assert len(found) == 20
    np.testing.assert_array_less([float(largest) for largest in found.values()], 1e-9)
