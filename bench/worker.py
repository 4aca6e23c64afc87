"""Answer the driver's requests in one peer's process: prepare a case, run it, tell its memory.

A request is a tuple (name, *arguments) over the pipe whose descriptor is the first argument of the
process. Only NumPy is imported, so that this module works in every peer's environment.
"""

import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

# The environment variable that names what a peer computes on: "cpu" or "cuda".
DEVICE = "BENCH_DEVICE"
# The setting with which each run takes a new process.
FRESH = "fresh"


@dataclass(frozen=True)
class Prepared:
    """A case that is ready to be timed.

    Args:
        run: does all the work once and returns when it is done.
        results: takes what `run` returned and gives the arrays on which all peers must agree.
        units: what the time is divided by, such as the steps in a run.
        facts: numbers to record with the case, such as its operations.
    """

    run: Callable[[], object]
    results: Callable[[object], Mapping[str, np.ndarray]]
    units: float = 1
    facts: Mapping[str, float] = field(default_factory=dict)


def serve(
    kinds: Mapping[str, Callable[[dict, dict], Prepared]],
    *,
    packages: tuple[str, ...],
    first: Callable[[], object] = lambda: None,
    inputs: Mapping[str, Callable[[dict], Mapping[str, np.ndarray]]] | None = None,
) -> None:
    """Answer requests until the driver closes the pipe.

    Args:
        kinds: for each kind of case, prepare(settings, arrays).
        packages: report the versions of these packages first.
        first: computes something small. Memory counts from then on, so that it does not matter
            whether a library loads its parts when it is imported or when it first computes.
        inputs: for each kind of case, inputs(settings), the arrays that all peers start from.
    """
    if sys.argv[1] == FRESH:
        kind, settings, arrays = pickle.load(sys.stdin.buffer)
        with os.fdopen(os.dup(1), "wb") as answers:
            os.dup2(2, 1)  # what libraries print is no answer
            ready = kinds[kind](settings, arrays)
            pickle.dump(ready.results(ready.run()), answers)
        return
    connection, prepared = Connection(int(sys.argv[1])), {}

    def hello():
        first()
        found = {name: version(name) for name in packages}
        return {"python": sys.version.split()[0], **found}, memory()[0]

    def prepare(label, kind, settings, arrays):
        settings = dict(settings)
        make = partial(fresh, kind) if settings.pop(FRESH, False) else kinds[kind]
        ready = prepared[label] = make(settings, arrays)
        results = ready.results(ready.run())  # compiles
        return results, dict(ready.facts), run(label, 1) * ready.units

    def run(label, repeat):
        ready, started = prepared[label], time.perf_counter()
        for _ in range(repeat):
            ready.run()
        return (time.perf_counter() - started) / (repeat * ready.units)

    actions = {"hello": hello, "prepare": prepare, "run": run, "memory": memory}
    actions["inputs"] = lambda kind, settings: inputs[kind](settings)
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = True, actions[name](*arguments)
        except Exception as error:  # the driver names this peer and goes on without it
            answer = False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        connection.send(answer)


def fresh(kind: str, settings: dict, arrays: Mapping[str, np.ndarray]) -> Prepared:
    """A case in a process of its own: import, compile, run, and have the results."""
    request = pickle.dumps((kind, settings, dict(arrays)))
    command = [sys.executable, *sys.orig_argv[1:-1], FRESH]

    def run():
        return subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True).stdout

    return Prepared(run, pickle.loads)


def memory() -> tuple[int, int]:
    """Bytes in use now and at most since the start: the process's, or on a GPU the library's."""
    if os.environ.get(DEVICE, "cpu") == "cpu":
        status = Path("/proc/self/status").read_text()
        sizes = (re.search(rf"{name}:\s*(\d+) kB", status)[1] for name in ("VmRSS", "VmHWM"))
        return tuple(1024 * int(size) for size in sizes)
    if "torch" in sys.modules:
        cuda = sys.modules["torch"].cuda
        return cuda.memory_allocated(), cuda.max_memory_allocated()
    found = sys.modules["jax"].local_devices()[0].memory_stats()
    return found["bytes_in_use"], found["peak_bytes_in_use"]
