"""The benchmark: fair turns, right statistics, and a peer that fails is left out alone.

Nothing here is timed: peers are made up, and their seconds with them.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from iterlin_book import xla
from iterlin_study.records import records
from refusals import fails

from bench import __main__ as command
from bench import cases, environments
from bench import report as page
from bench.driver import Case, Contestant, Goal, Outcome, PeerFailed, Worker, compare
from bench.peers import iterlin as library
from bench.record import dataset

ROOT = Path(__file__).resolve().parents[2]
RESULT = {"gradient": np.array([3.0, 4.0])}


class Fake:
    """A worker that answers from a script: seconds by number of the run, or a failure."""

    def __init__(self, peer, seconds, result=RESULT, diary=None):
        self.peer, self.seconds, self.result, self.runs = peer, seconds, result, 0
        self.diary = [] if diary is None else diary

    def ask(self, name, *arguments):
        self.diary.append((name, self.peer, self))
        if name == "hello":
            return {"numpy": "0"}, 1
        if name == "inputs":
            return {"x": np.ones(2)}
        if name == "peak":
            return 3
        if isinstance(self.seconds, str):
            raise PeerFailed(self.seconds)
        if name == "prepare":
            return self.result, {}
        self.runs += 1
        return self.seconds(self.runs - 1)

    def close(self):
        self.diary.append(("close", self.peer, self))


def compared(peers, *, rounds=5, **settings):
    """Compare one contestant for each of peers = {name: (seconds, ...)}; return the diary, too."""
    diary = []

    def start(peer, variables):
        return Fake(peer, *peers[peer], diary=diary)

    case = Case("made up", "kind", [Contestant(peer, peer) for peer in peers], **settings)
    return compare(case, start, rounds=rounds), diary


def test_contestants_take_turns_and_their_memory_is_that_without_making_inputs():
    outcome, diary = compared({name: (lambda run: 1.0,) for name in "abc"}, rounds=6)
    runs = "".join(peer for name, peer, _ in diary if name == "run")
    rounds = [runs[i : i + 3] for i in range(3, len(runs), 3)]  # after one that is not counted
    assert all(sorted(each) == [*"abc"] for each in rounds)
    assert Counter(each[0] for each in rounds) == dict.fromkeys("abc", 2)
    assert {len(samples) for samples in outcome.seconds.values()} == {6}
    assert {peer for name, peer, _ in diary if name == "close"} == {*"abc"}
    assert outcome.facts["a"] == {"peak_bytes": 3, "start_bytes": 1}
    makers = {worker for name, _, worker in diary if name == "inputs"}
    assert makers.isdisjoint({worker for name, _, worker in diary if name == "peak"})


def test_ratios_are_taken_within_rounds():
    """A machine that gets ten times slower from round to round leaves the ratio as it is."""
    goals = [Goal("time", "b", "a"), Goal("rate", "b", "a", per_operation=True)]
    seconds = {"a": [1.0, 10.0], "b": [2.0, 20.0]}
    facts = {"a": {"operations": 30}, "b": {"operations": 20}}
    case = Case("made up", "kind", [Contestant("a"), Contestant("b")], goals=goals)
    found = dataset([case], {"made up": Outcome(seconds, facts)}, 2)
    np.testing.assert_allclose(found.ratio, [[2.0] * 2, [3.0] * 2])


def test_a_failing_peer_is_named_and_left_out():
    def breaks(run):
        if run == 2:
            raise PeerFailed("its process ended with status 9")
        return 1.0

    peers = {
        "ours": (lambda run: 1.0,),
        "absent": ("cannot be installed",),
        "wrong": (lambda run: 1.0, {"gradient": np.array([3.0, 4.1])}),
        "shapeless": (lambda run: 1.0, {"gradient": np.ones(3)}),
        "breaking": (breaks,),
        "good": (lambda run: 2.0, {"gradient": np.array([3.0, 4.0005])}),
    }
    outcome, _ = compared(peers)
    measured = {label: len(samples) for label, samples in outcome.seconds.items()}
    assert measured == {"ours": 5, "good": 5}
    assert outcome.facts["good"]["disagreement"] == pytest.approx(1e-4)
    reasons = {"absent": "installed", "wrong": "ours", "shapeless": "ours", "breaking": "status 9"}
    assert outcome.left_out.keys() == reasons.keys()
    assert all(reason in outcome.left_out[peer] for peer, reason in reasons.items())


def test_each_sample_of_a_first_result_is_a_new_process():
    _, diary = compared({name: (lambda run: 1.0,) for name in "ab"}, fresh=True)
    prepared = [worker for name, _, worker in diary if name == "prepare"]
    assert len(prepared) == len({*prepared}) == 2 * (1 + 1 + 5)
    assert {*prepared} < {worker for name, _, worker in diary if name == "close"}
    assert not [name for name, *_ in diary if name == "run"]


@pytest.fixture
def shown(monkeypatch):
    """The HTML that the page displays."""
    found = []
    monkeypatch.setattr(page, "display", lambda part: found.append(part.data))
    return found


def test_a_record_holds_what_was_measured_if_anything_was(monkeypatch, tmp_path, shown):
    growth = [Contestant(f"{n}", size=n) for n in (1, 2)]
    settings = {"goals": [Goal("2 against 1", "2", "1")], "series": "n"}
    made_up = [Case(name, "kind", growth, **settings) for name in ("first", "second")]
    target, built = tmp_path / "laptop.nc", tmp_path / "built" / "laptop.nc"
    monkeypatch.setattr(command, "BUILT", built.parent)
    monkeypatch.setattr(command.cases, "chosen", lambda words: made_up)
    monkeypatch.setattr(command.records, "path_of", lambda *_: target)

    def measured(seconds):
        monkeypatch.setattr(command, "starter", lambda *_: lambda peer, _: Fake(peer, seconds))
        return command.main([])

    assert measured("no device") == 1
    assert (built.exists(), target.exists()) == (True, False)
    assert measured(lambda run: 0.125) == 0
    found = records.load("performance", "laptop", target)
    assert json.loads(found.attrs["peers"]) == {"iterlin": {"numpy": "0"}}
    np.testing.assert_allclose(found.slope, 0, atol=1e-12)
    page.Report(found).show_times(["second"])
    assert sum("second" in text and "125 ms" in text for text in shown) == 1


def test_the_summary_names_the_cases_in_which_a_peer_is_faster(shown):
    report = page.Report(records.load("performance", "laptop"))
    table = {
        "compared_in": ["slow", "slow", "quick", "quick"],
        "compared": ["against a", "against b", "against a", "share of the floor"],  # no peer
        "median": [2.0, 0.5, 3.0, 0.4],
    }
    report.compared = pd.DataFrame(table)
    report.show_summary()
    (text,) = shown
    assert "1 of 2" in text
    assert "slow (0.5)" in text
    assert "quick" not in text


def test_the_cases_are_consistent():
    found = cases.all_cases()
    assert len({case.name for case in found}) == len(found)
    for case in found:
        labels = [contestant.label for contestant in case.contestants]
        assert len(set(labels)) == len(labels)
        for number, contestant in enumerate(case.contestants):
            own = contestant.peer == environments.OWN
            assert own or environments.lock_of(contestant.peer).is_file()
            # Compared with one that comes before it.
            assert not contestant.like or contestant.like in labels[: number + 1]
        assert {label for goal in case.goals for label in (goal.of, goal.to)} <= set(labels)
        assert case.name in [c.name for c in cases.chosen([case.name.upper()])]
    fails("'speed'", cases.chosen, ["speed"])


SMALL = {"network": [64, 8, 10], "examples": 12, "batch": 4, "step_size": 0.01}
SMALL |= {"steps": 2, "seeds": 2, "max_steps": 2, "damping": 1.0, "target": 0.0}
SMALL |= {"period": 2, "matmul": 4, "structure": "full"}
# What single kinds ask for besides.
SMALL |= {"step": "linearised", "product": "ggn", "form": "trace"}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", library.KINDS)
def test_the_library_can_prepare_every_kind_of_case(kind):
    ready = library.KINDS[kind](SMALL, library.INPUTS.get(kind, lambda _: {})(SMALL))
    found = ready.results(ready.run())
    assert all(np.all(np.isfinite(array)) for array in found.values())


def test_a_peer_sees_its_own_packages_threads_and_flags(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    theirs = environments.variables("torch", 3, {"A": "b"})
    assert "PYTHONPATH" not in theirs
    assert (theirs["OMP_NUM_THREADS"], theirs["NPROC"], theirs["A"]) == ("3", "3", "b")
    ours = environments.variables("iterlin", 3, {})
    assert (ours["PYTHONPATH"], ours["JAX_PLATFORMS"]) == ("/ours", "cpu")
    # XLA aborts on a flag that it does not know, as jaxlib 0.4 does not know this one.
    for peer, flags in (("optimistix", xla.NO_DEADLOCK), ("neural_tangents", None)):
        assert environments.variables(peer, 1, {}).get("XLA_FLAGS") == flags


def test_an_environment_that_cannot_be_made_says_why(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(environments, "BUILT", tmp_path / "file")
    fails("cannot be installed: ", environments.starter(1), "torch", {}, error=PeerFailed)


PEER = """
import numpy as np
from bench import worker

def prepare(settings, arrays):
    print("noise of a library")
    if settings.get("fail"):
        raise ValueError("not this one")
    return worker.Prepared(lambda: 2 * arrays["x"], lambda y: {"y": y}, facts={"operations": 7})

held = []
worker.serve(
    {"double": prepare},
    packages=("numpy",),
    first=lambda: held.append(np.ones(2**23)),
    inputs={"double": lambda settings: {"x": np.arange(settings["size"])}},
)
"""


def test_a_worker_answers_whatever_it_prints_or_raises(tmp_path):
    worker = Worker([sys.executable, "-c", PEER], {"PYTHONPATH": str(ROOT)}, tmp_path)
    versions, start = worker.ask("hello")
    assert set(versions) == {"python", "numpy"}
    assert start > 2**26  # what was computed first counts
    arrays = worker.ask("inputs", "double", {"size": 3})
    results, facts = worker.ask("prepare", "double", {}, arrays)
    np.testing.assert_array_equal(results["y"], [0, 2, 4])
    assert facts == {"operations": 7}
    with pytest.raises(PeerFailed, match="ValueError: not this one"):
        worker.ask("prepare", "double", {"fail": True}, arrays)
    assert worker.ask("run") > 0  # it goes on
    assert worker.ask("inputs", "single", {}) == {}
    assert worker.ask("peak") >= start
    worker.process.kill()
    fails("its process ended with status", worker.ask, "peak", error=PeerFailed)
    worker.close()
