"""Check the style of the pages' code: ``python -m iterlin_book.lint``; ``--fix`` mends it.

Ruff reads the code cells of each page as one notebook; findings name the line of the page.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from iterlin_study.records.experiment_pages import CELL
from nbformat.v4 import new_code_cell, new_notebook

from iterlin_book.pages import write_atomically

# A page may set JAX up between its imports, write a formula as a lambda, and hand a function made
# in a loop to what calls it at once. A name that nothing binds is an error on a page.
RULES = ("--extend-select", "F821", "--ignore", "E402,E731,B023")


def ruff(root, *arguments, expected=(0, 1)):
    command = [sys.executable, "-m", "ruff", *arguments]
    command += ["--config", root / "pyproject.toml", "--no-cache"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=root)
    if done.returncode not in expected:
        sys.exit(done.returncode)
    return done.stdout


def check(root, fix=False):
    """Return what is not in the project's style, one line for each; with `fix`, mend the pages."""
    with TemporaryDirectory() as name:
        folder, pages, messages = Path(name).resolve(), {}, []

        def tell(file, number, row, what):
            path, text, cells = pages[file]
            line = text.count("\n", 0, cells[number].start("code")) + row
            messages.append(f"{path.relative_to(root)}:{line}: {what}")

        for path in sorted((root / "book").rglob("*.md")):
            text = path.read_text("utf8")
            cells = list(CELL.finditer(text))
            codes = [new_code_cell(cell["code"].removesuffix("\n")) for cell in cells]
            file = folder / f"{len(pages):03d}.ipynb"
            about = {"language_info": {"name": "python"}}
            nbformat.write(new_notebook(cells=codes, metadata=about), file)
            pages[file] = path, text, cells
        mending = ["--fix"] if fix else []
        found = ruff(root, "check", *RULES, *mending, "--output-format", "json", folder)
        for entry in json.loads(found):
            what = f"{entry['code']} {entry['message']}"
            tell(Path(entry["filename"]), (entry["cell"] or 1) - 1, entry["location"]["row"], what)
        # A cell that does not parse, which gives 2, stays as it is: `check` has named it.
        ruff(root, "format", "--quiet", folder, expected=(0, 1, 2))
        for file, (path, text, cells) in pages.items():
            for number, cell in reversed(list(enumerate(nbformat.read(file, 4).cells))):
                code = f"{cell.source}\n" if cell.source else ""
                if code != cells[number]["code"]:
                    tell(file, number, 1, "this cell would be formatted (make format)")
                    start, end = cells[number].span("code")
                    text = text[:start] + code + text[end:]
            if fix:
                write_atomically(path, text)
        return messages


def main(root, fix):
    if fix:
        check(root, fix=True)
    messages = check(root)
    print("\n".join(messages), end="\n" if messages else "")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(Path().resolve(), "--fix" in sys.argv))
