"""The statements at the top of a module: what they bind, import, and act on from outside."""

import ast
from collections.abc import Collection, Iterator

from iterlin.study.syntax import (
    ASSIGNMENTS,
    DEFINITIONS,
    IMPORTS,
    PACKAGE,
    bound_by,
    imports_of,
    is_text,
)


class Module:
    """What the statements at the top of a module bind, import and act on."""

    def __init__(self, name: str, tree: ast.Module, silent: Collection[str] = ()):
        self.name = name
        self.body = tree.body
        self.imports: dict[str, tuple[str, str | None]] = {}
        self.bindings: dict[str, list[int]] = {}
        self.effects: dict[int, list[ast.AST]] = {}  # by place, the parts that act
        self.exports: dict[str, str] = {}  # of a package that loads what it exports on first use
        for place, statement in enumerate(tree.body):
            self.imports |= imports_of([statement])
            self._drop_decorators(statement, silent)
            names = bound_by([statement])
            for bound in names:
                self.bindings.setdefault(bound, []).append(place)
            if names == {"_EXPORTS"}:
                self.exports = ast.literal_eval(statement.value)
            if acted := list(_acted(statement)):
                self.effects[place] = acted

    def _drop_decorators(self, statement: ast.stmt, silent: Collection[str]) -> None:
        """Those that are imported by name from modules that are silent."""

        def counts(decorator):
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            path, _ = self.imports.get(getattr(function, "id", ""), ("", None))
            return path.partition(".")[0] != PACKAGE or path.rpartition(".")[2] not in silent

        if isinstance(statement, DEFINITIONS):
            statement.decorator_list = [d for d in statement.decorator_list if counts(d)]

    def statements_of(self, name: str) -> list[ast.stmt]:
        if name.startswith("#"):
            return [self.body[int(name[1:])]]
        return [self.body[place] for place in self.bindings[name]]


def _acted(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a statement at the top of a module may change that others define."""
    if isinstance(statement, DEFINITIONS):
        for decorator in statement.decorator_list:
            yield from _handed(decorator)
    elif isinstance(statement, ASSIGNMENTS):
        yield from getattr(statement, "targets", None) or [statement.target]
    elif not isinstance(statement, IMPORTS) and not is_text(statement) and not _is_main(statement):
        yield statement


def _handed(decorator: ast.expr) -> Iterator[ast.expr]:
    """The definition that a decorator is a method of (``f`` of ``@f.defjvp``), and those it is
    given; plain ``@f`` changes what it decorates alone."""
    if isinstance(decorator, ast.Call):
        yield from decorator.args
        yield from (keyword.value for keyword in decorator.keywords)
        yield from _handed(decorator.func)
    elif isinstance(decorator, ast.Attribute):
        yield decorator.value


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
