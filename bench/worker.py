"""A peer's side of a comparison: prepares cases and runs them on request.

It speaks JSON lines over its standard streams, one answer a request, and holds as many prepared
contestants as it is asked to. Only NumPy is imported, so that it runs in any peer's environment.

    {"do": "prepare", "id", "kind", "settings", "inputs", "results"}  -> {"facts", "seconds"}
    {"do": "run", "id", "repeat"}                                     -> {"seconds"}
    {"do": "inputs", "kind", "settings", "path"}                      -> {}
    {"do": "memory"}                                                  -> {"now", "peak"}
    {"do": "forget", "id"}                                            -> {}
"""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

# The environment variable that names what a peer computes on: "cpu" or "cuda".
DEVICE = "BENCH_DEVICE"


@dataclass(frozen=True)
class Prepared:
    """A case ready to be timed.

    run() does all of it once and returns when it is done; the time is divided by `units` (steps in
    a run, say). results(what run returned) -> arrays that every peer must agree on. facts: numbers
    that go with the case.
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
    """Answer requests until the input ends.

    kinds: name of a kind of case -> prepare(settings, arrays). inputs: name -> the arrays that all
    peers start from. packages: those whose versions are reported first. first() computes something
    small: what a library loads for that, be it at its import or later, is there before memory
    counts.
    """
    # Whatever a library prints goes to stderr; the answers have their stream to themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    prepared: dict[str, Prepared] = {}

    def answer(**content):
        print(json.dumps(content), file=answers, flush=True)

    def act(request):
        match request["do"]:
            case "inputs":
                np.savez(request["path"], **inputs[request["kind"]](request["settings"]))
                return {}
            case "prepare":
                arrays = {}
                if request["inputs"]:
                    with np.load(request["inputs"]) as stored:
                        arrays = dict(stored)
                ready = kinds[request["kind"]](request["settings"], arrays)
                outcome = ready.run()  # compiles
                np.savez(request["results"], **ready.results(outcome))
                del outcome
                prepared[request["id"]] = ready
                return {"facts": dict(ready.facts), "seconds": _seconds(ready, 1) * ready.units}
            case "run":
                return {"seconds": _seconds(prepared[request["id"]], request["repeat"])}
            case "memory":
                return _memory()
            case "forget":
                prepared.pop(request["id"], None)
                gc.collect()
                return {}
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")

    def attempt(action):
        try:
            answer(ok=True, **action())
        except Exception as error:  # whatever it is, the driver names this peer and goes on
            text = " ".join(str(error).split())[:300]
            answer(ok=False, error=f"{type(error).__name__}: {text}")

    def hello():
        first()
        return {"versions": _versions(packages), **_memory()}

    attempt(hello)
    for line in sys.stdin:
        attempt(lambda request=line: act(json.loads(request)))


def _seconds(ready: Prepared, repeat: int) -> float:
    started = time.perf_counter()
    for _ in range(repeat):
        ready.run()
    return (time.perf_counter() - started) / (repeat * ready.units)


def _memory() -> dict[str, int]:
    """Bytes of memory, now and at the most since this process began: resident, or the GPU's."""
    if os.environ.get(DEVICE, "cpu") != "cpu":
        return _device_memory()
    status = Path("/proc/self/status")
    if not status.exists():
        scale = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
        return {"now": peak, "peak": peak}
    sizes = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    now, peak = (1024 * int(sizes[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return {"now": now, "peak": peak}


def _device_memory() -> dict[str, int]:
    """What the peer's own library has of the first GPU."""
    if "torch" in sys.modules:
        cuda = sys.modules["torch"].cuda
        return {"now": cuda.memory_allocated(), "peak": cuda.max_memory_allocated()}
    found = sys.modules["jax"].local_devices()[0].memory_stats()
    return {"now": found["bytes_in_use"], "peak": found["peak_bytes_in_use"]}


def _versions(packages) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
