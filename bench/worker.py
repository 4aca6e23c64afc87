"""Answer the driver's requests in one peer's process: prepare a case, run it, tell its memory.

A request is a tuple (name, *arguments) over the pipe whose descriptor is the first argument of the
process. Only NumPy is imported, so that this module works in every peer's environment.
"""

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

# A shorter run is repeated until so much time has passed.
SAMPLE_SECONDS = 0.1


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
    inputs: Mapping[str, Callable[[dict], Mapping[str, np.ndarray]]] = {},
) -> None:
    """Answer requests until the driver closes the pipe.

    Args:
        kinds: for each kind of case, prepare(settings, arrays).
        packages: report the versions of these packages first.
        first: computes something small. Memory counts from then on, so that it does not matter
            whether a library loads its parts when it is imported or when it first computes.
        inputs: for a kind of case, inputs(settings), the arrays that all peers start from.
    """
    connection, ready = Connection(int(sys.argv[1])), None

    def hello():
        first()
        found = {name: version(name) for name in packages}
        return {"python": sys.version.split()[0], **found}, memory()[0]

    def make_inputs(kind, settings):
        return inputs[kind](settings) if kind in inputs else {}

    def prepare(kind, settings, arrays):
        nonlocal ready
        ready = kinds[kind](settings, arrays)
        return ready.results(ready.run()), dict(ready.facts)

    def run():
        started, count, seconds = time.perf_counter(), 0, 0.0
        while seconds < SAMPLE_SECONDS:
            ready.run()
            count, seconds = count + 1, time.perf_counter() - started
        return seconds / (count * ready.units)

    actions = {"hello": hello, "inputs": make_inputs, "prepare": prepare, "run": run}
    actions["peak"] = lambda: memory()[1]
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


def memory() -> tuple[int, int]:
    """Return the bytes that this process uses now, and at most since it started."""
    status = Path("/proc/self/status").read_text()
    sizes = (re.search(rf"{name}:\s*(\d+) kB", status)[1] for name in ("VmRSS", "VmHWM"))
    return tuple(1024 * int(size) for size in sizes)
