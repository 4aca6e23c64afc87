"""The benchmark's driver: fair turns, right statistics, and a peer that fails costs only itself.

Nothing here is timed: peers are made up, and their seconds with them.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from iterlin.study import records

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from bench import __main__ as command  # noqa: E402
from bench import cases, driver, environments, whole  # noqa: E402
from bench import worker as peer_worker  # noqa: E402
from bench.driver import Case, Contestant, Goal, PeerFailed, Pool, Worker, compare  # noqa: E402
from bench.peers.ours import exact as exact_peer  # noqa: E402
from bench.peers.ours import steps, sweeps  # noqa: E402
from bench.record import dataset, slopes  # noqa: E402

RESULT = {"gradient": np.array([3.0, 4.0])}


class Fake:
    """A worker that answers from a script: seconds by number of the run, or a failure."""

    def __init__(self, diary, peer, seconds, result=None, facts=None):
        self.diary, self.peer, self.seconds = diary, peer, seconds
        self.result, self.facts = RESULT if result is None else result, facts or {}
        self.runs, self.closed = 0, False
        self.process = SimpleNamespace(poll=lambda: None)
        self.hello = {"versions": {"numpy": "0"}, "now": 1}

    def ask(self, **request):
        match request["do"]:
            case "inputs":
                np.savez(request["path"], x=np.ones(2))
            case "prepare":
                if isinstance(self.seconds, str):
                    raise PeerFailed(self.seconds)
                np.savez(request["results"], **self.result)
                return {"facts": dict(self.facts), "seconds": self.seconds(0)}
            case "run":
                self.diary.append(request["id"])
                seconds = self.seconds(self.runs)
                self.runs += 1
                return {"seconds": seconds}
            case "memory":
                return {"now": 2, "peak": 3}
        return {}

    def close(self):
        self.closed = True


def compared(peers, *, rounds=5, alone=False, said=None, **settings):
    """compare() of one contestant for each of peers = {name: (seconds, ...)}."""
    diary, workers = [], {}

    def start(peer, variables):
        workers[peer] = Fake(diary, peer, *peers[peer])
        return workers[peer]

    contestants = [Contestant(peer, peer) for peer in peers]
    case = Case("made up", "kind", contestants, alone=alone, **settings)
    said = [] if said is None else said
    return compare(case, Pool(start), rounds=rounds, say=said.append), diary, workers


def test_contestants_take_turns_and_nobody_is_always_first():
    peers = {name: (lambda run: 1.0,) for name in "abc"}
    outcome, diary, _ = compared(peers, rounds=6)
    by_round = [diary[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(turns) == ["a", "b", "c"] for turns in by_round)
    assert [turns[0] for turns in by_round] == ["a", "b", "c"] * 2
    assert {len(samples) for samples in outcome.seconds.values()} == {6}


def test_ratios_are_taken_within_rounds():
    """A machine that gets ten times slower from round to round leaves the ratio as it is."""
    peers = {
        "a": (lambda run: 10.0**run, None, {"operations": 30}),
        "b": (lambda run: 2 * 10.0**run, None, {"operations": 20}),
    }
    outcome, _, _ = compared(peers)
    goals = [Goal("time", "b", "a", 1.5), Goal("rate", "b", "a", per_operation=True)]
    case = Case("made up", "kind", [Contestant("a"), Contestant("b")], goals=goals)
    found = dataset([case], {"made up": outcome}, 5)
    np.testing.assert_allclose(found.ratio, [[2.0] * 5, [3.0] * 5])
    assert np.isnan(found.limit[1])


def test_a_failing_peer_is_named_and_left_out():
    def breaks(run):
        if run == 2:
            raise PeerFailed("its process ended with status 9")
        return 1.0

    said = []
    peers = {
        "ours": (lambda run: 1.0,),
        "absent": ("cannot be installed",),
        "wrong": (lambda run: 1.0, {"gradient": np.array([3.0, 4.1])}),
        "shapeless": (lambda run: 1.0, {"gradient": np.ones(3)}),
        "breaking": (breaks,),
        "good": (lambda run: 2.0, {"gradient": np.array([3.0, 4.0005])}),
    }
    outcome, _, _ = compared(peers, said=said)
    assert set(outcome.seconds) == {"ours", "good"}
    assert len(outcome.seconds["good"]) == 5
    assert outcome.left_out["absent"] == "cannot be installed"
    assert "disagrees with ours by 2.0e-02" in outcome.left_out["wrong"]
    assert "status 9" in outcome.left_out["breaking"]
    assert outcome.errors["good"] == pytest.approx(1e-4)
    assert len(said) == 4 == len(outcome.left_out)


def test_a_contestant_may_have_a_tolerance_of_its_own():
    near = {"gradient": np.array([3.0, 4.1])}
    workers = {
        "ours": (lambda run: 1.0,),
        "near": (lambda run: 1.0, near),
        "far": (lambda run: 1.0, near),
    }
    contestants = [Contestant("ours", "ours"), Contestant("near", "near", tolerance=0.1)]
    case = Case("made up", "kind", [*contestants, Contestant("far", "far")])
    pool = Pool(lambda peer, variables: Fake([], peer, *workers[peer]))
    outcome = compare(case, pool, rounds=5)
    assert set(outcome.seconds) == {"ours", "near"}
    assert "more than 0.001" in outcome.left_out["far"]


@pytest.mark.parametrize("broken", [True, False])
def test_a_record_is_not_replaced_by_one_with_nothing_in_it(monkeypatch, tmp_path, broken):
    seconds = "no device" if broken else lambda run: 1.0
    only = [Case("only", "kind", [Contestant("a")])]
    monkeypatch.setattr(command, "starter", lambda *_: lambda peer, _: Fake([], peer, seconds))
    monkeypatch.setattr(command, "BUILT", tmp_path / "built")
    monkeypatch.setattr(command.cases, "chosen", lambda words, tier: only)
    monkeypatch.setattr(whole, "stored", dict)
    target = tmp_path / "results" / "laptop.nc"
    monkeypatch.setattr(command.records, "path_of", lambda *_: target)
    assert command.main([]) == (command.FAILED if broken else 0)
    assert target.exists() != broken
    assert (tmp_path / "built" / "laptop.nc").exists()


def test_without_the_first_contestant_the_others_have_nothing_to_agree_with():
    peers = {"ours": ("broken",), "other": (lambda run: 1.0,)}
    outcome, diary, _ = compared(peers, inputs=False)
    assert not outcome.seconds
    assert not diary
    assert "ours failed" in outcome.left_out["other"]


def test_memory_is_that_of_a_process_of_its_own():
    outcome, _, workers = compared({"ours": (lambda run: 1.0,)}, alone=True, inputs=False)
    assert outcome.facts["ours"] == {"now_bytes": 2, "peak_bytes": 3, "start_bytes": 1}
    assert workers["ours"].closed


@pytest.mark.parametrize("error", [0.0, 0.25])
def test_disagreement_is_relative_and_the_worst_of_all_arrays(error):
    expected = {"a": np.array([3.0, 4.0]), "b": np.ones(4)}
    found = {"a": expected["a"] * (1 + error), "b": expected["b"]}
    assert driver.disagreement(expected, found) == pytest.approx(error)
    assert driver.disagreement(expected, {"a": expected["a"]}) == np.inf
    assert driver.disagreement(expected, found | {"b": np.full(4, np.nan)}) == np.inf


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7])
def test_slopes_of_power_laws(power):
    sizes = np.array([1.0, 2.0, 8.0, 64.0])
    seconds = np.outer(sizes**power, [1e-3, 2.0, 5.0])
    np.testing.assert_allclose(slopes(sizes, seconds), power, atol=1e-12)


def test_a_growth_curve_becomes_slopes_in_the_record():
    contestants = [Contestant(f"{n}", f"p{n}", series="n", size=n) for n in (1, 10, 100)]
    outcome = driver.Outcome(
        seconds={f"{n}": [2.0 * n, 3.0 * n] for n in (1, 10, 100)},
        facts={f"{n}": {"operations": n} for n in (1, 10, 100)},
    )
    found = dataset([Case("grown", "kind", contestants)], {"grown": outcome}, 2)
    np.testing.assert_allclose(found.slope, 1)
    assert found["curve"].values.tolist() == ["n"]
    np.testing.assert_array_equal(found.operations, [1, 10, 100])


@pytest.mark.parametrize(("alone", "processes"), [(True, 2), (False, 1)])
def test_inputs_are_made_outside_of_a_process_whose_memory_is_measured(alone, processes):
    asked = []

    class Noted(Fake):
        def ask(self, **request):
            asked.append((self, request["do"]))
            return super().ask(**request)

    pool = Pool(lambda peer, variables: Noted([], peer, lambda run: 1.0))
    compare(Case("made up", "kind", [Contestant("ours", "ours")], alone=alone), pool, rounds=5)
    assert len({worker for worker, _ in asked}) == processes
    (maker,) = (worker for worker, what in asked if what == "inputs")
    assert ((maker, "run") in asked) == (not alone)


def test_partial_results_are_saved_as_they_come(monkeypatch, tmp_path):
    """An interrupt in the second case leaves a partial record of the first."""

    def start(peer, variables):
        return Fake([], peer, lambda run: 1.0)

    def interrupted(case, *arguments, **settings):
        if case.name == "second":
            raise KeyboardInterrupt
        return compare(case, *arguments, **settings)

    monkeypatch.setattr(command, "compare", interrupted)
    monkeypatch.setattr(whole, "stored", dict)
    two = [Case(name, "kind", [Contestant("a")]) for name in ("first", "second")]
    options = argparse.Namespace(threads=1, rounds=5, tier="laptop")
    path = tmp_path / "laptop.nc"
    with pytest.raises(KeyboardInterrupt):
        command.run(two, options, Pool(start), path)
    kept = records.load("performance", "laptop", path)
    assert kept["case"].values.tolist() == ["first"]
    assert records.missing_runs(kept) == len(cases.all_cases()) - 1
    assert json.loads(kept.attrs["peers"])["iterlin"] == {"numpy": "0"}


def test_cases_are_chosen_by_parts_of_their_names():
    everything = [case.name for case in cases.all_cases()]
    assert [case.name for case in cases.chosen([])] == everything
    assert len(set(everything)) == len(everything)
    chosen = [case.name for case in cases.chosen(["ntk", "quint", "Newton"][::2])]
    assert chosen == [n for n in everything if "NTK" in n or "Newton" in n]
    with pytest.raises(ValueError, match="no case is called 'speed'"):
        cases.chosen(["speed"])


EVERY_CASE = [(tier, case) for tier in environments.PLATFORMS for case in cases.all_cases(tier)]


@pytest.mark.parametrize(
    "case",
    [case for _, case in EVERY_CASE],
    ids=[f"{tier}, {case.name}" for tier, case in EVERY_CASE],
)
def test_the_cases_are_consistent(case):
    labels = [contestant.label for contestant in case.contestants]
    assert len(set(labels)) == len(labels)
    for number, contestant in enumerate(case.contestants):
        assert contestant.peer in environments.PEERS
        # Compared with one that comes before it.
        assert not contestant.like or contestant.like in labels[: number + 1]
    for goal in case.goals:
        assert {goal.of, goal.to} <= set(labels)
    json.dumps([dict(case.settings), [dict(c.options) for c in case.contestants]])


def test_a_gpu_has_cases_of_its_own_and_only_peers_that_can_use_it():
    for case in cases.all_cases("gpu"):
        assert case.contestants[0].peer == "iterlin"
        assert {contestant.peer for contestant in case.contestants} <= {"iterlin", "torch"}
    assert {case.name for case in cases.chosen(["lenets"], "gpu")} == {
        "growth with LeNets, plain",
        "growth with LeNets, linearised",
    }
    with pytest.raises(ValueError, match="no case is called 'quintic'"):
        cases.chosen(["quintic"], "gpu")


def test_on_a_gpu_everybody_computes_there_in_full_precision():
    given = environments.variables("iterlin", 3, cases.DOUBLE, "cuda")
    assert (given["JAX_PLATFORMS"], given[peer_worker.DEVICE]) == ("cuda", "cuda")
    assert given["JAX_DEFAULT_MATMUL_PRECISION"] == "highest"
    assert given["JAX_ENABLE_X64"] == "1"
    assert "XLA_FLAGS" not in given
    rounded = environments.variables("iterlin", 3, cases.TF32, "cuda")
    assert rounded["JAX_DEFAULT_MATMUL_PRECISION"] == "tensorfloat32"
    assert environments.variables("torch", 3, {}, "cuda")[peer_worker.DEVICE] == "cuda"
    assert environments.variables("torch", 3, {})[peer_worker.DEVICE] == "cpu"


def test_a_peer_pinned_to_a_cpu_says_what_a_gpu_needs():
    start = environments.starter(1, {}, "cuda")
    with pytest.raises(PeerFailed, match="PEERS=torch="):
        start("torch", {})


def test_a_flow_that_is_stuck_is_an_error_not_a_hang(monkeypatch):
    stuck = SimpleNamespace(steps=3, failed=True)
    engine = SimpleNamespace(
        begin=lambda anchor: SimpleNamespace(steps=0), forward=lambda *_: stuck
    )
    monkeypatch.setattr(exact_peer, "_engine", lambda *_: (engine, {}))
    settings = dict.fromkeys(("engine", "squared", "examples", "hidden", "step_size"), 0)
    monkeypatch.setattr(exact_peer, "precision", lambda settings: None)
    with pytest.raises(RuntimeError, match="stuck after 3 of 5 steps"):
        exact_peer.linearization(settings | {"period": 5}, {})


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_memory_on_a_gpu_is_the_gpus(monkeypatch, library):
    cuda = SimpleNamespace(memory_allocated=lambda: 5, max_memory_allocated=lambda: 7)
    statistics = {"bytes_in_use": 5, "peak_bytes_in_use": 7}
    devices = [SimpleNamespace(memory_stats=lambda: statistics)]
    fakes = {
        "torch": SimpleNamespace(cuda=cuda),
        "jax": SimpleNamespace(local_devices=lambda: devices),
    }
    monkeypatch.setenv(peer_worker.DEVICE, "cuda")
    monkeypatch.setattr(peer_worker.sys, "modules", {library: fakes[library]})
    assert peer_worker._memory() == {"now": 5, "peak": 7}


@pytest.fixture
def precision_restored():
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def test_a_step_in_float64_is_the_step_up_to_rounding(precision_restored):
    """What is compared on a GPU, with a small network."""
    settings = cases.LENET | cases.LINEARISED | {"channels": 2, "examples": 4}
    arrays = steps.inputs(settings)
    found = {}
    for double in (True, False):
        ready = steps.step(settings | {"double": double}, arrays)
        found[double] = ready.results(ready.run())
    assert found[True]["displacement"].dtype == np.float64
    assert found[False]["displacement"].dtype == np.float32
    assert 0 < driver.disagreement(found[True], found[False]) < 1e-4


def test_lenets_at_once_are_the_lenets_one_after_another(precision_restored):
    case = cases.chosen(["LeNets, linearised"], "gpu")[0]
    settings = {**case.settings, "channels": 2, "examples": 12, "batch": 4, "steps": 4}
    settings |= {"seeds": 2, "periods": [2]}
    ends = []
    for together in (True, False):
        ready = sweeps.sweep(settings | {"together": together}, {})
        ends.append(ready.results(ready.run()))
    assert ends[0]["loss"].shape == (2,)
    assert driver.disagreement(*ends) < 1e-5


def test_more_examples_than_there_are_digits_are_drawn():
    x, y = exact_peer._examples(exact_peer.MOST_DIGITS + 1)
    assert x.shape == (exact_peer.MOST_DIGITS + 1, 64)
    assert set(np.asarray(y)) == set(range(10))


@pytest.mark.parametrize("peer", environments.PEERS[1:])
def test_every_peer_is_pinned_with_hashes_and_without_addresses(peer):
    text = environments.lock_of(peer).read_text("utf8")
    assert "://" not in text
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    names = {block.partition("==")[0] for block in blocks}
    assert peer.replace("_", "-") in names
    assert all(re.match(r"[\w.-]+==[\w.+]+ .*", b) and "--hash=sha256:" in b for b in blocks)
    assert (ROOT / "bench" / "peers" / f"{peer}.py").is_file()


def test_a_peer_does_not_see_our_packages(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    theirs = environments.variables("torch", 3, {"A": "b"})
    assert "PYTHONPATH" not in theirs
    assert (theirs["OMP_NUM_THREADS"], theirs["NPROC"], theirs["A"]) == ("3", "3", "b")
    assert environments.variables("iterlin", 3, {})["PYTHONPATH"] == "/ours"


def test_an_environment_that_cannot_be_made_says_why(monkeypatch, tmp_path):
    lock = tmp_path / "torch.lock"
    lock.write_text("no-such-thing==1 --hash=md5:0\n")
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "BUILT", tmp_path / "built")
    monkeypatch.setattr(environments, "lock_of", lambda peer: lock)
    asked = []

    def refuse(done_command):
        asked.append(done_command)
        raise PeerFailed("cannot be installed: no")

    monkeypatch.setattr(environments, "_run", refuse)
    start = environments.starter(1, {})
    for _ in range(2):
        with pytest.raises(PeerFailed, match="cannot be installed: no"):
            start("torch", {})
    assert len(asked) == 1  # not tried again for every case
    with pytest.raises(ValueError, match="unknown peer 'numpy'"):
        command._given(["numpy=/bin/python"])


PEER = """
import os, sys
import numpy as np
sys.path.insert(0, {root!r})
from bench import worker

def prepare(settings, arrays):
    print("noise of a library")
    os.write(1, b"more noise")
    if settings.get("fail"):
        raise ValueError("not this one")
    return worker.Prepared(lambda: 2 * arrays["x"], lambda y: {{"y": y}}, facts={{"operations": 7}})

def inputs(settings):
    return {{"x": np.arange(settings["size"])}}

held = []
worker.serve(
    {{"double": prepare}},
    packages=("numpy", "absent"),
    first=lambda: held.append(np.ones(2**23)),
    inputs={{"double": inputs}},
)
"""


@pytest.fixture
def worker(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(PEER.format(root=str(ROOT)))
    started = Worker([sys.executable, str(script)], environments.variables("a", 1, {}), tmp_path)
    yield started
    started.close()


def test_a_worker_speaks_the_protocol_whatever_is_printed(worker, tmp_path):
    assert set(worker.hello["versions"]) == {"python", "numpy"}
    assert worker.hello["now"] > 2**26  # what was computed first is there
    inputs, results = str(tmp_path / "inputs.npz"), tmp_path / "results.npz"
    worker.ask(do="inputs", kind="double", settings={"size": 3}, path=inputs)
    request = {"do": "prepare", "id": "one", "kind": "double", "inputs": inputs}
    request["results"] = str(results)
    answer = worker.ask(settings={}, **request)
    assert answer["facts"] == {"operations": 7}
    np.testing.assert_array_equal(np.load(results)["y"], [0, 2, 4])
    assert worker.ask(do="run", id="one", repeat=2)["seconds"] > 0
    memory = worker.ask(do="memory")
    assert memory["peak"] >= memory["now"] > 2**20
    with pytest.raises(PeerFailed, match="ValueError: not this one"):
        worker.ask(settings={"fail": True}, **request)
    assert worker.ask(do="run", id="one", repeat=1)["seconds"] > 0  # it goes on
    worker.process.kill()
    with pytest.raises(PeerFailed, match="its process ended with status"):
        worker.ask(do="memory")


def test_whole_commands_are_kept_with_their_commit(tmp_path):
    path, said = tmp_path / "whole.yml", []
    wanted = [
        ("works", (sys.executable, "-c", "print('working')")),
        ("fails", (sys.executable, "-c", "raise SystemExit(3)")),
    ]
    assert whole.stored(path) == {}
    whole.measure(wanted, path, say=said.append)
    kept = whole.stored(path)
    assert list(kept["seconds"]) == ["works"]
    assert kept["failed"] == ["fails"]
    assert re.fullmatch("[0-9a-f]{40}", kept["commit"])
    assert "failed with status 3" in said[1]
    assert path.with_suffix(".log").read_text() == "working\n"
