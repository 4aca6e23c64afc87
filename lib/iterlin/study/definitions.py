"""Which definitions a piece of code reaches, each under a digest of what it computes.

A definition is a function, class or constant at the top of a module. Its digest is that of its
syntax tree in a normal form, in which each name of the package stands for the digest of what it
means: where a definition lives and what it is called do not count, nor do positions, comments,
docstrings, annotations, import lines and the texts of errors. Any other change in it, or in what it
reaches, makes another digest. A statement at the top of a module, or a decorator, that changes a
definition which is reached (``@f.defjvp``) is reached with it.
"""

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

PACKAGE = "iterlin"
# Modules that answer as one of Python's does and are written as that one: what time it is, is in
# no number.
_STAND_FOR = {"runtime.clock": "time"}
# Hexadecimal digits of a digest: 48 bits, for a few hundred definitions.
DIGITS = 12
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_NAMED = _DEFINITIONS | ast.ExceptHandler | ast.MatchAs | ast.MatchStar
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_ASSIGNMENTS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete
_IMPORTS = ast.Import | ast.ImportFrom
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


def read(folder: Path) -> dict[str, str]:
    """The text of every module below a package's folder, by its path in it ("study/records.py")."""
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf8")
        for path in sorted(folder.rglob("*.py"))
    }


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


class Library:
    """The package's modules as `read` returns them.

    held_to: modules (the last part of their names) of which only what they are asked for counts,
    not how they do it, each with a text that says what holds them to it. silent: modules, likewise,
    whose decorators do not count: they say where a definition is called, not what it gives.

    Raises SyntaxError for text that is no Python, ValueError for an import of what the package does
    not have, once it is met.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        held_to: Mapping[str, str] | None = None,
        silent: Collection[str] = (),
    ):
        self.modules = {}
        self.held_to = held_to or {}
        for path, text in texts.items():
            parts = path.removesuffix(".py").split("/")
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = _Module(name, ast.parse(text), silent)
        self._forms: dict[Key, list] = {}
        self._digests: dict[Key, str] = {}

    def meaning(self, module: str, name: str) -> Meaning:
        """What a name means at the top of a module; None for a builtin."""
        found = self.modules[module]
        if name in found.bindings:
            return Key(module, name)
        if name in found.imports:
            return self.imported(found.imports[name])
        return None

    def imported(self, target: tuple[str, str | None]) -> Meaning:
        """What an import binds, given as `imports_of` gives it."""
        path, name = target
        package, _, module = path.partition(".")
        if package != PACKAGE:
            return External(path if name is None else f"{path}.{name}")
        if module not in self.modules:
            raise ValueError(f"{PACKAGE} has no module {module!r}")
        return Whole(module) if name is None else self.member(module, name)

    def member(self, module: str, name: str) -> Meaning:
        """What ``module.name`` means. Raises ValueError if the package has no such thing."""
        if (found := self.meaning(module, name)) is not None:
            return found
        below = f"{module}.{name}".lstrip(".")
        if below in self.modules:
            return Whole(below)
        if name in self.modules[module].exports:
            return self.member(self.modules[module].exports[name], name)
        if name.startswith("__"):
            return External(f"{PACKAGE}.{name}")
        raise ValueError(f"{f'{PACKAGE}.{module}'.rstrip('.')} has no {name!r}")

    def form(self, key: Key) -> list:
        """The normal form of a definition: text, and what it refers to in its places."""
        if key not in self._forms:
            module = self.modules[key.module]
            writer = Writer(self, key.module, key.name)
            if key.name in module.imports:  # imported, then bound to something made of it
                writer.refer(self.imported(module.imports[key.name]))
            for statement in module.statements_of(key.name):
                writer.write(statement)
            self._forms[key] = writer.parts
        return self._forms[key]

    def references(self, key: Key) -> Iterator[Key]:
        """Definitions that a definition mentions itself."""
        return self.mentioned(self.form(key))

    def mentioned(self, parts: Iterable) -> Iterator[Key]:
        for part in parts:
            if isinstance(part, Key):
                yield part
            elif isinstance(part, Whole):
                module = self.modules[part.module]
                found = (self.meaning(module.name, n) for n in {*module.bindings, *module.imports})
                yield from (meaning for meaning in found if isinstance(meaning, Key))

    def reached(self, roots: Iterable[Key]) -> set[Key]:
        """The roots, all that they reach, and what acts on any of these."""
        found, waiting = set(), list(roots)
        while waiting:
            while waiting:
                key = waiting.pop()
                if key not in found:
                    found.add(key)
                    waiting += self.references(key)
            waiting = [key for key, acted in self._effects.items() if acted & found]
            waiting = [key for key in waiting if key not in found]
        return found

    @cached_property
    def _effects(self) -> dict[Key, set[Key]]:
        """Statements that may change definitions from outside, and which these are."""
        effects = {}
        for module in self.modules.values():
            for place, nodes in module.effects.items():
                writer = Writer(self, module.name, "")
                for node in nodes:
                    writer.write(node)
                acted = set(self.mentioned(writer.parts))
                if isinstance(module.body[place], _DEFINITIONS):
                    # `@module.f` is `@f`: the module is not what the decorator acts on.
                    acted = {part for part in writer.parts if isinstance(part, Key)}
                elif not acted and not isinstance(module.body[place], _ASSIGNMENTS):
                    # It acts on what is outside of the package, for all that come by here.
                    acted = {Key(module.name, name) for name in module.bindings}
                if acted:
                    effects[Key(module.name, f"#{place}")] = acted
        return effects

    def everything(self) -> Iterator[Key]:
        """All definitions and effects."""
        for module in self.modules.values():
            yield from (Key(module.name, name) for name in module.bindings)
        yield from self._effects

    def label(self, key: Key) -> str:
        """The definition's name for a reader; of an effect, what it acts on."""
        if not key.name.startswith("#"):
            return key.name
        acted = sorted(acted.name for acted in self._effects[key])
        return f"effect on {', '.join(acted)}"

    def digest(self, key: Key) -> str:
        """The digest of a definition and, through its references, of all that it reaches."""
        if key not in self._digests:
            for component in _components(key, lambda k: list(self.references(k)), self._digests):
                self._add(component)
        return self._digests[key]

    def digest_of(self, parts: Iterable) -> str:
        """The digest of a normal form."""
        return _sha(self._text(parts, self.digest))

    def _add(self, component: list[Key]) -> None:
        # Definitions that refer to each other are told apart step by step: first by their text
        # with each other's places left blank, then by what stands in these.
        def resolve(key):
            return inner[key] if key in inner else self._digests[key]

        inner = dict.fromkeys(component, "self")
        for _ in component:
            inner = {key: _sha(self._text(self.form(key), resolve)) for key in component}
        self._digests |= inner

    def _text(self, parts, digest) -> str:
        words = []
        for part in parts:
            if isinstance(part, Key):
                words.append(f"<{digest(part)}>")
            elif isinstance(part, Whole):
                inside = sorted(digest(key) for key in self.mentioned([part]))
                words.append(f"<{' '.join(inside)}>")
            else:
                words.append(part)
        return "\n".join(words)


class _Module:
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

        if isinstance(statement, _DEFINITIONS):
            statement.decorator_list = [d for d in statement.decorator_list if counts(d)]

    def statements_of(self, name: str) -> list[ast.stmt]:
        if name.startswith("#"):
            return [self.body[int(name[1:])]]
        return [self.body[place] for place in self.bindings[name]]


def _acted(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a statement at the top of a module may change that others define."""
    if isinstance(statement, _DEFINITIONS):
        for decorator in statement.decorator_list:
            yield from _handed(decorator)
    elif isinstance(statement, _ASSIGNMENTS):
        yield from getattr(statement, "targets", None) or [statement.target]
    elif not isinstance(statement, _IMPORTS) and not is_text(statement) and not _is_main(statement):
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


def is_text(statement: ast.stmt) -> bool:
    """A docstring, or any other text that stands alone."""
    return isinstance(statement, ast.Expr) and _says(statement.value)


def _says(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def imports_of(statements: Iterable[ast.stmt]) -> dict[str, tuple[str, str | None]]:
    """What import statements bind: name -> (path, name in it or None), functions' own left out.

    Raises ValueError for a relative import and for ``import *`` from the package.
    """
    found = {}
    for node in _outer(statements):
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
    for node in _outer(statements):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, _NAMED) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
    return names


def _outer(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes but those inside functions, classes and comprehensions, which have their scopes."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, _DEFINITIONS):
            continue
        if isinstance(node, ast.Lambda | _COMPREHENSIONS):
            # Of these, only what `:=` binds belongs to the scope around them.
            inside = (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
            waiting += inside if not isinstance(node, ast.Lambda) else []
            continue
        waiting += ast.iter_child_nodes(node)


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
        self, library: Library, module: str | None, defining: str, *, names=(), imports=None
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
            self._list([a for a in arguments if not any(map(_says, ast.walk(a)))])
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
        for statement in _outer(body):
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


def _components(start, successors, done) -> Iterator[list]:
    """Strongly connected components that `start` reaches, each after those it refers to (Tarjan
    1972); what is in `done` is left out."""
    index, low, stack, on_stack = {}, {}, [], set()
    work = [(start, iter(successors(start)))]
    index[start] = low[start] = 0
    stack.append(start)
    on_stack.add(start)
    while work:
        node, rest = work[-1]
        for following in rest:
            if following in done:
                continue
            if following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(successors(following))))
                break
            if following in on_stack:
                low[node] = min(low[node], index[following])
        else:
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                component = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    component.append(member)
                    if member == node:
                        break
                yield component


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
