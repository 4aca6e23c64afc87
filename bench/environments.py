"""A virtual environment for each peer, from its lock, under _build/bench."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.driver import PeerFailed, Worker
from bench.worker import DEVICE

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "_build" / "bench"
OWN = "iterlin"
PEERS = (OWN, "torch", "neural_tangents", "optimistix", "jaxopt")
# An installation that takes longer has hung.
PATIENCE = 900
# With its other scheduler jaxlib 0.10 can wait for ever on two cores; older ones do not know it.
XLA = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
XLA_PEERS = (OWN, "optimistix")
# Variables of a process that say how many threads it may use.
THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# What each tier is measured on, as JAX and PyTorch call it. A peer's process is told by DEVICE.
PLATFORMS = {"laptop": "cpu", "gpu": "cuda"}


def lock_of(peer: str) -> Path:
    return ROOT / "bench" / f"{peer}.lock"


def interpreter(peer: str, given: Mapping[str, str] | None = None) -> str:
    """The Python that has the peer: given, this one for the library, or one made from its lock.

    Raises PeerFailed with pip's last line where the lock cannot be installed.
    """
    if peer in (given or {}):
        return given[peer]
    if peer == OWN:
        return sys.executable
    lock = lock_of(peer)
    if not lock.is_file():
        raise PeerFailed(f"no {lock.relative_to(ROOT)}")
    folder = BUILT / peer
    python = folder / "bin" / "python"
    stamp = folder / f".installed-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not stamp.exists():
        print(f"making {folder.relative_to(ROOT)} from {lock.relative_to(ROOT)}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        _run([*pip, "--no-deps", "--require-hashes", "-r", str(lock)])
        stamp.touch()
    return str(python)


def _run(command) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=_clean(os.environ)
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"installing took more than {PATIENCE} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise PeerFailed(f"cannot be installed: {lines[-1]}")


def variables(
    peer: str, threads: int, extra: Mapping[str, str], platform: str = "cpu"
) -> dict[str, str]:
    """The environment of a peer's process: so many threads, one platform, only its own packages."""
    found = dict(os.environ) if peer == OWN else _clean(os.environ)
    count = str(threads)
    found |= dict.fromkeys(THREADS, count)
    found["JAX_PLATFORMS"] = found[DEVICE] = platform
    found.pop("XLA_FLAGS", None)
    if platform != "cpu":
        # Processes share the device's memory, and nobody rounds the operands of a product.
        found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        found["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
        for name in ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"):
            found.pop(name, None)
    if peer == OWN:  # as the book does: what was compiled once serves the next run
        found.setdefault("JAX_COMPILATION_CACHE_DIR", str(BUILT / "jax"))
        found.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    if peer in XLA_PEERS and platform == "cpu":
        found["XLA_FLAGS"] = XLA
    return found | dict(extra)


def _clean(environment) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "PYTHONPATH"}


def starter(threads: int, given: Mapping[str, str], platform: str = "cpu"):
    """What a `driver.Pool` starts workers with; an environment that failed fails once."""
    failures: dict[str, str] = {}

    def start(peer, extra):
        if peer in failures:
            raise PeerFailed(failures[peer])
        if platform != "cpu" and peer != OWN and peer not in given:
            raise PeerFailed(f"its lock is for a CPU: name a Python that has it, PEERS={peer}=...")
        try:
            python = interpreter(peer, given)
        except PeerFailed as failure:
            failures[peer] = str(failure)
            raise
        command = [python, "-m", f"bench.peers.{peer}"]
        return Worker(command, variables(peer, threads, extra, platform), ROOT)

    return start
