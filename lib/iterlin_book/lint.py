"""Check the style of the pages' code: ``python -m iterlin_book.lint``; ``--fix`` mends it.

Ruff reads the code cells of each page as one notebook; findings name the line of the page.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from iterlin.study.experiment_pages import CELL
from nbformat.v4 import new_code_cell, new_notebook

from iterlin_book.pages import write_atomically

# A page may set JAX up between its imports, write a formula as a lambda, and hand a function made
# in a loop to what calls it at once. A name that nothing binds is an error on a page.
RULES = ("--extend-select", "F821", "--ignore", "E402,E731,B023")


def ruff(root, *arguments):
    command = [sys.executable, "-m", "ruff", *arguments]
    command += ["--config", root / "pyproject.toml", "--no-cache"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=root)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    return done.stdout


def check(root, fix=False):
    """Return what is not in the project's style, one line for each; with `fix`, mend the pages."""
    with TemporaryDirectory() as name:
        folder, pages, messages = Path(name).resolve(), {}, []
        for path in sorted((root / "book").rglob("*.md")):
            text = path.read_text("utf8")
            cells = list(CELL.finditer(text))
            codes = [new_code_cell(cell["code"].removesuffix("\n")) for cell in cells]
            file = folder / f"{len(pages):03d}.ipynb"
            about = {"language_info": {"name": "python"}}
            nbformat.write(new_notebook(cells=codes, metadata=about), file)
            pages[file] = path, text, cells

        def tell(path, text, position, lines, what):
            line = text.count("\n", 0, position) + lines
            messages.append(f"{path.relative_to(root)}:{line}: {what}")

        mending = ["--fix"] if fix else []
        found = ruff(root, "check", *RULES, *mending, "--output-format", "json", folder)
        for entry in json.loads(found):
            path, text, cells = pages[Path(entry["filename"])]
            start = cells[(entry["cell"] or 1) - 1].start("code")
            what = f"{entry['code']} {entry['message']}"
            tell(path, text, start, entry["location"]["row"], what)
        ruff(root, "format", "--quiet", folder)
        for file, (path, text, cells) in pages.items():
            mended = text
            wanted = [cell.source for cell in nbformat.read(file, 4).cells]
            for cell, code in reversed(list(zip(cells, wanted, strict=True))):
                code += "\n" if code else ""
                if code != cell["code"]:
                    what = "this cell would be formatted (make format)"
                    tell(path, text, cell.start("code"), 1, what)
                    mended = mended[: cell.start("code")] + code + mended[cell.end("code") :]
            if fix and mended != text:
                write_atomically(path, mended)
        return messages


def main(root, fix):
    if fix:
        check(root, fix=True)
    messages = check(root)
    print("\n".join(messages), end="\n" if messages else "")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(Path().resolve(), "--fix" in sys.argv))
