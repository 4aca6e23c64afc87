"""How many small faults of the library its tests notice: ``python tests/mutants.py --minutes 60``.

A sample of the faults of `faults.py`, drawn from all modules of `mutants.yml` alike, each put to
the tests that are named there, fast files first, until one fails. Faults happen in a copy of the
library; the checkout is read only. Those of the list `equivalent` change nothing that matters; they
count for neither side. The exit status is 1 where fewer than --least of the others are noticed.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import faults
import forks
import yaml

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LIBRARY = ROOT / "lib" / "iterlin"
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
KILLED, SURVIVED, TIMEOUT, EQUIVALENT = "killed", "SURVIVED", "timeout", "equivalent"
NOTICED = (KILLED, TIMEOUT)
# A file of tests may take so many times its usual seconds, and so many more.
TIMES, SECONDS = 3, 30


class Table(NamedTuple):
    """tests: files of tests by module; equivalent: why, by (module, line before, line after)."""

    tests: dict[str, list[str]]
    equivalent: dict[tuple[str, str, str], str]


def table(path: Path = TESTS / "mutants.yml") -> Table:
    found = yaml.safe_load(path.read_text("utf8"))
    known = {(e["module"], e["before"], e["after"]): e["why"] for e in found["equivalent"] or []}
    return Table({module: files.split() for module, files in found["tests"].items()}, known)


def sample(library: Path, modules, seed: int, count: int | None):
    """(module, fault) for `count` of the modules' faults, all if None, in random order."""
    found = [
        (module, mutant)
        for module in sorted(modules)
        for mutant in faults.mutants((library / f"{module}.py").read_text("utf8"))
    ]
    return random.Random(seed).sample(found, len(found) if count is None else count)


class Workshop:
    """A copy of the library and a process that runs tests on it."""

    def __init__(self, library: Path, folder: Path, tests: Path = TESTS):
        self.package, self.log, self.tests = folder / "iterlin", folder / "log", tests
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(library, self.package, ignore=ignored)
        self.written = 10**9  # time stamps in seconds, by which Python knows what it has compiled
        self.usual: dict[str, float] = {}
        command = [sys.executable, str(TESTS / "forks.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.server = subprocess.Popen(command, cwd=ROOT, **pipes)

    def close(self) -> None:
        with self.server:  # which waits for it, once it reads no more
            self.server.stdin.close()

    @contextmanager
    def holding(self, module: str, mutant: faults.Mutant):
        """The copy has the fault inside the block, and has not after it."""
        path = self.package / f"{module}.py"
        source = path.read_text("utf8")
        self._write(path, mutant.of(source))
        try:
            yield
        finally:
            self._write(path, source)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, "utf8")
        self.written += 1
        os.utime(path, (self.written, self.written))

    def run(self, file: str, seconds: float = 3600.0) -> int:
        """pytest's exit status for a file of tests, or one of `forks`."""
        arguments = [*OPTIONS, str(self.tests / file)]
        request = {"library": str(self.package.parent), "arguments": arguments, "seconds": seconds}
        request["log"] = str(self.log)
        print(json.dumps(request), file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline())

    def measure(self, files) -> None:
        """The seconds of files of tests where nothing is wrong. Raises SystemExit where it is."""
        for file in files:
            if file not in self.usual:
                began = time.monotonic()
                if status := self.run(file):
                    print(self.log.read_text()[-3000:], file=sys.stderr)
                    raise SystemExit(f"{file} fails without a fault (status {status})")
                self.usual[file] = time.monotonic() - began

    def outcome(self, module: str, mutant: faults.Mutant, files) -> tuple[str, str]:
        """What became of a fault, and in which file of tests."""
        self.measure(files)
        with self.holding(module, mutant):
            for file in sorted(files, key=self.usual.get):
                status = self.run(file, TIMES * self.usual[file] + SECONDS)
                if status == forks.TOO_LONG:
                    return TIMEOUT, file
                if status in (forks.BROKEN, forks.OTHER_LIBRARY):
                    raise SystemExit(f"{file} could not be run:\n{self.log.read_text()[-3000:]}")
                if status:
                    return KILLED, file
        return SURVIVED, ""


def report(counts: dict[str, Counter]) -> tuple[str, float]:
    """The table of outcomes by module, and the share of faults that were noticed."""
    words = (KILLED, TIMEOUT, SURVIVED, EQUIVALENT)
    total = sum(counts.values(), Counter())
    lines = [f"{'module':32}{'faults':>8}" + "".join(f"{word.lower():>12}" for word in words)]
    for module, of in [*sorted(counts.items()), ("all", total)]:
        lines.append(f"{module:32}{of.total():8}" + "".join(f"{of[word]:12}" for word in words))
    noticed, counted = sum(total[word] for word in NOTICED), total.total() - total[EQUIVALENT]
    score = noticed / counted if counted else 1.0
    lines.append(f"noticed: {noticed} of {counted} = {100 * score:.1f} %")
    return "\n".join(lines), score


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--seed", type=int, help="of the sample; another each time unless told")
    parser.add_argument("--count", type=int, help="faults in the sample; all unless told")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="when to stop")
    parser.add_argument(
        "--modules", nargs="+", help="such as schedules exact/flow; all unless told"
    )
    parser.add_argument("--least", type=float, default=0.9, help="share that must be noticed")
    options = parser.parse_args(arguments)
    tests, equivalent = table()
    modules = options.modules or list(tests)
    if unknown := sorted(set(modules) - set(tests)):
        parser.error(f"no tests are named in mutants.yml for {', '.join(unknown)}")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    chosen = sample(LIBRARY, modules, seed, options.count)
    print(f"seed {seed}: {len(chosen)} faults", flush=True)
    began, counts = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(LIBRARY, Path(folder))
        try:
            for module, mutant in chosen:
                if time.monotonic() - began > 60 * options.minutes:
                    break
                why = equivalent.get((module, mutant.before, mutant.after))
                found = (
                    (EQUIVALENT, why) if why else workshop.outcome(module, mutant, tests[module])
                )
                counts.setdefault(module, Counter())[found[0]] += 1
                change = f"{mutant.before}  ->  {mutant.after}"
                print(f"{found[0]:10} {module}:{mutant.line} {change}  [{found[1]}]", flush=True)
        finally:
            workshop.close()
    shown, score = report(counts)
    print(shown)
    return int(score < options.least)


if __name__ == "__main__":
    sys.exit(main())
