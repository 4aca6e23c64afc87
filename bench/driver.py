"""Time the contestants of a case in interleaved rounds, once their results agree.

pyperf and asv start a new process for each sample of a round, which would compile every JAX program
again, and they compare no results. Here a process stays for the whole case, and a slow moment of
the machine hits all contestants alike.
"""

import math
import multiprocessing
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

# A shorter run is repeated until it lasts about this long.
SAMPLE_SECONDS = 0.1
# A worker that does not answer for so many seconds has failed.
PATIENCE = 300


class PeerFailed(Exception):
    """A peer cannot take part, for the reason that the message gives in one line."""


@dataclass(frozen=True)
class Contestant:
    """A peer with settings of its own.

    Args:
        label: its name, unique in the case.
        peer: the library that runs.
        options: settings that go over those of the case.
        variables: environment variables of its process.
        like: the label of the contestant whose results it must reproduce; "" is the first of the
            case, None is nobody.
        kind: replaces that of the case.
        series, size: the growth curve that it belongs to, and its place on the axis.
    """

    label: str
    peer: str = "iterlin"
    options: Mapping = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    like: str | None = ""
    kind: str = ""
    series: str = ""
    size: float = math.nan


@dataclass(frozen=True)
class Goal:
    """The ratio of the time of contestant `of` to that of contestant `to`.

    It should be at least `limit`, or with `at_most` at most; NaN is no goal. With `per_operation`
    each time is divided by the contestant's operations first.
    """

    text: str
    of: str
    to: str
    limit: float = math.nan
    at_most: bool = False
    per_operation: bool = False

    def ratios(self, outcome: "Outcome") -> np.ndarray:
        """Round by round, so that a slow moment of the machine cancels."""
        of, to = (np.asarray(outcome.seconds[label]) for label in (self.of, self.to))
        if self.per_operation:
            operations = [outcome.facts[label]["operations"] for label in (self.to, self.of)]
            of = of * operations[0] / operations[1]
        return of / to


@dataclass(frozen=True)
class Case:
    """Contestants on the same settings and inputs.

    Args:
        kind: what workers prepare.
        tolerance: how far results may be apart, relative to their size.
        alone: give each contestant a process of its own, and record its memory.
        inputs: let all start from arrays that the first contestant's peer makes.
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
    """What was measured of a case: seconds of each round and facts by label, the reasons of those
    who were left out by label, versions of packages by peer."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)


class Worker:
    """A process that runs `bench.worker.serve`."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], folder="."):
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                cwd=folder,
                env=dict(variables),
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def ask(self, *request):
        """Return the answer to (name, *arguments), or raise PeerFailed."""
        try:
            self.connection.send(request)
            if not self.connection.poll(PATIENCE):
                self.close()
                raise PeerFailed(f"no answer within {PATIENCE} s")
            succeeded, answer = self.connection.recv()
        except (OSError, EOFError):
            status = self.process.wait()
            raise PeerFailed(f"its process ended with status {status}") from None
        if not succeeded:
            raise PeerFailed(answer)
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


def compare(
    case: Case, start: Callable[[str, Mapping[str, str]], Worker], *, rounds: int
) -> Outcome:
    """Prepare and check all contestants, then take one sample of each in every round.

    A sample is the seconds of a run, the mean of as many as last SAMPLE_SECONDS. Each round begins
    with another contestant. One that fails, hangs or disagrees is left out.

    Args:
        case: what to compare.
        start: start(peer, variables) gives a worker, or raises PeerFailed.
        rounds: samples of each contestant.
    """
    outcome, workers, results, repeats, inputs = Outcome(), {}, {}, {}, {}
    first = case.contestants[0]

    def worker_of(contestant, alone=case.alone):
        key = contestant.peer, tuple(contestant.variables.items()), alone and contestant.label
        if key not in workers:
            worker = start(contestant.peer, contestant.variables)
            running.callback(worker.close)
            outcome.versions[contestant.peer], worker.start_bytes = worker.ask("hello")
            workers[key] = worker
        return workers[key]

    @contextmanager
    def left_out_if_it_fails(label):
        try:
            yield
        except PeerFailed as failure:
            print(f"{case.name}: {label} left out: {failure}", flush=True)
            outcome.left_out[label] = str(failure)
            outcome.seconds.pop(label, None)

    def prepare(contestant):
        label, worker = contestant.label, worker_of(contestant)
        if case.inputs and not inputs:
            # In a process for all: making inputs takes memory that is not the case's.
            inputs.update(worker_of(first, False).ask("inputs", case.kind, dict(case.settings)))
        settings = {**case.settings, **contestant.options}
        kind = contestant.kind or case.kind
        results[label], facts, seconds = worker.ask("prepare", label, kind, settings, inputs)
        model = contestant.like or first.label
        if contestant.like is not None and model != label:
            if model not in results:
                raise PeerFailed(f"nothing to compare with: {model} failed")
            apart = facts["disagreement"] = disagreement(results[model], results[label])
            if not apart <= case.tolerance:
                most = f"{apart:.1e}, more than {case.tolerance:g}"
                raise PeerFailed(f"disagrees with {model} by {most}")
        repeats[label] = min(max(round(SAMPLE_SECONDS / max(seconds, 1e-6)), 1), 1000)
        outcome.facts[label], outcome.seconds[label] = facts, []

    with ExitStack() as running:
        for contestant in case.contestants:
            with left_out_if_it_fails(contestant.label):
                prepare(contestant)
        turns = [c for c in case.contestants if c.label in outcome.seconds]
        for _ in range(rounds):
            for contestant in turns:
                label = contestant.label
                if label in outcome.seconds:
                    with left_out_if_it_fails(label):
                        seconds = worker_of(contestant).ask("run", label, repeats[label])
                        outcome.seconds[label].append(seconds)
            turns = turns[1:] + turns[:1]
        for contestant in turns if case.alone else ():
            with left_out_if_it_fails(contestant.label):
                worker = worker_of(contestant)
                now, peak = worker.ask("memory")
                memory = {"start_bytes": worker.start_bytes, "now_bytes": now, "peak_bytes": peak}
                outcome.facts[contestant.label] |= memory
    return outcome


def disagreement(expected: Mapping, found: Mapping) -> float:
    """The largest ||found - expected|| / ||expected|| of the arrays; inf for other shapes."""
    if {n: a.shape for n, a in expected.items()} != {n: a.shape for n, a in found.items()}:
        return math.inf
    worst = 0.0
    for name, array in expected.items():
        apart = np.linalg.norm(found[name] - array) / max(np.linalg.norm(array), 1e-300)
        worst = max(worst, float(apart)) if np.isfinite(apart) else math.inf
    return worst
