"""Runs a script of this folder on four devices of this host."""

import os
import subprocess
import sys
from pathlib import Path


def run(script):
    """Return the lines that the script prints, as lists of words."""
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 "
    flags += "--xla_llvm_disable_expensive_passes=true"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script)],
        env=environment | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split() for line in done.stdout.splitlines()]
