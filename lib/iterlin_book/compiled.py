"""The programs that JAX has compiled, which one build keeps for the next: _build/jax.

JAX writes an entry in place and never over one that is there. So what a crash or a full disk cut
off stays: every later process that asks for it warns, compiles anew, and throws that away.
"""

import os
import sys
from pathlib import Path

# Python's filters are separated by commas and match the beginning of a message. Whoever reads what
# another process is just writing warns, too; a page shows its process's warnings.
QUIET = ",".join(
    f"ignore:Error {doing} persistent compilation cache entry:UserWarning"
    for doing in ("reading", "writing")
)
_CHECKED = ".checked"
_MARGIN = 2  # seconds: what file systems round times to


def keep(root):
    """Let processes that are started from here on keep their programs, and warn of none."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder(root)))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    filters = os.environ.get("PYTHONWARNINGS", "")
    if QUIET not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (filters, QUIET)))


def folder(root):
    return Path(root).resolve() / "_build" / "jax"


def drop_damaged(root):
    """Remove entries that cannot be read, of those written since the last time, and say so."""
    stamp = folder(root) / _CHECKED
    if not stamp.parent.is_dir():
        return
    since = stamp.stat().st_mtime - _MARGIN if stamp.is_file() else 0
    new = stamp.with_name(f"{_CHECKED}-new")
    new.touch()
    entries = (Path(e) for e in os.scandir(stamp.parent) if e.stat().st_mtime >= since)
    damaged = [path for path in entries if path.name.endswith("-cache") and not _is_whole(path)]
    for path in damaged:
        path.unlink(missing_ok=True)
    if damaged:
        print(f"{stamp.parent}: {len(damaged)} damaged entries dropped", file=sys.stderr)
    new.replace(stamp)


def _is_whole(path):
    # Compressed by whatever was installed: only JAX knows what it can read.
    from jax._src.compilation_cache import decompress_executable

    try:
        decompress_executable(path.read_bytes())
    except Exception:
        return False
    return True
