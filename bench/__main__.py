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
from bench.environments import BUILT, PEERS, PLATFORMS, starter
from bench.record import dataset

EXPERIMENT = "performance"
FEWEST_ROUNDS = 5
THREADS = len(os.sched_getaffinity(0))


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--cases", nargs="*", default=[], help="only those whose names contain one of these")
    add("--rounds", type=int, default=FEWEST_ROUNDS, help="samples of each")
    add("--tier", default="laptop", choices=PLATFORMS, help="laptop: a CPU; gpu: one GPU")
    add("--python", nargs="*", default=[], metavar="PEER=PATH", help="environments to use")
    options = parser.parse_args(arguments)
    given = dict(text.partition("=")[::2] for text in options.python)
    if unknown := set(given) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)} (peers: {', '.join(PEERS)})")
    fewest = 1 if options.cases else FEWEST_ROUNDS
    if options.rounds < fewest:
        parser.error(f"rounds must be {fewest} or more, got {options.rounds}")
    platform = PLATFORMS[options.tier]
    # The record names this process's device, whose memory the workers need.
    jax.config.update("jax_platforms", platform)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    try:
        selected = cases.chosen(options.cases, options.tier)
        jax.devices()
    except ValueError as error:
        parser.error(str(error))
    except (RuntimeError, AssertionError):
        parser.error(f"JAX finds no device for the tier {options.tier} (`make gpu` installs CUDA)")
    path = BUILT / f"{options.tier}.nc"
    empty = run(selected, options, starter(THREADS, given, platform), path)
    if options.cases:
        print(f"a selection: kept in {path}, the record is as it was")
    elif empty:
        print(f"nothing measured of {', '.join(empty)}: kept in {path}", file=sys.stderr)
        return 1
    else:
        target = records.path_of(EXPERIMENT, options.tier)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        print(f"recorded in {target}")
    return 0


def run(selected, options, start, path: Path) -> list[str]:
    """Measure the cases one after another, and write after each what there is by then.

    Returns:
        The names of the cases of which nothing could be measured.
    """
    started, outcomes, versions = time.perf_counter(), {}, {}
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    conditions = {
        "threads": THREADS,
        "rounds": options.rounds,
        "cpu": cpu[1] if cpu else "unknown",
        # The mean of the last minute, before this process adds to it.
        "load": round(os.getloadavg()[0], 2),
    }
    for number, case in enumerate(selected, 1):
        print(f"{case.name} ({number} of {len(selected)})", flush=True)
        outcome = outcomes[case.name] = compare(case, start, rounds=options.rounds)
        versions |= outcome.versions
        for label, seconds in outcome.seconds.items():
            print(f"  {np.median(seconds):.3g} s  {label}", flush=True)
        attributes = {"conditions": json.dumps(conditions), "peers": json.dumps(versions)}
        records.save(
            dataset(selected, outcomes, options.rounds).assign_attrs(attributes),
            EXPERIMENT,
            options.tier,
            parameters=conditions,
            data_note="random images and inputs; the quintic",
            wall_time=time.perf_counter() - started,
            missing=len(cases.all_cases(options.tier)) - number,
            path=path,
        )
    return [name for name, outcome in outcomes.items() if not outcome.seconds]


if __name__ == "__main__":
    sys.exit(main())
