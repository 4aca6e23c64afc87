"""Definitions that were rewritten and give every recorded run what the former ones gave.

The list is kept by hand; `origins` has each of its rows stand for the definition before, so that no
record is stale for it, until it, or anything that it reaches, changes again.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from iterlin.study import plain_yaml

PATH = "data/results/equivalents.yml"
ROW = {"definition", "is", "was", "because", "shown by"}


@lru_cache(maxsize=4)  # the same list is asked for with every record
def rows(text: str) -> tuple[Mapping[str, str], ...]:
    """The rows of such a list: each names a definition, its digest as it ``is`` and as it
    ``was``, ``because`` of what the two give the same, and the test by which that is ``shown``.

    Raises ValueError for what is no list of such rows.
    """
    try:
        found = plain_yaml.load(text) or []
    except ValueError as error:
        raise ValueError(f"{PATH}: {error}") from None
    if not isinstance(found, list):
        raise ValueError(f"{PATH}: expected a list of rows, got {found!r}")
    for row in found:
        if not isinstance(row, dict) or row.keys() != ROW:
            raise ValueError(f"{PATH}: a row has {', '.join(sorted(ROW))}, got {row!r}")
        if not all(isinstance(value, str) and value for value in row.values()):
            raise ValueError(f"{PATH}: all of a row is text, got {row!r} (quote digests)")
    for field in ("is", "definition"):
        twice = [
            value for value, count in Counter(row[field] for row in found).items() if count > 1
        ]
        if twice:
            raise ValueError(f"{PATH}: two rows for {field} {twice[0]}")
    return tuple(map(MappingProxyType, found))
