"""Runs a script of this folder on four devices of this host."""

import os
import subprocess
import sys
from pathlib import Path


def run(script, programs, module):
    """The lines that the script prints, as lists of words, and its compiled programs of that name.

    programs: an empty folder, for the programs.
    """
    flags = "--xla_force_host_platform_device_count=4 --xla_dump_hlo_as_text "
    flags += f"--xla_dump_to={programs} --xla_dump_hlo_module_re={module} "
    flags += "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script)],
        env=environment | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    texts = [path.read_text() for path in programs.glob("*after_optimizations.txt")]
    return [line.split() for line in done.stdout.splitlines()], texts
