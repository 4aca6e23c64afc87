"""The normal form of Python's syntax trees, in which names stand for what they mean.

It is a list of `parts`: text, and the definitions and modules of the package that a piece of code
refers to, in their places. Positions, comments, docstrings, annotations, import lines and the texts
of errors are no part of it, nor is the name that is being defined.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from iterlin.study.syntax import bound_by, imports_of, is_text, outer, says

# Modules that answer as one of Python's does and are written as that one: what time it is, is in
# no number.
_STAND_FOR = {"runtime.clock": "time"}
# Fields of syntax trees that say nothing of what is computed, or only to some versions of Python.
_SILENT = {"ctx", "kind", "type_comment", "type_ignores", "returns", "annotation"}
# Annotations that say more than a type: these decide what a class's field is.
_TELLING = {"ClassVar", "InitVar", "KW_ONLY"}


class Key(NamedTuple):
    """A definition: the module it stands in ("study.records") and its name there.

    The name of an effect is "#" and the place of its statement.
    """

    module: str
    name: str


class External(NamedTuple):
    """What an import from outside the package binds: "numpy.linalg"."""

    path: str


class Whole(NamedTuple):
    """A module of the package as a value: whatever is in it may be used."""

    module: str


Meaning = Key | External | Whole | None


@runtime_checkable
class Meanings(Protocol):
    """What names mean, as `definitions.Library` knows; `held_to` is its own."""

    held_to: Mapping[str, str]

    def meaning(self, module: str, name: str) -> Meaning: ...

    def imported(self, target: tuple[str, str | None]) -> Meaning: ...

    def member(self, module: str, name: str) -> Meaning: ...


class _Scope(NamedTuple):
    names: set[str]
    imports: dict[str, tuple[str, str | None]]
    of_class: bool = False
    of_module: frozenset[str] = frozenset()  # declared ``global``


class Writer:
    """Writes syntax trees in the normal form, as `parts`: text, `Key` and `Whole`.

    `defining` is the name that is being defined, which does not count. Code of no module (None)
    has the `names` and `imports` that are bound around it.
    """

    def __init__(
        self, library: Meanings, module: str | None, defining: str, *, names=(), imports=None
    ):
        self.library, self.module, self.defining = library, module, defining
        self.scopes = [_Scope(set(names), imports)] if imports is not None else []
        self.parts: list = []

    def write(self, node) -> None:
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            method(node)
        elif isinstance(node, ast.AST):
            self.parts.append(type(node).__name__)
            for field, value in ast.iter_fields(node):
                if field not in _SILENT and value is not None and value != []:
                    self.parts.append(field)
                    self.write(value)
            self.parts.append("end")
        elif isinstance(node, list):
            self._list(node)
        elif node is None:  # a place left empty, unlike the constant None
            self._text("nothing")
        else:
            self._text(f"{type(node).__name__} {node!a}")

    def _text(self, text: str) -> None:
        self.parts.append(text)

    def _list(self, nodes) -> None:
        self._text("[")
        for node in nodes:
            self.write(node)
        self._text("]")

    def _meaning(self, name: str) -> Meaning | str:
        """What a name means here: its own text where it is bound around this place."""
        for depth, scope in enumerate(reversed(self.scopes)):
            if scope.of_class and depth > 0:
                continue  # a class's names are not seen from within its methods
            if name in scope.of_module:
                break
            if name in scope.names:
                return name
            if name in scope.imports:
                return self.library.imported(scope.imports[name])
        if self.module is None:
            return name
        return self.library.meaning(self.module, name) or name

    def refer(self, found: Meaning | str, attributes: Sequence[str] = ()) -> None:
        """Write what a name means, and the attributes that are taken of it."""
        if isinstance(found, Whole) and found.module in _STAND_FOR:
            found = External(_STAND_FOR[found.module])
        while isinstance(found, Whole) and attributes:
            found = self.library.member(found.module, attributes[0])
            attributes = attributes[1:]
        module = found.module.rpartition(".")[2] if isinstance(found, Key | Whole) else None
        if module in self.library.held_to:
            name = [found.name] if isinstance(found, Key) else []
            self._text(f"{'.'.join([module, *name, *attributes])}: {self.library.held_to[module]}")
        elif isinstance(found, External):
            self._text(".".join([found.path, *attributes]))
        else:
            self.parts.append(found if isinstance(found, Key | Whole) else f"name {found}")
            self._text("".join(f".{name}" for name in attributes))

    def _Name(self, node) -> None:
        if not isinstance(node.ctx, ast.Load) and not self.scopes:
            self._text("self" if node.id == self.defining else f"bound {node.id}")
        elif not isinstance(node.ctx, ast.Load) and self.scopes[-1].of_class:
            self.refer(node.id)
        else:
            self.refer(self._meaning(node.id))

    def _Attribute(self, node) -> None:
        attributes, base = [], node
        while isinstance(base, ast.Attribute):
            attributes.insert(0, base.attr)
            base = base.value
        if isinstance(base, ast.Name):
            self.refer(self._meaning(base.id), attributes)
        else:
            self.write(base)
            self._text("".join(f".{name}" for name in attributes))

    def _own_name(self, node) -> str:
        # An effect acts by its decorator, whatever the function is called.
        defines = node.name == self.defining or self.defining.startswith("#")
        return "self" if defines and not self.scopes else node.name

    def _Constant(self, node) -> None:
        self._text(f"{type(node.value).__name__} {node.value!a}")

    def _Expr(self, node) -> None:
        if not is_text(node):
            self._text("Expr")
            self.write(node.value)

    def _Pass(self, node) -> None:
        pass

    _Import = _ImportFrom = _Pass

    def _Raise(self, node) -> None:
        self._text("Raise")
        if isinstance(node.exc, ast.Call):
            self.write(node.exc.func)
            arguments = [*node.exc.args, *(keyword.value for keyword in node.exc.keywords)]
            self._list([a for a in arguments if not any(map(says, ast.walk(a)))])
        else:
            self.write(node.exc)

    def _Assert(self, node) -> None:
        self._text("Assert")
        self.write(node.test)

    def _AnnAssign(self, node) -> None:
        in_class = bool(self.scopes) and self.scopes[-1].of_class
        if node.value is None and not in_class:
            return
        if in_class:
            words = {n.id for n in ast.walk(node.annotation) if isinstance(n, ast.Name)}
            words |= {n.attr for n in ast.walk(node.annotation) if isinstance(n, ast.Attribute)}
            self._text(f"field {' '.join(sorted(words & _TELLING))}")
        else:
            self._text("Assign")
        self.write(node.target)
        self.write(node.value)

    def _Assign(self, node) -> None:
        self._text("Assign")
        for part in (*node.targets, node.value):
            self.write(part)

    def _FunctionDef(self, node) -> None:
        self._text(type(node).__name__)
        self._text(self._own_name(node))
        self._list(node.decorator_list)
        self._function(node, node.body)

    _AsyncFunctionDef = _FunctionDef

    def _Lambda(self, node) -> None:
        self._text("Lambda")
        self._function(node, [node.body])

    def _function(self, node, body) -> None:
        arguments = node.args
        self._list(arguments.defaults)
        self._list(arguments.kw_defaults)
        plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names = [argument.arg for argument in plain]
        starred = [a.arg if a else "" for a in (arguments.vararg, arguments.kwarg)]
        counts = [len(arguments.posonlyargs), len(arguments.args), len(arguments.kwonlyargs)]
        self._text(f"({' '.join(names)} | {' '.join(map(str, counts))} | {' '.join(starred)})")
        declared = {ast.Global: set(), ast.Nonlocal: set()}
        for statement in outer(body):
            declared.get(type(statement), set()).update(getattr(statement, "names", ()))
        of_module = frozenset(declared[ast.Global])
        bound = ({*names, *starred} | bound_by(body)) - of_module - declared[ast.Nonlocal]
        imports = imports_of([s for s in body if isinstance(s, ast.stmt)])
        self.scopes.append(_Scope(bound - set(imports), imports, of_module=of_module))
        self._list(body)
        self.scopes.pop()

    def _ClassDef(self, node) -> None:
        self._text("ClassDef")
        self._text(self._own_name(node))
        for part in (node.decorator_list, node.bases, node.keywords):
            self._list(part)
        # A class's statements run in order: what it has not bound yet is what is around it.
        self.scopes.append(_Scope(set(), imports_of(node.body), of_class=True))
        self._text("[")
        for statement in node.body:
            self.write(statement)
            self.scopes[-1].names.update(bound_by([statement]))
        self._text("]")
        self.scopes.pop()

    def _comprehension_of(self, node, results) -> None:
        self._text(type(node).__name__)
        # The first iterable is evaluated outside, where the targets do not hide anything.
        self.write(node.generators[0].iter)
        targets = [generator.target for generator in node.generators]
        self.scopes.append(_Scope(bound_by(targets), {}))
        for number, generator in enumerate(node.generators):
            self._text(f"for {generator.is_async}")
            self.write(generator.target)
            if number:
                self.write(generator.iter)
            self._list(generator.ifs)
        self._list(results)
        self.scopes.pop()

    def _ListComp(self, node) -> None:
        self._comprehension_of(node, [node.elt])

    _SetComp = _GeneratorExp = _ListComp

    def _DictComp(self, node) -> None:
        self._comprehension_of(node, [node.key, node.value])
