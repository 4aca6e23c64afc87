"""Seconds that the README's commands take: `make book` and `make test`, cold and warm.

They are taken in a clone of the checkout's last commit, packages being installed there, and kept in
_build/bench/whole.yml until they are measured again: every record made afterwards repeats them,
with their own commit and date.
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
# Of a shell that works in an installation or a checkout of its own.
_NOT_A_READERS = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "JOBS")


def stored(path: Path = STORED) -> dict:
    """What was measured last: {"seconds": {name: seconds}, "commit", "date"}, or nothing."""
    return yaml.safe_load(path.read_text("utf8")) if path.is_file() else {}


def measure(
    commands: Sequence[tuple] = COMMANDS, path: Path = STORED, root: Path = ROOT, say=print
) -> dict:
    """Run the commands one after another and keep their times; one that fails is left out.

    What they print is kept beside `path`.
    """
    seconds, failed = {}, []
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-whole-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(root), str(clone)], check=True)
        head = ["git", "-C", str(clone), "rev-parse", "HEAD"]
        commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_A_READERS}
        for name, command in commands:
            started = time.perf_counter()
            with open(path.with_suffix(".log"), "w" if name == commands[0][0] else "a") as log:
                streams = {"stdout": log, "stderr": subprocess.STDOUT}
                done = subprocess.run(command, cwd=clone, env=environment, **streams)
            taken = time.perf_counter() - started
            if done.returncode:
                failed.append(name)
                say(f"{name}: failed with status {done.returncode}, see {log.name}")
                continue
            seconds[name] = round(taken, 2)
            say(f"{name}: {taken:.1f} s")
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    found = {"seconds": seconds, "failed": failed, "commit": commit, "date": date}
    path.write_text(yaml.safe_dump(found, sort_keys=False), "utf8")
    return found
