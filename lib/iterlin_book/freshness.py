"""What a page's outputs depend on, as one digest: equal digests, equal outputs.

Prose is no part of it. Code cells are, with the definitions of the library that they reach
(`iterlin.study.definitions`), the tier's parameters, the recorded runs and claims shown on the page
and whether those runs are still of this library, and the pinned versions.
"""

import ast
import hashlib
import json
import os
import sys
from functools import cache, lru_cache
from pathlib import Path

from iterlin.study import equivalents, origins, plain_yaml, provenance, record_file, syntax

from iterlin_book import pages

# Raise it when executed notebooks of older versions must not be used any more.
FORMAT = 3
# A page that names this folder shows all recorded runs.
RESULTS = "data/results"
PRECISION = "JAX_DEFAULT_MATMUL_PRECISION"


def digest(root, page, tier, notebook, values):
    """Twelve hexadecimal digits that change when the outputs of the page may change."""
    root = Path(root)
    cells = pages.code_cells(notebook)
    sources = [cell.source for cell in cells]
    beside = imported_files(root, sources)
    library, judges = reached(root, sources + [path.read_text("utf8") for path in beside])
    records = shown_records(root, page, tier, cells, judges)
    files = [root / "requirements.lock", *beside, *records, *named_lists(root, cells)]
    content = {
        "format": FORMAT,
        "python": list(sys.version_info[:2]),
        "cells": [(cell.source, sorted(pages.tags(cell))) for cell in cells],
        "tier": tier,
        "parameters": values,
        "library": library,
        "files": {str(path.relative_to(root)): _file_hash(path) for path in sorted(files)},
        "stale": [_is_stale(path) for path in records],
        "claims": shown_claims(root, page, cells) if judges else [],
    }
    if PRECISION in os.environ:  # what products are computed in, where it matters
        content["precision"] = os.environ[PRECISION]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def reached(root, sources):
    """What pieces of code, which share their imports, reach in the library: the digests of these
    definitions as they are, and whether the ledger is among them. Everything where it cannot be
    told."""
    found = origins.sources(root)._replace(equivalents="")
    library = origins.library_of(found)
    try:
        body = [statement for source in sources for statement in syntax.parse(source).body]
        keys = origins.reached([ast.Module(body, [])], library)
    except (SyntaxError, ValueError):
        return sorted(found.library.values()), True
    judges = any(key.module.rpartition(".")[2] == "claims" for key in keys)
    return sorted(library.digest(key) for key in keys), judges


def imported_files(root, sources):
    """Modules of the project beside the library that cells import, such as bench/report.py."""
    found = set()
    for source in sources:
        try:
            tree = syntax.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(root.joinpath(*node.module.split(".")).with_suffix(".py"))
    return sorted(path for path in found if path.is_file())


def shown_records(root, page, tier, cells, judges):
    """Recorded runs that a page shows: its own, those it names, beside claims those they judge;
    all where it names their folder.

    A page run at another tier than quick makes a record instead; did its digest include records,
    each run would make itself outdated.
    """
    if tier != pages.QUICK:
        return []
    names = {page.rpartition("/")[2], *_strings(cells)}
    if RESULTS in names:
        return recorded(root)
    if judges:
        names |= {row.get("experiment") for row in shown_claims(root, page, cells)}
    return [path for path in recorded(root) if path.parent.name in names]


def named_lists(root, cells):
    """Lists beside the recorded runs that cells name by their path: renewal.yml."""
    names = {*_strings(cells)}
    return [
        path for path in sorted((root / RESULTS).glob("*.yml")) if f"{RESULTS}/{path.name}" in names
    ]


def shown_claims(root, page, cells):
    """Rows of the ledger that a page with claims shows: its own where it names itself to ask for
    them (`openings.show`), else all."""
    path = Path(root) / "book" / "claims.yml"
    try:
        rows = _ledger(path.read_text("utf8"))
    except (OSError, ValueError) as error:
        raise pages.BookError(f"{path}: {pages.one_line(error)}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise pages.BookError(f"{path} must be a list of claims")
    own = page in _strings(cells)
    return [row for row in rows if not own or row.get("page") == page]


@lru_cache(maxsize=2)  # every page asks for it
def _ledger(text):
    return plain_yaml.load(text)


def recorded(root):
    """The files of all recorded runs; what a killed run left half written has a hidden name."""
    return sorted((Path(root) / RESULTS).glob("*/[!.]*.nc"))


def check_records(root):
    """Refuse a record that cannot be read: pages that show it would fail, maybe after hours."""
    for path in recorded(root):
        from iterlin.study import records

        try:
            records.load(path.parent.name, path.stem, path)
        except ValueError as error:
            problem = pages.one_line(error)
            raise pages.BookError(f"{problem} (restore or remove the file)") from None


def _is_stale(path):
    """What the page says of a record besides its content; None for what is no record."""
    book = provenance.project_root() / "book"
    files = [*provenance.PACKAGE.rglob("*.py"), *book.rglob("*.md"), *book.rglob("*.yml"), path]
    files += book.parent.glob(equivalents.PATH)
    states = [(file, file.stat()) for file in sorted(files)]
    return _is_stale_at(path, tuple((file, s.st_mtime_ns, s.st_size) for file, s in states))


@cache
def _is_stale_at(path, state):
    """Once for a state of the record, the library and the pages, which it reads."""
    try:
        return bool(origins.changes(record_file.texts(path), origins.sources()))
    except (OSError, LookupError, TypeError, ValueError):
        return None


def _strings(cells):
    """String constants of the code cells: an experiment is loaded by its name."""
    for cell in cells:
        try:
            tree = syntax.parse(cell.source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _file_hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
