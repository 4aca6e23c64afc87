"""Files that are written whole or not at all, whatever ends the writing."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A path beside `target`, hidden, to be written to; it takes the target's name at the end.

    What lies there is on disk before it takes the name, and the name with it: after a crash there
    is the old file or the new one. If the block raises, the target is as it was, and nothing is
    left behind. Folders are made. Raises OSError where that cannot be done.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix
    )
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        _flush(partial)
        partial.chmod(0o644)
        os.replace(partial, target)
        _flush(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
