"""Which source a result came from: hashes of the modules it depends on and of its page's cells.

Comments, docstrings, blank lines and trailing space do not count, so that explaining the code
better makes no recorded run stale.
"""

import ast
import hashlib
import io
import platform
import re
import subprocess
import tokenize
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parent

# From Python 3.12 on the text of an f-string is a token of its own.
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


# A code cell of a page in MyST Markdown: options as ":name: value" lines or between two "---".
_CELL = re.compile(
    r"^```\{code-cell\}.*\n(?P<options>(?:---\n(?:.*\n)*?---\n)?(?::.*\n)*)(?P<code>(?:.*\n)*?)```$",
    re.MULTILINE,
)


def project_root() -> Path:
    """The checkout this library is part of: the folder that holds book/ and lib/."""
    return PACKAGE.parent.parent


def code_of(source: str) -> str:
    """Source without comments, docstrings, blank lines and trailing space."""
    lines = source.split("\n")
    dropped = []  # (start, end) as (row, column) pairs, rows from 1
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                dropped.append(
                    (
                        _place(lines, first.lineno, first.col_offset),
                        _place(lines, first.end_lineno, first.end_col_offset),
                    )
                )
    docstrings = {start for start, _ in dropped}
    kept = set()  # rows whose end lies inside a string: blanks there are part of its value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            dropped.append((token.start, token.end))
        elif token.type in STRINGS and token.start not in docstrings:
            kept |= set(range(token.start[0], token.end[0]))
    for (row, start), (end_row, end) in sorted(dropped, reverse=True):
        rest = lines[end_row - 1][end:]
        lines[row - 1 : end_row] = [lines[row - 1][:start] + rest] + [""] * (end_row - row)
    stripped = (line if row in kept else line.rstrip() for row, line in enumerate(lines, start=1))
    return "\n".join(line for row, line in enumerate(stripped, start=1) if line or row in kept)


def _place(lines, row, byte) -> tuple[int, int]:
    """ast counts columns in UTF-8 bytes, tokenize in characters."""
    return row, len(lines[row - 1].encode()[:byte].decode())


def sources(package: Path = PACKAGE) -> dict[str, str]:
    """The text of every module of the package, by name."""
    return {path.stem: path.read_text() for path in package.glob("*.py")}


def _imports(source: str) -> set[str]:
    """Modules of this package that a module of it imports, anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "iterlin":
                found |= {alias.name for alias in node.names}
            elif node.module.startswith("iterlin."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("iterlin.")}
    return found


def dependencies(modules: Iterable[str], texts: dict[str, str] | None = None) -> list[str]:
    """The given modules and all that they import from the package, sorted.

    `texts` is what `sources` returned, by default as the files are now. Raises ValueError for a
    module that does not exist.
    """
    texts = sources() if texts is None else texts
    done, waiting = set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module not in texts:
            raise ValueError(f"iterlin has no module {module!r}")
        if module not in done:
            done.add(module)
            waiting += _imports(texts[module])
    return sorted(done)


def source_hash(modules: Iterable[str], texts: dict[str, str] | None = None) -> str:
    """SHA-256 over the code of the modules and of all that they import from the package."""
    texts = sources() if texts is None else texts
    digest = hashlib.sha256()
    for module in dependencies(modules, texts):
        digest.update(f"{module}\n{code_of(texts[module])}\n".encode())
    return digest.hexdigest()


def pages() -> dict[str, str]:
    """The text of every page of the book, by the last part of its name."""
    found = (project_root() / "book").rglob("*.md")
    return {path.stem: path.read_text("utf8") for path in sorted(found)}


def page_code(experiment: str, texts: dict[str, str] | None = None) -> str | None:
    """SHA-256 of the code that made a record: the page's cells up to the one that saves it.

    Of the cell tagged `parameters` the names alone count, since a record holds the values. None
    if there is no page of the experiment's name, or none that calls records.save. `texts` is what
    `pages` returned, by default as the files are now.
    """
    texts = pages() if texts is None else texts
    digest = hashlib.sha256()
    for cell in _CELL.finditer(texts.get(experiment, "")):
        try:
            code = code_of(cell["code"])
            if "parameters" in cell["options"]:
                code = "\n".join(sorted(_assigned(code)))
        except (SyntaxError, tokenize.TokenError):  # a line that IPython alone understands
            code = cell["code"]
        digest.update(f"{code}\n".encode())
        if "records.save(" in code:
            return digest.hexdigest()
    return None


def _assigned(source: str) -> set[str]:
    """Names that a piece of code binds at its top level."""
    names = set()
    for statement in ast.parse(source).body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@cache
def versions() -> dict[str, str]:
    """Python's and the numerical packages' versions."""
    found = {"python": platform.python_version()}
    for name in ("jax", "jaxlib", "numpy", "scipy", "optax", "flax", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checkout's commit, '+changes' if lib/ or book/ differ from it; 'unknown' outside git."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "lib", "book")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(*arguments) -> str:
    command = ["git", "-C", str(project_root()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def device() -> str:
    """The device that JAX computes on, in words: '2 CPU cores' or the GPU's name."""
    import os

    import jax

    first = jax.devices()[0]
    if first.platform == "cpu":
        return f"{len(os.sched_getaffinity(0))} CPU cores ({platform.machine()})"
    return f"{len(jax.devices())} x {first.device_kind}"
