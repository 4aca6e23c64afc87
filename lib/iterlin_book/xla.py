"""XLA flags of pages and tests, the folder of compiled programs, and variables for threads.

Flags are set only for the jaxlib that is known to take them: XLA aborts on others.
"""

import os
import platform
from importlib import metadata
from pathlib import Path

# Variables that limit a process's threads: NPROC the pools of XLA on the CPU, the others those of
# numpy and scipy.
THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KNOWN_TO = "0.10."
# With this scheduler two threads can wait for each other for ever, when a vmapped program has
# several decompositions that do not depend on each other.
NO_DEADLOCK = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
# Compiling takes half the time of a page at the quick tier and of a test. XLA's earlier code
# generator compiles in two thirds of the time, but its programs are slower. Loops over few classes
# or channels are unrolled whole otherwise: a gradient of ResNet18 then takes 2.7 times as long.
QUICKER = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling",
)


def set_flags(quick: bool) -> None:
    """Add the flags to XLA_FLAGS, each unless it is set there; `quick`: also QUICKER.

    They apply to processes started from here on, and to this one if JAX has not compiled yet.
    """
    if not metadata.version("jaxlib").startswith(KNOWN_TO):
        return
    given = os.environ.get("XLA_FLAGS", "").split()
    names = {flag.partition("=")[0] for flag in given}
    wanted = (NO_DEADLOCK, *QUICKER) if quick else (NO_DEADLOCK,)
    new = [flag for flag in wanted if flag.partition("=")[0] not in names]
    os.environ["XLA_FLAGS"] = " ".join([*given, *new])


def keep_programs(folder: Path) -> None:
    """Have processes started from here on keep their compiled programs in a folder of this machine.

    Programs of one machine's CPU may not run on another's. Each time a program is loaded, XLA warns
    of that, because it takes its own tuning flags for features of the CPU: the log is off. A
    program that another process is just writing is compiled, without JAX's warning.
    """
    os.environ.setdefault("PYTHONWARNINGS", "ignore:Error reading persistent compilation cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder.resolve() / platform.node()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # JAX has set it to 1
