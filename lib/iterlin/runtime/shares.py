"""The runs of a grid, shared out between processes: each trains its own and leaves the others.

Every process makes the same calls in the same order. Runs that are kept on disk are dealt out in
that order, so that no two shares have one in common and all shares together have each. In the place
of a run of another share stands one that knows nothing (NaN). No record is made of such a mixture:
the process that makes it shares nothing, and finds the runs of all.
"""

import os
import re
from collections.abc import Callable
from functools import wraps
from inspect import signature
from itertools import count

SHARE = "ITERLIN_SHARE"


class ShareDone(Exception):
    """All runs of this share are kept; what the page would make of them is not its task."""


_numbers = count()  # of the runs that this process meets


def begin() -> None:
    """Deal out from the start again, as a process does by itself."""
    global _numbers
    _numbers = count()


def parse(text: str) -> tuple[int, int]:
    """Share i of n, written "i/n"; ValueError unless 1 <= i <= n.

    >>> parse("3/8")
    (3, 8)
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    share = tuple(map(int, found.groups())) if found else (0, 0)
    if not 1 <= share[0] <= share[1]:
        raise ValueError(f"a share is written i/n with 1 <= i <= n, as 3/8, not {text!r}")
    return share


def mine() -> tuple[int, int] | None:
    """The share in the environment; None without one. Raises ValueError as `parse`."""
    text = os.environ.get(SHARE)
    return parse(text) if text else None


def shared(kept: str, unrun: Callable) -> Callable[[Callable], Callable]:
    """Decorator of a function that trains: what falls to another share is not trained, and
    unrun(the same arguments) stands in its place.

    kept: the argument that says where the run is kept. If None it is nowhere, so that another
    process could not find it: such a run is trained by each.

    What a run computes is the same in every share: of the definitions that a record comes from,
    this decorator is none (`study.origins`).
    """

    def decorate(train: Callable) -> Callable:
        names = signature(train)

        @wraps(train)
        def trained(*arguments, **settings):
            share = mine()
            if share is None or names.bind(*arguments, **settings).arguments.get(kept) is None:
                return train(*arguments, **settings)
            number, shares = share
            turn = next(_numbers) % shares == number - 1
            return (train if turn else unrun)(*arguments, **settings)

        return trained

    return decorate
