"""Runs a case's contestants in turn, so that whatever else the machine does hits all alike.

Each contestant lives in a worker process of its peer's environment (`bench.worker`). Before it is
timed its results are compared with those of the case's first contestant; one that fails, hangs or
disagrees is named and left out, and the rest goes on.
"""

import json
import math
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

# A sample lasts about this long: a run shorter than that is repeated.
SAMPLE_SECONDS = 0.1
# After that many seconds without an answer a worker is given up.
PATIENCE = 300


class PeerFailed(Exception):
    """A peer cannot take part; the message says why, in one line."""


@dataclass(frozen=True)
class Contestant:
    """One of those that are compared: a peer with settings of its own.

    label: its name, unique in the case. options go over the case's settings. variables: of its
    process's environment. like: whose results it must have, "" for the case's first contestant,
    None for nobody's. kind, tolerance: instead of the case's. series, size: the growth curve that
    it belongs to, and where on its axis it stands.
    """

    label: str
    peer: str = "iterlin"
    options: Mapping = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    like: str | None = ""
    kind: str = ""
    tolerance: float | None = None
    series: str = ""
    size: float = math.nan


@dataclass(frozen=True)
class Goal:
    """The ratio of one contestant's time to another's, and what it should be.

    limit is the least it should be, or with `at_most` the most; NaN for a ratio without a goal.
    per_operation divides each time by the contestant's operations first.
    """

    text: str
    of: str
    to: str
    limit: float = math.nan
    at_most: bool = False
    per_operation: bool = False


@dataclass(frozen=True)
class Case:
    """What is compared: contestants on the same settings and inputs.

    kind: what workers are asked to prepare; a contestant may name another. tolerance: how far
    results may be from those they should be, relative to their size. inputs: whether all start
    from arrays that the first one makes. alone: every contestant has a process of its own, whose
    memory is then its own too.
    """

    name: str
    kind: str
    contestants: Sequence[Contestant]
    settings: Mapping = field(default_factory=dict)
    tolerance: float = 1e-3
    alone: bool = False
    inputs: bool = True
    goals: Sequence[Goal] = ()


@dataclass
class Outcome:
    """By label: seconds of every round, facts, disagreement; and who was left out, and why."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, dict] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Worker:
    """A peer's process."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], root: Path):
        self.process = subprocess.Popen(
            list(command),
            cwd=root,
            env=dict(variables),
            bufsize=0,  # nothing is left to flush to a process that has ended
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.buffer = b""
        try:
            self.hello = self._answer(PATIENCE)
        except PeerFailed:
            self.close()
            raise

    def ask(self, patience: float = PATIENCE, **request) -> dict:
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise PeerFailed(self._ended()) from None
        return self._answer(patience)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()

    def _answer(self, patience) -> dict:
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], patience)
            if not ready:
                self.close()
                raise PeerFailed(f"no answer within {patience:g} s")
            read = os.read(self.process.stdout.fileno(), 2**16)
            if not read:
                raise PeerFailed(self._ended())
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b"\n")
        answer = json.loads(line)
        if not answer.pop("ok"):
            raise PeerFailed(answer["error"])
        return answer

    def _ended(self) -> str:
        return f"its process ended with status {self.process.wait()}"


class Pool:
    """Worker processes by peer and environment, started when they are first needed.

    start(peer, variables) -> Worker, or raises PeerFailed.
    """

    def __init__(self, start: Callable[[str, Mapping[str, str]], Worker]):
        self.start, self.workers, self.versions = start, {}, {}

    def get(self, contestant: Contestant, alone: str = "") -> Worker:
        key = (contestant.peer, tuple(sorted(contestant.variables.items())), alone)
        worker = self.workers.get(key)
        if worker is None or worker.process.poll() is not None:
            worker = self.workers[key] = self.start(contestant.peer, contestant.variables)
            self.versions[contestant.peer] = worker.hello.get("versions", {})
        return worker

    def close(self, *, alone: bool = False) -> None:
        """End all workers, or those that belong to one contestant only."""
        for key in [key for key in self.workers if key[2] or not alone]:
            self.workers.pop(key).close()


def compare(
    case: Case, pool: Pool, *, rounds: int, say: Callable[[str], None] = lambda text: None
) -> Outcome:
    """Prepare and check all contestants, then `rounds` times one sample of each, in turn.

    Preparing has run each twice. A sample is seconds for a run, the mean of as many as last
    SAMPLE_SECONDS; whose turn is first changes from round to round.
    """
    outcome = Outcome()
    first = case.contestants[0]
    found: dict[str, dict] = {}
    ready: list[tuple[Contestant, Worker, int]] = []

    def leave_out(contestant, reason):
        outcome.left_out[contestant.label] = reason
        outcome.seconds.pop(contestant.label, None)
        say(f"{case.name}: {contestant.label} left out: {reason}")

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        inputs, results = Path(folder, "inputs.npz"), Path(folder, "results.npz")
        for contestant in case.contestants:
            label = contestant.label
            try:
                worker = pool.get(contestant, label if case.alone else "")
                if case.inputs and contestant is first:
                    # By a process for everybody: making them takes memory that is not the case's.
                    pool.get(contestant).ask(
                        do="inputs", kind=case.kind, settings=dict(case.settings), path=str(inputs)
                    )
                if case.inputs and not inputs.exists():
                    raise PeerFailed(f"nothing to start from: {first.label} failed")
                answer = worker.ask(
                    do="prepare",
                    id=label,
                    kind=contestant.kind or case.kind,
                    settings={**case.settings, **contestant.options},
                    inputs=str(inputs) if case.inputs else "",
                    results=str(results),
                )
                with np.load(results) as stored:
                    found[label] = dict(stored)
                model = contestant.like or first.label
                if contestant.like is not None and model != label:
                    if model not in found:
                        raise PeerFailed(f"nothing to compare with: {model} failed")
                    error = outcome.errors[label] = disagreement(found[model], found[label])
                    most = case.tolerance if contestant.tolerance is None else contestant.tolerance
                    if not error <= most:
                        raise PeerFailed(
                            f"disagrees with {model} by {error:.1e}, more than {most:g}"
                        )
            except PeerFailed as failure:
                leave_out(contestant, str(failure))
                continue
            repeat = round(SAMPLE_SECONDS / max(answer["seconds"], 1e-6))
            outcome.facts[label] = answer["facts"]
            outcome.seconds[label] = []
            ready.append((contestant, worker, min(max(repeat, 1), 1000)))

        for number in range(rounds):
            turn = number % len(ready) if ready else 0
            for contestant, worker, repeat in ready[turn:] + ready[:turn]:
                try:
                    answer = worker.ask(do="run", id=contestant.label, repeat=repeat)
                    outcome.seconds[contestant.label].append(answer["seconds"])
                except PeerFailed as failure:
                    leave_out(contestant, str(failure))
            ready = [entry for entry in ready if entry[0].label in outcome.seconds]

        for contestant, worker, _ in ready:
            try:
                if case.alone:
                    memory = {f"{k}_bytes": v for k, v in worker.ask(do="memory").items()}
                    outcome.facts[contestant.label] |= memory
                    outcome.facts[contestant.label]["start_bytes"] = worker.hello["now"]
                worker.ask(do="forget", id=contestant.label)
            except PeerFailed as failure:
                say(f"{case.name}: {contestant.label}: {failure}")
    pool.close(alone=True)
    return outcome


def disagreement(expected: Mapping, found: Mapping) -> float:
    """The largest over arrays of ||found - expected|| / ||expected||; infinite for other shapes."""
    if set(expected) != set(found):
        return math.inf
    worst = 0.0
    for name, array in expected.items():
        if found[name].shape != array.shape:
            return math.inf
        size, apart = np.linalg.norm(array), np.linalg.norm(found[name] - array)
        if not np.isfinite(apart):
            return math.inf
        worst = max(worst, float(apart / max(size, 1e-300)))
    return worst
