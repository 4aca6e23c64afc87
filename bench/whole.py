"""Time the README's commands, `make book` and `make test`, in a clone of the last commit.

The times are kept in _build/bench/whole.yml, and records made later repeat them with their own
commit and date.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from bench.environments import BUILT, ROOT

STORED = BUILT / "whole.yml"
# Name and command, in this order.
COMMANDS = (
    ("make book, in an empty clone", ("make", "book")),
    ("make book, nothing changed", ("make", "book")),
    ("make test, the book built", ("make", "test")),
)
# Variables of a shell that works in an installation or a checkout of its own.
_OWN = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "JOBS")


def stored(path: Path = STORED) -> dict:
    """Return what was measured last: "seconds" by name, "failed", "commit", "date"; or {}."""
    return yaml.safe_load(path.read_text("utf8")) if path.is_file() else {}


def measure(commands: Sequence[tuple] = COMMANDS, path: Path = STORED) -> None:
    """Run the commands one after another and keep their times; their output goes beside `path`."""
    seconds, failed = {}, []
    path.parent.mkdir(parents=True, exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if name not in _OWN}
    with (
        tempfile.TemporaryDirectory(prefix="bench-whole-") as clone,
        open(path.with_suffix(".log"), "w") as log,
    ):
        subprocess.run(["git", "clone", "-q", str(ROOT), clone], check=True)
        head = ["git", "-C", clone, "rev-parse", "HEAD"]
        commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
        for name, command in commands:
            started = time.perf_counter()
            done = subprocess.run(command, cwd=clone, env=variables, stdout=log, stderr=log)
            taken = round(time.perf_counter() - started, 2)
            print(f"{name}: {taken} s, status {done.returncode}", flush=True)
            if done.returncode:
                failed.append(name)
            else:
                seconds[name] = taken
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    found = {"seconds": seconds, "failed": failed, "commit": commit, "date": date}
    path.write_text(yaml.safe_dump(found, sort_keys=False), "utf8")
