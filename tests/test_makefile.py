"""What a caller sets on make's command line reaches programs as words and no shell as code."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = (
    "BUDGET",
    "CASES",
    "JOBS",
    "PAGE",
    "PEERS",
    "PORT",
    "PROFILE",
    "ROUNDS",
    "SHARES",
    "TIER",
)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def front_door(tmp_path):
    """The Makefile beside a Python that prints its arguments and is taken for installed."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "<%s>" "$@"\necho\n')
    python.chmod(0o755)

    def make(target, **variables):
        words = [f"{name}={value}" for name, value in variables.items()]
        command = ["make", "-s", target, f"BIN={tmp_path}", "INSTALLED=", "DEV=", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return make


@pytest.mark.parametrize("target", ["help", "book", "results", "serve", "references", "bench"])
@pytest.mark.parametrize("text", ["x; touch pwned", "$(touch pwned)", '"; touch pwned; "'])
def test_no_variable_is_run(front_door, tmp_path, target, text):
    # A dollar sign is make's own: two of them are one for the shell.
    front_door(target, **dict.fromkeys(VARIABLES, text.replace("$", "$$")))
    assert not (tmp_path / "pwned").exists()


@pytest.fixture
def installs(tmp_path):
    """A function that makes a target and tells which locks it installed."""
    for path in (ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("*.lock")):
        shutil.copy(path, tmp_path)
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    for name in ("python", "ruff"):
        (bin / name).write_text('#!/bin/sh\necho "$@"\n')
        (bin / name).chmod(0o755)

    def installs(target):
        command = ["make", "-s", target]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return re.findall(r"-r (\S+)", done.stdout)

    return installs


def test_what_checks_take_is_installed_by_the_first_check(installs, tmp_path):
    both = ["requirements.lock", "requirements-dev.lock"]
    assert installs("book") == both[:1]
    assert installs("lint") == both[1:]
    assert installs("lint") == installs("book") == []
    with (tmp_path / "requirements-dev.lock").open("a") as lock:
        lock.write("# another\n")
    assert installs("book") == []
    assert installs("test") == both[1:]
    with (tmp_path / "requirements.lock").open("a") as lock:
        lock.write("# another\n")
    assert installs("lint") == both


def test_what_cuda_takes_is_installed_once_asked_for_and_from_then_on(installs, tmp_path):
    both = ["requirements.lock", "requirements-gpu.lock"]
    assert installs("installed") == both[:1]
    assert installs("installed") == []
    assert installs("gpu") == both
    assert installs("gpu") == installs("installed") == []
    with (tmp_path / "requirements-gpu.lock").open("a") as lock:
        lock.write("# another\n")
    assert installs("installed") == both


def test_they_arrive(front_door):
    said = front_door("results", TIER="gpu", PAGE="xor reg*", BUDGET="30")
    words = re.findall(r"<(.*?)>", said.splitlines()[0])
    expected = ["--tier=gpu", "--budget=30", "--page=xor", "--page=reg*"]
    assert words == ["-m", "iterlin_book.build", "results", "--parent", *expected]
    said = front_door("results", TIER="gpu", SHARES="8", PROFILE="slurm", JOBS="2")
    assert "<--tier=gpu><--jobs=2><--shares=8><--profile=slurm>" in said
    assert "<book><--parent><--jobs><3>" in front_door("book", JOBS="3")
    assert "<--cases><NTK><stepping>" in front_door("bench", CASES="NTK stepping")
