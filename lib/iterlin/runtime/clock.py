"""The time of day as `time.time` tells it, but for a clock that is set while the process runs.

Deadlines are handed from process to process as Unix times. Within a process they are held by a
clock that goes on evenly: one that is set back by an hour must not give a run another hour.
"""

from time import monotonic
from time import time as _now

_AT_ZERO = _now() - monotonic()


def time() -> float:
    """Seconds since the epoch: by the clock of the day when this module was imported, and by
    `time.monotonic` since."""
    return _AT_ZERO + monotonic()
