"""A virtual environment for each peer, made from its lock under _build/bench."""

import functools
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from iterlin_book import xla

from bench.driver import PeerFailed, Worker

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "_build" / "bench"
OWN = "iterlin"


def lock_of(peer: str) -> Path:
    return ROOT / "bench" / f"{peer}.lock"


def interpreter(peer: str) -> str:
    """Return the Python that has the peer; install its lock if that has not been done.

    Raises:
        PeerFailed: if the lock cannot be installed.
    """
    if peer == OWN:
        return sys.executable
    lock, folder = lock_of(peer), BUILT / peer
    python = str(folder / "bin" / "python")
    stamp = folder / f".installed-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not stamp.exists():
        print(f"installing bench/{lock.name} in _build/bench/{peer}", flush=True)
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-deps"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [*pip, "--require-hashes", "-r", str(lock)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, env=_theirs())
            if done.returncode:
                last = (done.stderr.strip() or "no message").splitlines()[-1]
                raise PeerFailed(f"cannot be installed: {last}")
        stamp.touch()
    return python


def variables(peer: str, threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a peer's process: its threads and own packages only."""
    found = dict(os.environ if peer == OWN else _theirs())
    found |= dict.fromkeys(xla.THREADS, str(threads))
    found["JAX_PLATFORMS"] = "cpu"
    found.pop("XLA_FLAGS", None)
    if _jaxlib(peer).startswith(xla.KNOWN_TO):
        found["XLA_FLAGS"] = xla.NO_DEADLOCK
    if peer == OWN:  # as in the book: what was compiled once serves the next run
        found.setdefault("JAX_COMPILATION_CACHE_DIR", str(BUILT / "jax"))
        found.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    return found | dict(extra)


def _jaxlib(peer: str) -> str:
    """Return the version of jaxlib in the peer's environment, or "" if there is none."""
    if peer == OWN:
        return metadata.version("jaxlib")
    return "".join(re.findall(r"^jaxlib==(\S+)", lock_of(peer).read_text("utf8"), re.MULTILINE))


def _theirs() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def starter(threads: int) -> Callable[[str, Mapping[str, str]], Worker]:
    """Return start(peer, variables) for `driver.compare`; each environment is tried once."""

    @functools.cache
    def found(peer):
        try:
            return interpreter(peer)
        except PeerFailed as failure:
            return failure

    def start(peer, extra):
        if isinstance(python := found(peer), PeerFailed):
            raise python
        command = [python, "-m", f"bench.peers.{peer}"]
        return Worker(command, variables(peer, threads, extra), ROOT)

    return start
