"""Where a record's numbers come from: the definitions that its page reaches, and its parameters.

Two records are of one origin if the same statements called the same definitions with the same
parameters. A record keeps a digest of each (`definitions`), so that what has changed since can be
named. A definition that was rewritten to the same effect keeps the former's (`equivalents`).
"""

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

from iterlin.study import definitions, equivalents, page_code, plain_yaml
from iterlin.study.definitions import Library
from iterlin.study.normal_form import Key, Writer
from iterlin.study.provenance import PACKAGE, project_root
from iterlin.study.syntax import imports_of


class Sources(NamedTuple):
    """The texts that origins are read off, as they were at one moment.

    library: the package's modules (`definitions.read`). registry: the data sets' hashes. pages: the
    book's pages, tiers: their parameter files; by their paths in book/. measured: modules outside
    of the book that measure the library, by folder. equivalents: the text at `equivalents.PATH`.
    """

    library: dict[str, str]
    registry: str
    pages: dict[str, str]
    tiers: dict[str, str]
    measured: dict[str, list[str]]
    equivalents: str = ""


class Origin(NamedTuple):
    """What made a record: (name, digest) of each definition reached, sorted, and of each statement
    of its page, in order; and of definitions that stood for former ones the digest of their own."""

    library: list[tuple[str, str]]
    page: list[tuple[str, str]]
    rewritten: tuple[tuple[str, str], ...] = ()

    @property
    def numerics(self) -> str:
        return _sha(sorted(digest for _, digest in self.library))

    @property
    def page_code(self) -> str:
        return _sha(digest for _, digest in self.page)

    def attributes(self) -> dict[str, str]:
        """As a record keeps it."""
        held = {
            name: value for name, value in self._asdict().items() if value or name != "rewritten"
        }
        return {
            "numerics": self.numerics,
            "page_code": self.page_code,
            "definitions": json.dumps(held, separators=(",", ":")),
        }


# Folders whose modules a record can be of instead of a page.
MEASURED = ("bench/peers/ours",)


def sources(root: Path | None = None) -> Sources:
    """The texts as they are now, or as they are in another tree."""
    root = project_root() if root is None else Path(root)
    book, package = root / "book", root / "lib" / "iterlin"
    package = package if package.is_dir() else PACKAGE
    # Trees from before the library had rooms keep it elsewhere.
    places = (package / "study" / "registry.yml", root / "data" / "registry.yml")
    registry = next((path.read_text("utf8") for path in places if path.is_file()), "")

    def texts(folder, pattern):
        found = sorted(folder.rglob(pattern))
        return {path.relative_to(folder).as_posix(): path.read_text("utf8") for path in found}

    measured = {folder: list(texts(root / folder, "*.py").values()) for folder in MEASURED}
    pages, tiers = texts(book, "*.md"), texts(book, "*.*.yml")
    path = root / equivalents.PATH
    rewritten = path.read_text("utf8") if path.is_file() else ""
    return Sources(definitions.read(package), registry, pages, tiers, measured, rewritten)


def of_page(experiment: str, found: Sources, *, rewritten: bool = False) -> Origin | None:
    """The origin of the experiment's records; None if no page of that name saves one.

    rewritten: with what is reached only by definitions that stand for former ones. Raises
    ValueError or SyntaxError for sources that do not fit together.
    """
    path = page_of(experiment, found)
    if path is None or not page_code.saves(found.pages[path]):
        return None
    library = library_of(found)
    statements = page_code.made_by(found.pages[path], library)
    roots = [key for _, form in statements for key in library.mentioned(form)]
    keys = library.reached(roots, rewritten=rewritten)
    page = [(name, library.digest_of(form)) for name, form in statements]
    return Origin(_named(library, keys), page, _rewritten(library, keys))


def of_code(texts: Iterable[str], found: Sources, *, rewritten: bool = False) -> Origin:
    """The origin of numbers that such modules measure: what they reach, not what they do.

    Settings and errors as of `of_page`.
    """
    library = library_of(found)
    keys = reached(map(ast.parse, texts), library, rewritten=rewritten)
    return Origin(_named(library, keys), [], _rewritten(library, keys))


def reached(
    modules: Iterable[ast.Module], library: Library, *, rewritten: bool = False
) -> set[Key]:
    """The definitions that pieces of code reach, each with its own imports. Settings and errors as
    of `of_page`."""
    mentioned = []
    for tree in modules:
        writer = Writer(library, None, "", imports=imports_of(tree.body))
        writer.write(tree)
        mentioned += library.mentioned(writer.parts)
    return library.reached(mentioned, rewritten=rewritten)


def _named(library: Library, keys: Iterable[Key]) -> list[tuple[str, str]]:
    return sorted({(library.label(key), library.digest(key)) for key in keys})


def _rewritten(library: Library, keys: Iterable[Key]) -> tuple[tuple[str, str], ...]:
    found = {(library.label(key), library.written(key), library.digest(key)) for key in keys}
    return tuple(sorted((name, is_) for name, is_, stands_for in found if is_ != stands_for))


def library_of(found: Sources) -> Library:
    """The library that the texts are of. Raises ValueError for rows of `equivalents` that are none,
    SyntaxError for text that is no Python."""
    rows = tuple((row["is"], row["was"]) for row in equivalents.rows(found.equivalents))
    return _standing(tuple(sorted(found.library.items())), found.registry, rows)


@lru_cache(maxsize=4)
def _standing(
    texts: tuple[tuple[str, str], ...], registry: str, rewritten: tuple[tuple[str, str], ...]
) -> Library:
    return _library(texts, registry).where(dict(rewritten))


@lru_cache(maxsize=2)
def _library(texts: tuple[tuple[str, str], ...], registry: str) -> Library:
    # Of the files of data sets and of where things are kept only the outcome counts: files are
    # accepted by their hashes alone, and a folder's place is in no number.
    entries = yaml.safe_load(registry) or {}
    hashes = {
        name: [entry["examples"], *(file["sha256"] for file in entry["files"])]
        for name, entry in entries.items()
    }
    held_to = {"downloads": json.dumps(hashes, sort_keys=True), "provenance": ""}
    # Whose turn a run is, and whether a record has it already, does not change what it gives.
    silent = {"shares", "extension"}
    return Library(dict(texts), held_to, silent=silent)


def parameters(experiment: str, tier: str, found: Sources) -> dict | None:
    """What the experiment runs with at a tier now; None if there is no page.

    Its page's defaults, replaced by the tier's file. Raises ValueError for defaults that cannot be
    computed, or a file that is no mapping.
    """
    path = page_of(experiment, found)
    if path is None:
        return None
    values = page_code.defaults(found.pages[path]) | {"tier": tier}
    return plain(values | tier_values(path, tier, found.tiers))


def tier_values(page: str, tier: str, tiers: Mapping[str, str]) -> dict:
    """What a page's file of a tier says, over the file that it is ``like`` ("few_updates", a page
    beside it); {} without a file. Raises ValueError if it is no mapping of YAML."""
    name = f"{page.removesuffix('.md')}.{tier}.yml"
    try:
        values = plain_yaml.load(tiers.get(name, "")) or {}
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{name}: expected lines of the form 'name: value'")
    like = values.pop("like", None)
    if like is None:
        return values
    others = {other: text for other, text in tiers.items() if other != name}
    return tier_values(str(Path(page).with_name(f"{like}.md")), tier, others) | values


def plain(values: Mapping) -> dict:
    """Parameters as JSON gives them back: lists for tuples, text for names."""
    return json.loads(json.dumps(dict(values), sort_keys=True))


def page_of(experiment: str, found: Sources) -> str | None:
    """The path in book/ of the page of an experiment."""
    return next((path for path in found.pages if Path(path).stem == experiment), None)


def changes(attributes: Mapping, found: Sources) -> list[str]:
    """What has changed since a record was made, a line each; none, and the record is fresh.

    `attributes` are the record's: experiment, tier, parameters, those of its `Origin`, and
    `measured` if modules of that folder made it instead of a page.
    """
    experiment, before = attributes["experiment"], json.loads(attributes["definitions"])
    then = Origin(*([tuple(pair) for pair in before[part]] for part in ("library", "page")))
    folder = attributes.get("measured")

    def origin(rewritten):
        if folder:
            return of_code(found.measured[folder], found, rewritten=rewritten)
        return of_page(experiment, found, rewritten=rewritten)

    try:
        now = origin(False)
        values = None if folder else parameters(experiment, attributes["tier"], found)
        if found.equivalents and now is not None:
            then = _without(then, now, origin(True))
    except (ValueError, SyntaxError) as error:
        return [f"the page or the library cannot be read: {error}"]
    if now is None:
        return [f"no page saves a record of {experiment}"] if before["page"] else []
    # What stood for a former definition when the record was made must do so still.
    standing = {row["is"] for row in equivalents.rows(found.equivalents)}
    lines = [
        f"no longer stands for the former one: {name}"
        for name, is_ in before.get("rewritten", ())
        if is_ not in standing
    ]
    lines += _changed_definitions(then, now, library_of(found))
    lines += _changed_statements(then, now, bool(lines))
    if values is not None:
        lines += _changed_parameters(json.loads(attributes["parameters"]), values)
    return lines


def _without(then: Origin, now: Origin, rewritten: Origin) -> Origin:
    """An origin without what now only definitions that stand for former ones reach: their own
    digests hold it."""
    beyond = {digest for _, digest in rewritten.library} - {digest for _, digest in now.library}
    return then._replace(library=[pair for pair in then.library if pair[1] not in beyond])


def _changed_definitions(then: Origin, now: Origin, library: Library) -> list[str]:
    """Where changes begin: what reaches a changed definition has another digest, too. Names alone
    do not count."""
    old, new = ({digest for _, digest in origin.library} for origin in (then, now))
    if old == new:
        return []
    names = {name for name, _ in then.library}, {name for name, _ in now.library}
    lines = []
    for key in library.everything():
        label, digest = library.label(key), library.digest(key)
        inner = {library.digest(k) for k in library.references(key)} - {digest}
        if (label, digest) in now.library and digest not in old and inner <= old:
            word = "changed" if label in names[0] else "new"
            lines.append(f"{word}: {label}" + (f" ({key.module})" if key.module else ""))
    gone = [name for name, digest in then.library if digest not in new]
    lines += [f"no longer reached: {name}" for name in gone if name not in names[1]]
    # Where a change cannot be traced to its beginning: definitions that refer to each other, or one
    # of several statements that act on the same.
    changed = [name for name, digest in now.library if digest not in old]
    return sorted(set(lines or [f"changed: {name}" for name in gone + changed]))


def _changed_statements(then: Origin, now: Origin, library_changed: bool) -> list[str]:
    """Statements of the page that differ. Where definitions have changed, those that use them
    differ as well: then only those that came or went are told."""
    if then.page == now.page:
        return []
    if library_changed and [name for name, _ in then.page] == [name for name, _ in now.page]:
        return []
    old, new = (Counter(name for name, _ in origin.page) for origin in (then, now))
    lines = [f"gone from the page: {name}" for name in old - new]
    changed = set(now.page) - set(then.page)
    lines += [f"changed on the page: {name}" for name, _ in changed]
    return sorted(set(lines)) or ["changed on the page: the order of its statements"]


def _changed_parameters(before: dict, now: dict) -> list[str]:
    lines = []
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            lines.append(f"parameter {name}: {before[name]!r} then, gone now")
        elif name not in before:
            lines.append(f"parameter {name}: not recorded then, {now[name]!r} now")
        elif before[name] != now[name]:
            lines.append(f"parameter {name}: {before[name]!r} then, {now[name]!r} now")
    return lines


def _sha(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
