"""What became of the pages of `make results`: each process leaves a note, the build reads them.

Notes lie in the project's folder, so that they are found whichever machine a process ran on. A
share of a page's runs has a note of its own.
"""

import json
import time
from pathlib import Path

from iterlin_book import pages

DONE, FAILED, REFUSED, PARTIAL, INTERRUPTED = 0, 1, 2, 3, 130  # exit statuses of these processes
WORDS = {DONE: "done", PARTIAL: "partial"}  # of others: failed
EARLIER, NOT_STARTED = "done earlier", "not started"


def folder(root, tier):
    return Path(root) / "_build" / "states" / tier


class Note:
    """Of one process: failed, until it says otherwise; a process that is killed says nothing."""

    def __init__(self, root, tier, name):
        self.path, self.started = folder(root, tier) / f"{name}.json", time.monotonic()
        self.write(FAILED)

    def write(self, status):
        seconds = time.monotonic() - self.started
        note = {"state": WORDS.get(status, "failed"), "seconds": seconds}
        pages.write_atomically(self.path, json.dumps(note))


def forget(root, tier, page):
    for path in _notes(root, tier, page):
        path.unlink()


def of(root, tier, page):
    """State of a page since its notes were forgotten, and the seconds of all its processes.

    Where it never came to record anything, the state is that of the shares of its runs.
    """
    notes = {path.stem: json.loads(path.read_bytes()) for path in _notes(root, tier, page)}
    seconds = sum(note["seconds"] for note in notes.values()) if notes else None
    own = notes.pop(page.rpartition("/")[2], None)
    if own is not None:
        return own["state"], seconds
    found = {note["state"] for note in notes.values()}
    if not found:
        return NOT_STARTED, seconds
    return "failed" if "failed" in found else "partial", seconds


def _notes(root, tier, page):
    place = folder(root, tier) / page
    return [
        *place.parent.glob(f"{place.name}.json"),
        *place.parent.glob(f"{place.name}.*-of-*.json"),
    ]


def exit_status(found):
    """That of the whole build: 0 if all pages are done, 1 if one failed, and else 3."""
    if "failed" in found:
        return FAILED
    return DONE if set(found) <= {"done", EARLIER} else PARTIAL


def summary(outcomes, tier):
    """A table of pages, states and minutes, of {page: (state, seconds or None)}."""
    width = max(map(len, outcomes))
    lines = [f"{'page':{width}}  {'state':12}  minutes ({tier} tier)"]
    for page, (state, seconds) in outcomes.items():
        minutes = "" if seconds is None else f"{seconds / 60:7.1f}"
        lines.append(f"{page:{width}}  {state:12}  {minutes}".rstrip())
    return "\n".join(lines)
