"""Syntax trees of Python: what statements bind and import, and which of them are mere text."""

import ast
from collections import deque
from collections.abc import Iterable, Iterator

PACKAGE = "iterlin"
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_NAMED = DEFINITIONS | ast.ExceptHandler | ast.MatchAs | ast.MatchStar
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
ASSIGNMENTS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete
IMPORTS = ast.Import | ast.ImportFrom


def parse(text: str) -> ast.Module:
    """The syntax tree of a cell; of one that is no Python, without IPython's % and ! lines.

    Raises SyntaxError if that is no Python either.
    """
    try:
        return ast.parse(text)
    except SyntaxError:
        pass
    if text.lstrip().startswith("%%"):
        text = text.partition("\n")[2]
    lines = ("" if line.lstrip()[:1] in ("%", "!") else line for line in text.split("\n"))
    return ast.parse("\n".join(lines))


def is_text(statement: ast.stmt) -> bool:
    """A docstring, or any other text that stands alone."""
    return isinstance(statement, ast.Expr) and says(statement.value)


def says(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def imports_of(statements: Iterable[ast.stmt]) -> dict[str, tuple[str, str | None]]:
    """What import statements bind: name -> (path, name in it or None), functions' own left out.

    Raises ValueError for a relative import and for ``import *`` from the package.
    """
    found = {}
    for node in outer(statements):
        if isinstance(node, ast.Import):
            for item in node.names:
                path = item.name if item.asname else item.name.partition(".")[0]
                found[item.asname or path] = path, None
        elif isinstance(node, ast.ImportFrom):
            ours = (node.module or "").partition(".")[0] == PACKAGE
            if node.level or (ours and any(item.name == "*" for item in node.names)):
                raise ValueError(f"imports are written in full here, not: {ast.unparse(node)}")
            for item in node.names:
                found[item.asname or item.name] = node.module, item.name
    return found


def bound_by(statements: Iterable[ast.AST]) -> set[str]:
    """Names that statements bind in their own scope, those of imports left out."""
    names = set()
    for node in outer(statements):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, _NAMED) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
    return names


def outer(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes but those inside functions, classes and comprehensions, which have their scopes."""
    waiting = deque(nodes)
    while waiting:
        node = waiting.popleft()
        yield node
        if isinstance(node, DEFINITIONS):
            continue
        if isinstance(node, ast.Lambda | _COMPREHENSIONS):
            # Of these, only what `:=` binds belongs to the scope around them.
            inside = (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
            waiting += inside if not isinstance(node, ast.Lambda) else ()
            continue
        waiting += ast.iter_child_nodes(node)
