"""Find the checkout, and say what a record was made with."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def project_root() -> Path:
    """The checkout: the folder with _toc.yml at or above the working directory, or that of the
    library itself. Raises FileNotFoundError outside of one."""
    here = Path.cwd()
    for folder in (here, *here.parents, PACKAGE.parents[1]):
        if (folder / "_toc.yml").is_file() and (folder / "book").is_dir():
            return folder
    raise FileNotFoundError(
        f"records and claims belong to a checkout of the book, and there is none at {here} or "
        "above (no _toc.yml beside book/): change to its folder"
    )


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the numerical packages."""
    names = ("jax", "jaxlib", "numpy", "scipy", "optax", "flax", "scikit-learn")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def commit() -> str:
    """Return the commit, '+changes' if lib/ or book/ differ from it; 'unknown' outside git."""
    root = project_root()
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "lib", "book")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(root: Path, *arguments) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def device() -> str:
    """Name the device that JAX computes on: '2 CPU cores' or the GPU's name."""
    import jax

    first = jax.devices()[0]
    if first.platform == "cpu":
        count = len(os.sched_getaffinity(0))
        return f"{count} CPU core{'s' if count > 1 else ''} ({platform.machine()})"
    return f"{len(jax.devices())} x {first.device_kind}"
