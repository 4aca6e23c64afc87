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

from iterlin_book.pages import BookError, write_atomically

# A page may set JAX up between its imports, write a formula as a lambda, and hand a function made
# in a loop to what calls it at once. A name that nothing binds is an error on a page.
RULES = ("--extend-select", "F821", "--ignore", "E402,E731,B023")


def ruff(root, *arguments):
    command = [sys.executable, "-m", "ruff", *arguments]
    command += ["--config", str(root / "pyproject.toml"), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    if done.returncode not in (0, 1):
        raise BookError(f"ruff failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def check(root, fix=False):
    """Return what is not in the project's style, one line for each; with `fix`, mend the pages."""
    with TemporaryDirectory() as name:
        folder, pages = Path(name).resolve(), {}
        for path in sorted((root / "book").rglob("*.md")):
            text = path.read_text("utf8")
            cells = list(CELL.finditer(text))
            codes = [new_code_cell(cell["code"].removesuffix("\n")) for cell in cells]
            file = folder / f"{len(pages):03d}.ipynb"
            about = {"language_info": {"name": "python"}}
            nbformat.write(new_notebook(cells=codes, metadata=about), file)
            pages[file] = path, text, cells
        messages, mending = [], ["--fix"] if fix else []
        found = ruff(root, "check", *RULES, *mending, "--output-format", "json", folder)
        for entry in json.loads(found):
            path, text, cells = pages[Path(entry["filename"])]
            start = cells[(entry["cell"] or 1) - 1].start("code")
            line = text.count("\n", 0, start) + entry["location"]["row"]
            where = f"{path.relative_to(root)}:{line}:{entry['location']['column']}"
            messages.append(f"{where}: {entry['code']} {entry['message']}")
        ruff(root, "format", "--quiet", folder)
        for file, (path, text, cells) in pages.items():
            wanted = [cell.source for cell in nbformat.read(file, 4).cells]
            for cell, code in reversed(list(zip(cells, wanted, strict=True))):
                code += "\n" if code else ""
                if code != cell["code"]:
                    line = text.count("\n", 0, cell.start("code")) + 1
                    where = f"{path.relative_to(root)}:{line}"
                    messages.append(f"{where}: this cell would be formatted (make format)")
                    if fix:
                        text = text[: cell.start("code")] + code + text[cell.end("code") :]
                        write_atomically(path, text)
        return messages


def main(root, fix):
    try:
        if fix:
            check(root, fix=True)
        messages = check(root)
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(messages), end="\n" if messages else "")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(Path().resolve(), "--fix" in sys.argv))
