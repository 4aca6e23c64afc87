"""The style of the pages' code: ``python -m iterlin_book.lint`` checks it, ``--fix`` mends it.

The cells of each page go to the project's ruff as one notebook: it knows what such a thing is, a
name that only a later cell uses, IPython's magics. What it finds is told by line of the page.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from iterlin.study.experiment_pages import CELL

from iterlin_book.pages import BookError, write_atomically

# A name that nothing binds is an error on a page; the library's annotations are full of such. What
# a page may do: set JAX up between its imports, write a formula as a lambda, and hand a function
# that is made in a loop to what calls it at once.
RULES = ("--extend-select", "F821", "--ignore", "E402,E731,B023")


def cells(text):
    """(number of its first line, code) of each code cell of a page."""
    for match in CELL.finditer(text):
        yield text.count("\n", 0, match.start("code")) + 1, match["code"]


def notebook(codes):
    """What ruff reads: the cells of a page and nothing else."""
    written = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": c}
        for c in (code.removesuffix("\n") for code in codes)
    ]
    metadata = {"language_info": {"name": "python"}}
    return json.dumps({"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4})


def pages_with_code(root):
    for path in sorted((root / "book").rglob("*.md")):
        text = path.read_text("utf8")
        if found := list(cells(text)):
            yield path, text, found


def ruff(root, *arguments):
    command = ["ruff", *arguments, "--config", str(root / "pyproject.toml"), "--no-cache"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=root
        )
    except OSError as error:
        raise BookError(f"cannot run ruff: {error}") from None
    if done.returncode not in (0, 1):
        raise BookError(f"ruff failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def written(root, folder):
    """The pages with code, and for each a notebook in the folder."""
    pages = list(pages_with_code(root))
    # Named by number, as two pages may have one name.
    files = [folder / f"page{number:03d}.ipynb" for number in range(len(pages))]
    for file, (_, _, found) in zip(files, pages, strict=True):
        file.write_text(notebook(code for _, code in found), "utf8")
    return dict(zip(files, pages, strict=True))


def read(file):
    """The code of the cells of a notebook, as it stands on a page."""
    found = ("".join(cell["source"]) for cell in json.loads(file.read_text("utf8"))["cells"])
    return [code and code + "\n" for code in found]


def mend(root):
    """Bring the cells of all pages into the project's style."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        files = written(root, folder)
        ruff(root, "check", "--fix", "--quiet", *RULES, folder)
        ruff(root, "format", "--quiet", folder)
        for file, (path, text, _) in files.items():
            codes = iter(read(file))
            parts, end = [], 0
            for cell in CELL.finditer(text):
                parts += [text[end : cell.start("code")], next(codes)]
                end = cell.end("code")
            if (now := "".join([*parts, text[end:]])) != text:
                write_atomically(path, now)


def look(root):
    """What is not in the project's style, one line for each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        files = written(root, folder)
        messages = []
        for entry in json.loads(ruff(root, "check", "--output-format", "json", *RULES, folder)):
            path, _, found = files[Path(entry["filename"])]
            at = entry["location"]
            line = found[(entry["cell"] or 1) - 1][0] + at["row"] - 1
            where = f"{path.relative_to(root)}:{line}:{at['column']}"
            messages.append(f"{where}: {entry['code']} {entry['message']}")
        ruff(root, "format", "--quiet", folder)
        for file, (path, _, found) in files.items():
            for (line, code), wanted in zip(found, read(file), strict=True):
                if code != wanted:
                    where = f"{path.relative_to(root)}:{line}"
                    messages.append(f"{where}: this cell would be formatted (make format)")
    return messages


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.lint", description=__doc__)
    parser.add_argument("--fix", action="store_true", help="rewrite the cells in that style")
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    options = parser.parse_args(arguments)
    try:
        root = options.root.resolve()
        if options.fix:
            mend(root)
        messages = look(root)
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    for message in messages:
        print(message)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
