"""Seconds that whole commands take: `make book` and `make test`, cold and warm.

They are taken in a clone of the checkout's last commit, with the packages that are installed
here, and kept in _build/bench/whole.yml until they are measured again: every record made
afterwards repeats them, with their own commit and date.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from bench.environments import BUILT, ROOT

STORED = BUILT / "whole.yml"
# Name, command, whether everything built is removed before. `make test` builds the book first: with
# nothing built it takes as long as the first and the last of these together.
COMMANDS = (
    ("make book, nothing built", ("make", "book"), True),
    ("make book, nothing changed", ("make", "book"), False),
    ("make test, the book built", ("make", "test"), False),
)


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
        # The packages that are installed here (nothing is installed), but the clone's own library.
        venv = [f"VENV={sys.prefix}", f"INSTALLED={sys.executable}"]
        environment = os.environ | {"PYTHONPATH": str(clone / "lib")}
        for name, command, fresh in commands:
            if fresh:
                shutil.rmtree(clone / "_build", ignore_errors=True)
                shutil.rmtree(clone / ".snakemake", ignore_errors=True)
            extra = venv if command[0] == "make" else []
            started = time.perf_counter()
            with open(path.with_suffix(".log"), "w" if name == commands[0][0] else "a") as log:
                streams = {"stdout": log, "stderr": subprocess.STDOUT}
                done = subprocess.run([*command, *extra], cwd=clone, env=environment, **streams)
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
