"""Measure the library beside its peers and record it: ``python -m bench``, or ``make bench``."""

import argparse
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import jax
import numpy as np
from iterlin_study.records import records

from bench import cases
from bench.driver import compare
from bench.environments import BUILT, starter
from bench.record import dataset

EXPERIMENT, TIER = "performance", "laptop"
FEWEST_ROUNDS = 5
THREADS = len(os.sched_getaffinity(0))


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--cases", nargs="*", default=[], help="only those whose names contain one of these")
    add("--rounds", type=int, default=FEWEST_ROUNDS, help="samples of each")
    options = parser.parse_args(arguments)
    fewest = 1 if options.cases else FEWEST_ROUNDS
    if options.rounds < fewest:
        parser.error(f"rounds must be {fewest} or more, got {options.rounds}")
    jax.config.update("jax_platforms", "cpu")  # as the workers': the record names the device
    try:
        selected = cases.chosen(options.cases)
    except ValueError as error:
        parser.error(str(error))
    path = BUILT / f"{TIER}.nc"
    empty = run(selected, options.rounds, starter(THREADS), path)
    if options.cases:
        print(f"a selection: kept in {path}, the record is as it was")
    elif empty:
        print(f"nothing measured of {', '.join(empty)}: kept in {path}", file=sys.stderr)
        return 1
    else:
        target = records.path_of(EXPERIMENT, TIER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        print(f"recorded in {target}")
    return 0


def run(selected, rounds: int, start, path: Path) -> list[str]:
    """Measure the cases one after another, and write after each what there is by then.

    Returns:
        The names of the cases of which nothing could be measured.
    """
    started, outcomes, versions = time.perf_counter(), {}, {}
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    conditions = {
        "threads": THREADS,
        "rounds": rounds,
        "cpu": cpu[1] if cpu else "unknown",
        # The mean of the last minute, before this process adds to it.
        "load": round(os.getloadavg()[0], 2),
    }
    for number, case in enumerate(selected, 1):
        print(f"{case.name} ({number} of {len(selected)})", flush=True)
        outcome = outcomes[case.name] = compare(case, start, rounds=rounds)
        versions |= outcome.versions
        for label, seconds in outcome.seconds.items():
            print(f"  {np.median(seconds):.3g} s  {label}", flush=True)
        attributes = {"conditions": json.dumps(conditions), "peers": json.dumps(versions)}
        records.save(
            dataset(selected, outcomes, rounds).assign_attrs(attributes),
            EXPERIMENT,
            TIER,
            parameters=conditions,
            data_note="random images and inputs; the quintic",
            wall_time=time.perf_counter() - started,
            missing=len(cases.all_cases()) - number,
            path=path,
        )
    return [name for name, outcome in outcomes.items() if not outcome.seconds]


if __name__ == "__main__":
    sys.exit(main())
