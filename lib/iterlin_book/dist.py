"""Build the library's source archive and wheel: ``python -m iterlin_book.dist``, or `make dist`.

They are made from copies: what lies about in the checkout, as an older build, cannot get in. The
wheel is made from the archive, so that the archive has all it takes.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from iterlin_book.pages import BookError

FILES = ("pyproject.toml", "README.md", "LICENSE")
NOT_SOURCE = shutil.ignore_patterns("__pycache__", "*.egg-info")
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
WHEEL = ("pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir")


def build(root, folder):
    """The paths of the archive and the wheel, made in a folder from the checkout `root`."""
    root, folder = Path(root), Path(folder)
    with TemporaryDirectory() as scratch:
        source, made = Path(scratch) / "source", Path(scratch) / "made"
        shutil.copytree(root / "lib", source / "lib", ignore=NOT_SOURCE)
        for name in FILES:
            shutil.copy(root / name, source)
        _python(source, "-c", SDIST, str(made))
        (archive,) = made.iterdir()
        _python(source, "-m", *WHEEL, str(made), str(archive))
        (wheel,) = made.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(Path(shutil.copy(path, folder)) for path in (archive, wheel))


def _python(folder, *arguments):
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise BookError(f"the library cannot be packed: {lines[-1]}")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.dist", description=__doc__)
    parser.add_argument("folder", nargs="?", default="dist", help="where they go: dist")
    try:
        for path in build(".", parser.parse_args(arguments).folder):
            print(path)
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
