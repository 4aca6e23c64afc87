"""Run pages at a tier one after another, in their order of priority, within a time if one is set.

Each is a process of `iterlin_book.execute`. The same command run again goes on where this one
stopped: pages that are complete are not run again, and those that are not find their checkpoints.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from iterlin_book import execute, pages

# Unix time at which the library stops training, keeps checkpoints and lets the page go on.
DEADLINE = "ITERLIN_DEADLINE"
EARLIER, NOT_STARTED = "done earlier", "not started"
STATES = {execute.DONE: "done", execute.PARTIAL: "partial"}  # of exit statuses; others: failed
_PATIENCE = 10  # seconds for notebooks to end by themselves after an interrupt


def run(root, tier, chosen, jobs, deadline=None):
    """Run pages, at most `jobs` at a time; print a summary and return the exit status.

    It is 0 if all are done, 1 if one failed, and else 3: run the same again to go on. `deadline` is
    by `time.monotonic`, which goes on evenly whoever sets the clock.
    """
    outcomes = {  # page -> (state, seconds)
        page: (EARLIER if _is_done(root, page, tier) else NOT_STARTED, None) for page in chosen
    }
    running = {}  # page -> (process, start)
    try:
        for page in [page for page in chosen if outcomes[page][0] == NOT_STARTED]:
            while len(running) >= jobs:
                _collect(running, outcomes)
            if deadline is None or time.monotonic() < deadline:
                running[page] = _start(root, page, tier, deadline), time.monotonic()
        while running:
            _collect(running, outcomes)
    except KeyboardInterrupt:
        _stop([process for process, _ in running.values()])
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return execute.INTERRUPTED
    print(_summary(outcomes, tier), flush=True)
    states = {state for state, _ in outcomes.values()}
    if "failed" in states:
        return execute.FAILED
    return execute.DONE if states <= {"done", EARLIER} else execute.PARTIAL


def _is_done(root, page, tier):
    return pages.executed(root, page, tier, execute.prepare(root, page, tier)[2]).is_file()


def _start(root, page, tier, deadline):
    command = [sys.executable, "-m", "iterlin_book.execute", page, "--tier", tier, "--parent"]
    environment = dict(os.environ)
    if deadline is not None:
        environment[DEADLINE] = f"{time.time() + deadline - time.monotonic():.0f}"
    return subprocess.Popen(command, cwd=Path(root), env=environment)


def _collect(running, outcomes):
    """Note which processes have ended, after a short wait."""
    time.sleep(0.1)
    for page, (process, started) in list(running.items()):
        if (status := process.poll()) is not None:
            del running[page]
            outcomes[page] = STATES.get(status, "failed"), time.monotonic() - started


def _stop(processes):
    """Wait for processes that a terminal has interrupted too, and end those that it has not."""
    deadline = time.monotonic() + _PATIENCE
    for process in processes:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # its notebook ends with it
            process.wait()


def _summary(outcomes, tier):
    """A table of pages, states and minutes."""
    width = max(map(len, outcomes))
    lines = [f"{'page':{width}}  {'state':12}  minutes ({tier} tier)"]
    for page, (state, seconds) in outcomes.items():
        minutes = "" if seconds is None else f"{seconds / 60:7.1f}"
        lines.append(f"{page:{width}}  {state:12}  {minutes}".rstrip())
    return "\n".join(lines)
