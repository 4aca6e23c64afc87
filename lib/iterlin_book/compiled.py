"""The programs that JAX has compiled, which one build keeps for the next: _build/jax.

JAX writes an entry in place and never over one that is there. So what a crash or a full disk cut
off stays: every later process that asks for it warns, compiles anew, and throws that away.
"""

import os
import sys
from importlib import metadata
from pathlib import Path

# Python's filters are separated by commas and match the beginning of a message. Whoever reads what
# another process is just writing warns, too; a page shows its process's warnings.
QUIET = ",".join(
    f"ignore:Error {doing} persistent compilation cache entry:UserWarning"
    for doing in ("reading", "writing")
)
# Half the time of a page at the quick tier, and of a test, goes into compiling. XLA's earlier code
# generator, in one piece, takes two thirds of what today's takes; its programs are slower.
_QUICKER = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
_KNOWN_TO = "0.10."  # versions of jaxlib: another may end at a flag that it does not know
_CHECKED = ".checked"
_MARGIN = 2  # seconds: what file systems round times to


def keep(root):
    """Let processes that are started from here on keep their programs, and warn of none."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder(root)))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    filters = os.environ.get("PYTHONWARNINGS", "")
    if QUIET not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (filters, QUIET)))


def quickly():
    """Let processes that are started from here on, and this one before it has compiled anything,
    compile in less time, where the jaxlib that is installed is known to understand."""
    if metadata.version("jaxlib").startswith(_KNOWN_TO):
        add_flags(*_QUICKER)


def add_flags(*flags):
    """To XLA_FLAGS, each unless it is set there already."""
    given = os.environ.get("XLA_FLAGS", "").split()
    names = {flag.partition("=")[0] for flag in given}
    new = [flag for flag in flags if flag.partition("=")[0] not in names]
    os.environ["XLA_FLAGS"] = " ".join([*given, *new])


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
