"""Write files atomically: a crash leaves the old file or the new one."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `target` when the block ends.

    The temporary file is hidden and lies beside the target. It is flushed to disk before the
    rename, and the folder after it. If the block raises, the target stays as it was and the
    temporary file is deleted. Missing folders are created.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.stem}-{secrets.token_hex(8)}{target.suffix}")
    partial.touch(exist_ok=False)
    try:
        yield partial
        _flush(partial)
        os.replace(partial, target)
        _flush(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
