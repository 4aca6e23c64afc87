"""What a page's outputs depend on, as one digest: equal digests, equal outputs.

Prose is no part of it. Code cells are, with everything they reach: the numerics of the library
modules they use (comments and docstrings left out), the tier's parameters, the recorded runs and
claims shown on the page and whether those runs are still of this library, and the pinned versions.
"""

import ast
import hashlib
import json
import os
import sys
from functools import cache
from pathlib import Path

import iterlin
import yaml
from iterlin import provenance

from iterlin_book import pages

# Raise it when executed notebooks of older versions must not be used any more.
FORMAT = 1
PRECISION = "JAX_DEFAULT_MATMUL_PRECISION"
LIBRARY = "iterlin"


def digest(root, page, tier, notebook, values):
    """Twelve hexadecimal digits that change when the outputs of the page may change."""
    root = Path(root)
    cells = pages.code_cells(notebook)
    modules = library_modules([cell.source for cell in cells])
    closure = provenance.dependencies(modules)
    records = shown_records(root, page, tier, cells, closure)
    files = [root / "requirements.lock", *records]
    if "claims" in closure:
        files.append(root / "book" / "claims.yml")
    content = {
        "format": FORMAT,
        "python": list(sys.version_info[:2]),
        "cells": [(cell.source, sorted(pages.tags(cell))) for cell in cells],
        "tier": tier,
        "parameters": values,
        "library": provenance.source_hash(modules),
        "files": {str(path.relative_to(root)): _file_hash(path) for path in sorted(files)},
        "stale": [_is_stale(path) for path in records],
    }
    if PRECISION in os.environ:  # what products are computed in, where it matters
        content["precision"] = os.environ[PRECISION]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shown_records(root, page, tier, cells, closure):
    """Recorded runs that a page shows: its own, those it names, beside claims those they judge.

    A page run at another tier than quick makes a record instead; did its digest include records,
    each run would make itself outdated.
    """
    if tier != pages.QUICK:
        return []
    names = {page.rpartition("/")[2], *_strings(cells)}
    if "claims" in closure:
        rows = yaml.safe_load((Path(root) / "book" / "claims.yml").read_text("utf8"))
        names |= {row.get("experiment") for row in rows}
    return [path for path in recorded(root) if path.parent.name in names]


def recorded(root):
    """The files of all recorded runs; what a killed run left half written has a hidden name."""
    return sorted((Path(root) / "data" / "results").glob("*/[!.]*.nc"))


def check_records(root):
    """Refuse a record that cannot be read: pages that show it would fail, maybe after hours."""
    for path in recorded(root):
        from iterlin import records  # needs xarray: only where there is a record

        try:
            records.load(path.parent.name, path.stem, path)
        except ValueError as error:
            problem = pages.one_line(error)
            raise pages.BookError(f"{problem} (restore or remove the file)") from None


def _is_stale(path):
    """What the page says of a record besides its content; None for what is no record."""
    library = Path(iterlin.__file__).parent.glob("*.py")
    sources = [*library, *(provenance.project_root() / "book").rglob("*.md"), path]
    states = [(file, file.stat()) for file in sorted(sources)]
    return _is_stale_at(path, tuple((file, s.st_mtime_ns, s.st_size) for file, s in states))


@cache
def _is_stale_at(path, state):
    """Once for a state of the record, the library and the pages: it parses half the library."""
    from iterlin import records  # needs xarray: only where there is a record

    try:
        return records.is_stale(records.load(path.parent.name, path.stem, path))
    except ValueError:
        return None


def _strings(cells):
    """String constants of the code cells: an experiment is loaded by its name."""
    for cell in cells:
        for node in ast.walk(_parse(cell.source) or ast.Module([], [])):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def library_modules(sources):
    """Modules of the library that pieces of code mention; all of them where it cannot be told."""
    uses = _Uses()
    for source in sources:
        tree = _parse(source)
        if tree is None:
            return all_modules()
        uses.visit(tree)
    return uses.modules()


def all_modules():
    folder = Path(iterlin.__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _parse(source):
    """Syntax tree of a cell, IPython's % and ! lines left out; None where it is not Python."""
    if source.lstrip().startswith("%%"):
        source = source.partition("\n")[2]
    lines = ["" if line.lstrip()[:1] in ("%", "!") else line for line in source.split("\n")]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return None


def _file_hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


class _Uses(ast.NodeVisitor):
    """Collects the names that are reached in the library through its import statements."""

    def __init__(self):
        self.aliases = set()  # names under which the package itself is bound
        self.mentioned = set()  # attributes of the package, or modules below it
        self.everything = False

    def modules(self):
        known = set(all_modules())
        found = set()
        for name in self.mentioned:
            module = iterlin._EXPORTS.get(name, name)
            if module in known:
                found.add(module)
            elif not name.startswith("__"):
                self.everything = True
        return sorted(known) if self.everything else sorted(found)

    def visit_Import(self, node):
        for item in node.names:
            package, _, rest = item.name.partition(".")
            if package != LIBRARY:
                continue
            if rest:
                self.mentioned.add(rest.partition(".")[0])
            if not rest or item.asname is None:
                self.aliases.add(item.asname or package)

    def visit_ImportFrom(self, node):
        package, _, rest = (node.module or "").partition(".")
        if package != LIBRARY:
            return
        names = [rest.partition(".")[0]] if rest else [item.name for item in node.names]
        self.everything |= "*" in names
        self.mentioned.update(names)

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id in self.aliases:
            self.mentioned.add(node.attr)
        else:
            self.generic_visit(node)

    def visit_Name(self, node):
        # The package as a value (getattr, vars, dir): no telling what is taken from it.
        self.everything |= node.id in self.aliases
