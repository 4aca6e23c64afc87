"""What the environment tells the process that runs a page: its deadline, its share, and whether to
print progress. The library itself reads no environment variable.

A share i/n of a page's runs: every process makes the same calls in the same order, and runs that
are kept on disk are dealt out in that order, so that each run belongs to one share. A process
leaves out the runs of other shares, which count as missing. It makes no record: the process that
makes the record has no share, and finds the runs of all.
"""

import os
import re
from itertools import count
from time import time

DEADLINE, PROGRESS, SHARE = "ITERLIN_DEADLINE", "ITERLIN_PROGRESS", "ITERLIN_SHARE"


class ShareDone(Exception):
    """All runs of this share are kept: the page ends here."""


def out_of_time() -> bool:
    """Return whether the deadline, a Unix time in ITERLIN_DEADLINE, has passed."""
    return time() >= float(os.environ.get(DEADLINE) or "inf")


def reporting() -> bool:
    """Return whether runs print their progress: ITERLIN_PROGRESS is set."""
    return bool(os.environ.get(PROGRESS))


def parse(text: str) -> tuple[int, int]:
    """Read share i of n, written "i/n". Raises ValueError unless 1 <= i <= n.

    >>> parse("3/8")
    (3, 8)
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    share = tuple(map(int, found.groups())) if found else (0, 0)
    if not 1 <= share[0] <= share[1]:
        raise ValueError(f"a share is written i/n with 1 <= i <= n, as 3/8, not {text!r}")
    return share


def share() -> tuple[int, int] | None:
    """Return the share (i, n) in ITERLIN_SHARE; None without one."""
    text = os.environ.get(SHARE)
    return parse(text) if text else None


_numbers = count()  # of the runs that are dealt out


def is_left_to_others() -> bool:
    """Return whether the next run belongs to another share. Call it once for each kept run."""
    mine = share()
    return mine is not None and next(_numbers) % mine[1] != mine[0] - 1
