"""Exit statuses of the processes that run pages, and a note of each for the build.

The notes lie in _build/states, so that the build finds those of processes on other machines, too.
"""

import json
from pathlib import Path

from iterlin_book import pages

DONE, FAILED, REFUSED, PARTIAL, INTERRUPTED = 0, 1, 2, 3, 130  # exit statuses
WORDS = {DONE: "done", PARTIAL: "partial"}  # of all others: failed


def write(root, tier, name, status, seconds=0.0):
    """Write the note of a process; name: its page, and .i-of-n for share i of the page's runs."""
    path = Path(root) / "_build" / "states" / tier / f"{name}.json"
    note = {"state": WORDS.get(status, "failed"), "seconds": seconds}
    pages.write_atomically(path, json.dumps(note))


def notes(root, tier, page):
    """Return the paths of the notes of a page and of its shares."""
    place = Path(root) / "_build" / "states" / tier / page
    return sorted(place.parent.glob(f"{place.name}.*json"))


def of(root, tier, page):
    """(state, seconds of all its processes) of a page; its state is that of its shares as long as
    no process has tried to make its record."""
    found = {path.stem: json.loads(path.read_bytes()) for path in notes(root, tier, page)}
    if not found:
        return "not started", None
    seconds = sum(note["seconds"] for note in found.values())
    if own := found.get(Path(page).name):
        return own["state"], seconds
    failed = any(note["state"] == "failed" for note in found.values())
    return "failed" if failed else "partial", seconds


def summary(outcomes, tier):
    """Return a table of pages, states and minutes. outcomes: {page: (state, seconds or None)}."""
    width = max(map(len, outcomes))
    lines = [f"{'page':{width}}  {'state':12}  minutes ({tier} tier)"]
    for page, (state, seconds) in outcomes.items():
        minutes = "" if seconds is None else f"{seconds / 60:7.1f}"
        lines.append(f"{page:{width}}  {state:12}  {minutes}".rstrip())
    return "\n".join(lines)
