"""What of a page's code makes its record: the statements before the one that saves it.

Left out are those that cannot change a number in it: imports, checks, what only shows something,
``live = page.completed(live)`` (`extension`), and names that nothing else mentions. Of the cell
tagged ``parameters`` the record holds the values.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile

import yaml

from iterlin.study.definitions import Library
from iterlin.study.normal_form import Key, Writer
from iterlin.study.syntax import bound_by, imports_of, is_text, parse

# A code cell of a page in MyST Markdown: options as ":name: value" lines or between two "---".
CELL = re.compile(
    r"^```\{code-cell\}.*\n(?P<options>(?:---\n(?:.*\n)*?---\n)?(?::.*\n)*)\n*(?P<code>(?:.*\n)*?)```$",
    re.MULTILINE,
)
# Modules whose functions show or keep things; their results are no part of what is computed.
SHOWING = ("claims_table", "openings", "page", "plotting", "tables")
SHOWN_BY = {"display", "print"}
DRAWING = "matplotlib."


@lru_cache(maxsize=64)
def cells(text: str) -> tuple[tuple[list[str], ast.Module], ...]:
    """Tags and syntax tree of each code cell, both only to be read.

    Raises SyntaxError for a cell that is no Python.
    """
    return tuple(_cells(text))


def _cells(text: str) -> Iterator[tuple[list[str], ast.Module]]:
    for cell in CELL.finditer(text):
        yield _tags(cell["options"]), parse(cell["code"])


@lru_cache(maxsize=64)  # most cells have one of a few
def _tags(options: str) -> list[str]:
    lines = (line.removeprefix(":") for line in options.splitlines() if line != "---")
    return (yaml.safe_load("\n".join(lines)) or {}).get("tags", [])


def defaults(text: str) -> dict:
    """Name -> value in the page's cell tagged ``parameters``, which is run for that, as papermill
    runs it before a tier's values replace any.

    Raises ValueError for a cell that fails by itself.
    """
    for tags, tree in cells(text):
        if "parameters" in tags:
            found: dict = {}
            try:
                exec(compile(tree, "parameters", "exec"), found)
            except Exception as error:
                raise ValueError(f"the parameters cell fails: {error}") from error
            return {name: found[name] for name in bound_by(tree.body)}
    return {}


def saves(text: str) -> bool:
    """Whether the page has a statement that saves a record."""
    return any(_saved(s) is not None for _, tree in cells(text) for s in tree.body)


def completes(text: str) -> bool:
    """Whether the page takes seeds from its record (`extension`) before it saves one."""
    statements = (statement for _, tree in cells(text) for statement in tree.body)
    before = takewhile(lambda statement: _saved(statement) is None, statements)
    return any(map(_completes, before))


@lru_cache(maxsize=64)  # for a record, and with what stands for former definitions
def made_by(text: str, library: Library) -> tuple[tuple[str, list], ...]:
    """The statements that make the page's record: a name for a reader, and the normal form.

    The last is what is saved. Raises ValueError for a page that saves nothing, or gives a name that
    it imports another meaning.
    """
    statements, imports, bound = [], {}, set()
    saved = None
    for tags, tree in cells(text):
        if "parameters" in tags:
            bound |= bound_by(tree.body)
            continue
        for statement in tree.body:
            imports |= imports_of([statement])
            saved = _saved(statement)
            if saved is not None:
                statements.append(ast.Expr(saved))
                break
            if _completes(statement):
                continue
            bound |= bound_by([statement])
            statements.append(statement)
        if saved is not None:
            break
    if saved is None:
        raise ValueError("the page saves no record")
    if both := bound & imports.keys():
        raise ValueError(f"the page binds what it imports: {', '.join(sorted(both))}")

    def form(node):
        writer = Writer(library, None, "", names=bound, imports=imports)
        writer.write(node)
        return writer.parts

    def idle(statement):
        return _is_idle(statement) or _shows(statement, form, bound)

    kept = _mentioned(_without_idle(statements, idle))
    return tuple((_label(statement), form(statement)) for statement in kept)


def _saved(statement: ast.stmt) -> ast.expr | None:
    """The data set of a statement ``... = records.save(ds, ...)`` or ``page.save(ds, ...)``."""
    call = getattr(statement, "value", None)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    owner = call.func.value
    if not isinstance(owner, ast.Name) or owner.id not in ("records", "page"):
        return None
    if call.func.attr != "save":
        return None
    if not call.args:
        raise ValueError("the page's call of save must begin with the data set")
    return call.args[0]


def _completes(statement: ast.stmt) -> bool:
    """Whether it is ``live = page.completed(live)``, of whatever name."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    name = getattr(statement.targets[0], "id", None)
    return name is not None and ast.unparse(statement.value) == f"page.completed({name})"


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement can only raise, or nothing at all: it may prevent a record."""
    if isinstance(statement, ast.If):
        return not statement.orelse and all(_is_idle(inner) for inner in statement.body)
    idle = ast.Import | ast.ImportFrom | ast.Assert | ast.Raise | ast.Pass
    return isinstance(statement, idle) or is_text(statement)


def _shows(statement: ast.stmt, form, bound) -> bool:
    """Whether it is one call of something that shows or keeps, not computes, of arguments that
    call nothing of the page's own."""
    call = getattr(statement, "value", None)
    if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(call, ast.Call):
        return False
    inner = (n.func for value in call.args for n in ast.walk(value) if isinstance(n, ast.Call))
    for function in inner:
        first = form(function)[0]
        if isinstance(first, Key) and first.module.rpartition(".")[2] not in SHOWING:
            return False
        if not isinstance(first, Key) and first.removeprefix("name ").split(".")[0] in bound:
            return False
    called = form(call.func)[0]
    if isinstance(called, Key):
        return called.module.rpartition(".")[2] in SHOWING
    if called.startswith(DRAWING):
        return True
    return isinstance(statement, ast.Expr) and re.split(r"[. ]", called)[-1] in SHOWN_BY


def _without_idle(statements: list[ast.stmt], idle) -> list[ast.stmt]:
    """Without idle statements, but for those that bind a name which one that is kept loads."""
    kept = [statement for statement in statements if not idle(statement)]
    while True:
        loaded = set().union(*map(_loaded, kept))
        needed = [s for s in statements if s in kept or bound_by([s]) & loaded]
        if len(needed) == len(kept):
            return kept
        kept = needed


def _loaded(statement: ast.stmt) -> set[str]:
    names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def _mentioned(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Without definitions, and assignments that call nothing, of names that nothing mentions."""
    while True:
        used = [_loaded(statement) for statement in statements]
        kept = [
            statement
            for place, statement in enumerate(statements)
            if not _only_binds(statement)
            or any(bound_by([statement]) & names for at, names in enumerate(used) if at != place)
        ]
        if len(kept) == len(statements):
            return kept
        statements = kept


def _only_binds(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return not statement.decorator_list
    if not isinstance(statement, ast.Assign):
        return False
    plain = all(isinstance(target, ast.Name) for target in statement.targets)
    return plain and not any(isinstance(node, ast.Call) for node in ast.walk(statement.value))


def _label(statement: ast.stmt) -> str:
    names = sorted(bound_by([statement]))
    return ", ".join(names) if names else type(statement).__name__.lower()
