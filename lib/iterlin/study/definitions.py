"""Which definitions a piece of code reaches, each under a digest of what it computes.

A definition is a function, class or constant at the top of a module. Its digest is that of its
syntax tree in a normal form, in which each name of the package stands for the digest of what it
means: where a definition lives and what it is called do not count, nor do positions, comments,
docstrings, annotations, import lines and the texts of errors. Any other change in it, or in what it
reaches, makes another digest. A statement at the top of a module, or a decorator, that changes a
definition which is reached (``@f.defjvp``) is reached with it.

A definition that was rewritten and gives what the former one gave may stand for it: its digest is
then the former's (`equivalents`), until it, or anything that it reaches, changes again.
"""

import ast
import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

from iterlin.study.module_statements import Module
from iterlin.study.normal_form import External, Key, Meaning, Whole, Writer
from iterlin.study.syntax import ASSIGNMENTS, DEFINITIONS, PACKAGE

# Hexadecimal digits of a digest: 48 bits, for a few hundred definitions.
DIGITS = 12


def read(folder: Path) -> dict[str, str]:
    """The text of every module below a package's folder, by its path in it ("study/records.py")."""
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf8")
        for path in sorted(folder.rglob("*.py"))
    }


class Library:
    """The package's modules as `read` returns them.

    held_to: modules (the last part of their names) of which only what they are asked for counts,
    not how they do it, each with a text that says what holds them to it. silent: modules, likewise,
    whose decorators do not count: they say where a definition is called, not what it gives.
    equivalents: by the digest of a definition as it is, that of the former one which it stands for.

    Raises SyntaxError for text that is no Python, ValueError for an import of what the package does
    not have, once it is met.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        held_to: Mapping[str, str] | None = None,
        silent: Collection[str] = (),
        equivalents: Mapping[str, str] | None = None,
    ):
        self.modules = {}
        self.held_to = held_to or {}
        self.equivalents = equivalents or {}
        for path, text in texts.items():
            parts = path.removesuffix(".py").split("/")
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = _module(name, text, frozenset(silent))
        self._forms: dict[Key, list] = {}
        self._references: dict[Key, tuple[Key, ...]] = {}
        self._digests: dict[Key, str] = {}
        self._written: dict[Key, str] = {}

    def where(self, equivalents: Mapping[str, str]) -> "Library":
        """The same library with other definitions standing for former ones: what is known of its
        modules and forms is shared."""
        _ = self._effects  # once for all
        other = copy.copy(self)
        other.equivalents, other._digests, other._written = equivalents, {}, {}
        return other

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

    def references(self, key: Key) -> tuple[Key, ...]:
        """Definitions that a definition mentions itself."""
        if key not in self._references:
            self._references[key] = tuple(dict.fromkeys(self.mentioned(self.form(key))))
        return self._references[key]

    def mentioned(self, parts: Iterable) -> Iterator[Key]:
        for part in parts:
            if isinstance(part, Key):
                yield part
            elif isinstance(part, Whole):
                module = self.modules[part.module]
                found = (self.meaning(module.name, n) for n in {*module.bindings, *module.imports})
                yield from (meaning for meaning in found if isinstance(meaning, Key))

    def reached(self, roots: Iterable[Key], *, rewritten: bool = False) -> set[Key]:
        """The roots, all that they reach, and what acts on any of these.

        Where a definition stands for a former one, its own digest holds what it reaches: that is
        left out, but for what acts on it, unless `rewritten`.
        """
        roots = list(roots)
        everything = self._reached(roots, lambda key: True)
        if rewritten or not self.equivalents:
            return everything
        effects = [key for key in everything if key.name.startswith("#")]
        return self._reached(roots + effects, lambda key: self.digest(key) == self.written(key))

    def _reached(self, roots: list[Key], follows: Callable[[Key], bool]) -> set[Key]:
        """The same, through those definitions alone."""
        found, waiting = set(), roots
        while waiting:
            waiting = list(waiting)
            while waiting:
                key = waiting.pop()
                if key not in found:
                    found.add(key)
                    waiting += self.references(key) if follows(key) else ()
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
                if isinstance(module.body[place], DEFINITIONS):
                    # `@module.f` is `@f`: the module is not what the decorator acts on.
                    acted = {part for part in writer.parts if isinstance(part, Key)}
                elif not acted and not isinstance(module.body[place], ASSIGNMENTS):
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
            for component in _components(key, self.references, self._digests):
                self._add(component)
        return self._digests[key]

    def written(self, key: Key) -> str:
        """The digest of a definition as it is, whatever it stands for."""
        self.digest(key)
        return self._written[key]

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
        self._written |= inner
        self._digests |= {key: self.equivalents.get(is_, is_) for key, is_ in inner.items()}

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


@lru_cache(maxsize=1024)  # of two versions of the package most modules are the same
def _module(name: str, text: str, silent: frozenset[str]) -> Module:
    return Module(name, ast.parse(text), silent)


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
