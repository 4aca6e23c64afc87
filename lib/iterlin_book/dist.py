"""Make what is published, in dist/: ``python -m iterlin_book.dist``, a part of `make dist`.

That is the library's source archive and wheel, and a zip of the book for a deposit: the HTML, the
PDF if there is one, the records, and the files that say what this is.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from iterlin_book import pages
from iterlin_book.pages import BookError

SOURCE = ("pyproject.toml", "README.md", "LICENSE")
ABOUT = ("CITATION.cff", "LICENSE", "README.md")
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
WHEEL = ("pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir")


def build(root, folder):
    """Make the library's source archive and wheel in a folder; return their paths.

    They are made from a copy, so that no older build in the checkout gets in, and the wheel is made
    from the archive, so that the archive has all that it takes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        source, made = Path(scratch) / "source", Path(scratch) / "made"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(root / "lib", source / "lib", ignore=ignored)
        for name in SOURCE:
            shutil.copy(root / name, source)
        _python(source, "-c", SDIST, made)
        (archive,) = made.iterdir()
        _python(source, "-m", *WHEEL, made, archive)
        (wheel,) = made.glob("*.whl")
        return tuple(Path(shutil.copy(path, folder)) for path in (archive, wheel))


def _python(folder, *arguments):
    command = [sys.executable, *map(str, arguments)]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)


def archive(root, folder):
    """Make the zip of the book in a folder and return its path."""
    html = root / "_build" / "html"
    if not (html / "index.html").is_file():
        raise BookError(f"{html} has no book: `make book` first")
    found = {name: root / name for name in ABOUT}
    if (pdf := root / "_build" / "iterlin.pdf").is_file():
        found["iterlin.pdf"] = pdf
    for name, source in (("html", html), ("records", root / "data" / "results")):
        paths = (path for path in source.rglob("[!.]*") if path.is_file())
        found |= {f"{name}/{path.relative_to(source).as_posix()}": path for path in paths}
    target = folder / f"iterlin-{pages.load_yaml(root / 'CITATION.cff')['version']}-book.zip"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, path in sorted(found.items()):
            opened.write(path, f"{target.stem}/{name}")
    return target


if __name__ == "__main__":
    try:
        print(*build(Path(), Path("dist")), archive(Path(), Path("dist")), sep="\n")
    except BookError as error:
        sys.exit(str(error))
