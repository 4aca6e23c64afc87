"""Time the contestants of a case in interleaved rounds, once their results agree.

pyperf and asv start a new process for each sample of a round, which would compile every JAX program
again, and they compare no results. Here a process stays for the whole case, and a slow moment of
the machine hits all contestants alike.
"""

import math
import multiprocessing
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

import numpy as np

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
        size: its place on the axis of a growth curve.
    """

    label: str
    peer: str = "iterlin"
    options: Mapping = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    like: str | None = ""
    kind: str = ""
    size: float = math.nan


@dataclass(frozen=True)
class Goal:
    """The ratio of the time of contestant `of` to that of contestant `to`.

    It should be at least `limit`, or with `at_most` at most. With `per_operation` each time is
    divided by the contestant's operations first.
    """

    text: str
    of: str
    to: str
    limit: float = 1.0
    at_most: bool = False
    per_operation: bool = False


@dataclass(frozen=True)
class Case:
    """Contestants on the same settings, which start from the same inputs.

    Args:
        kind: what workers prepare.
        tolerance: how far results may be apart, relative to their size.
        series: what the contestants' sizes are, if the case is a growth curve.
        fresh: a sample is the time from the start of a new process to its first results.
    """

    name: str
    kind: str
    contestants: Sequence[Contestant]
    settings: Mapping = field(default_factory=dict)
    tolerance: float = 1e-3
    goals: Sequence[Goal] = ()
    series: str = ""
    fresh: bool = False


@dataclass
class Outcome:
    """What was measured of a case: seconds of each round and facts by label, the reasons of those
    who were left out by label, versions of packages by peer."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def ratios(self, goal: Goal) -> np.ndarray:
        """Return a goal's ratio in each round, so that a slow moment of the machine cancels."""
        ratios = np.divide(self.seconds[goal.of], self.seconds[goal.to])
        if goal.per_operation:
            ratios *= self.facts[goal.to]["operations"] / self.facts[goal.of]["operations"]
        return ratios


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

    A sample is the seconds of a run, the mean of several if it is short. Each round begins with
    another contestant. One that fails, hangs or disagrees is left out. Each has a process of its
    own, whose memory is recorded; another process makes the inputs.

    Args:
        case: what to compare.
        start: start(peer, variables) gives a worker, or raises PeerFailed.
        rounds: samples of each contestant.
    """
    outcome, workers, results, requests = Outcome(), {}, {}, {}
    first = case.contestants[0]

    @contextmanager
    def left_out_if_it_fails(label):
        try:
            yield
        except PeerFailed as failure:
            print(f"{case.name}: {label} left out: {failure}", flush=True)
            outcome.left_out[label] = str(failure)
            outcome.seconds.pop(label, None)

    def worker_of(name, contestant):
        if name not in workers:
            workers[name] = start(contestant.peer, contestant.variables)
            running.callback(workers[name].close)
        return workers[name]

    def prepare(contestant):
        label, worker = contestant.label, worker_of(contestant.label, contestant)
        outcome.versions[contestant.peer], memory = worker.ask("hello")
        what = contestant.kind or case.kind, {**case.settings, **contestant.options}
        inputs = worker_of("inputs", first).ask("inputs", *what)
        requests[label] = "prepare", *what, inputs
        results[label], facts = worker.ask(*requests[label])
        outcome.facts[label] = {**facts, "start_bytes": memory}
        check(contestant)
        sample(contestant)  # the first one is slower
        outcome.seconds[label] = []

    def check(contestant):
        label, model = contestant.label, contestant.like or first.label
        if contestant.like is not None and model != label:
            if model not in results:
                raise PeerFailed(f"nothing to compare with: {model} failed")
            apart = disagreement(results[model], results[label])
            outcome.facts[label]["disagreement"] = apart
            if not apart <= case.tolerance:
                most = f"{apart:.1e}, more than {case.tolerance:g}"
                raise PeerFailed(f"disagrees with {model} by {most}")

    def sample(contestant):
        label = contestant.label
        if not case.fresh:
            return workers[label].ask("run")
        started = time.perf_counter()
        with closing(start(contestant.peer, contestant.variables)) as worker:
            worker.ask(*requests[label])
            return time.perf_counter() - started

    with ExitStack() as running:
        for contestant in case.contestants:
            with left_out_if_it_fails(contestant.label):
                prepare(contestant)
        turns = deque(c for c in case.contestants if c.label in outcome.seconds)
        for _ in range(rounds):
            for contestant in turns:
                if (label := contestant.label) in outcome.seconds:
                    with left_out_if_it_fails(label):
                        outcome.seconds[label].append(sample(contestant))
            turns.rotate(-1)
        for label in list(outcome.seconds):
            with left_out_if_it_fails(label):
                outcome.facts[label]["peak_bytes"] = workers[label].ask("peak")
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
