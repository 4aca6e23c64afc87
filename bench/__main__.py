"""Measure the library beside its peers and record it: ``python -m bench``, or ``make bench``."""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

import jax
import numpy as np
from iterlin.study import records

from bench import cases, whole
from bench.driver import Goal, Outcome, Pool, compare
from bench.environments import BUILT, PEERS, PLATFORMS, starter
from bench.record import dataset, ratios

EXPERIMENT = "performance"
FEWEST_ROUNDS = 5
INTERRUPTED = 130
FAILED = 1


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cases", nargs="*", default=[], help="only those whose names contain this"
    )
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="samples of each")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--tier", default="laptop", choices=PLATFORMS, help="laptop: a CPU; gpu: one GPU"
    )
    parser.add_argument("--whole", action="store_true", help="time make book and make test first")
    parser.add_argument(
        "--python",
        nargs="*",
        default=[],
        metavar="PEER=PATH",
        help="environments to use",
    )
    options = parser.parse_args(arguments)
    try:
        selected = cases.chosen(options.cases, options.tier)
        given = _given(options.python)
    except ValueError as error:
        parser.error(str(error))
    if options.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds must be {FEWEST_ROUNDS} at least, got {options.rounds}")
    if options.whole:
        whole.measure()
        _settle()
    # The record names this process's device; what is measured there needs the memory.
    jax.config.update("jax_platforms", PLATFORMS[options.tier])
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    path = BUILT / f"{options.tier}.nc"
    try:
        outcomes = run(
            selected, options, Pool(starter(options.threads, given, PLATFORMS[options.tier])), path
        )
    except KeyboardInterrupt:
        print(f"interrupted: what was measured is in {path}", file=sys.stderr)
        return INTERRUPTED
    if options.cases:
        print(f"a selection: kept in {path}, the record is as it was")
        return 0
    failed = [name for name, outcome in outcomes.items() if not outcome.seconds]
    if failed:
        print(f"nothing measured of {', '.join(failed)}: kept in {path}", file=sys.stderr)
        return FAILED
    target = records.path_of(EXPERIMENT, options.tier)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    print(f"recorded in {target}")
    return 0


def _settle(load: float = 0.2, longest: float = 300.0) -> None:
    """Wait until the load that the whole commands made has died down."""
    end = time.monotonic() + longest
    while os.getloadavg()[0] > load and time.monotonic() < end:
        time.sleep(5)


def _given(texts) -> dict[str, str]:
    given = dict(text.partition("=")[::2] for text in texts)
    for peer, path in given.items():
        if peer not in PEERS:
            raise ValueError(f"unknown peer '{peer}' (peers: {', '.join(PEERS)})")
        if not Path(path).is_file():
            raise ValueError(f"{peer}: there is no {path!r}")
    return given


def run(selected, options, pool: Pool, path: Path) -> dict[str, Outcome]:
    """All cases one after another; what there is by then is written after each."""
    started, outcomes = time.perf_counter(), {}
    conditions = {"threads": options.threads, "rounds": options.rounds, "cpu": _cpu()}
    # Of the minute before, by others than this process.
    conditions["load"] = round(os.getloadavg()[0], 2)
    try:
        for number, case in enumerate(selected, 1):
            print(f"{case.name} ({number} of {len(selected)})", flush=True)
            outcome = compare(case, pool, rounds=options.rounds, say=print)
            outcomes[case.name] = outcome
            for goal in case.goals:
                _report(goal, outcome)
            found = dataset(selected, outcomes, options.rounds)
            found = found.assign_attrs(
                conditions=json.dumps(conditions),
                peers=json.dumps(pool.versions),
                whole=json.dumps(whole.stored()),
            )
            records.save(
                found,
                EXPERIMENT,
                options.tier,
                parameters=conditions,
                data_note="random images and inputs; scikit-learn's digits; the quintic",
                wall_time=time.perf_counter() - started,
                missing=len(cases.all_cases(options.tier)) - number,
                path=path,
            )
    finally:
        pool.close()
    return outcomes


def _report(goal: Goal, outcome: Outcome) -> None:
    if not {goal.of, goal.to} <= set(outcome.seconds):
        return
    found = float(np.median(ratios(goal, outcome)))
    wanted = ""
    if np.isfinite(goal.limit):
        met = found <= goal.limit if goal.at_most else found >= goal.limit
        bound = "at most" if goal.at_most else "at least"
        wanted = f" ({bound} {goal.limit:g}: {'met' if met else 'NOT met'})"
    seconds = float(np.median(outcome.seconds[goal.to]))
    print(f"  {found:8.3g}  {goal.text}{wanted}; {goal.to}: {seconds:.3g} s", flush=True)


def _cpu() -> str:
    """The processor's name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


if __name__ == "__main__":
    sys.exit(main())
