"""What a page's outputs depend on, as one digest: equal digests, equal outputs.

Prose is no part of it. Code cells are, with the library as a whole, the tier's parameters, the
records and claims that the page shows, and the pinned versions.
"""

import ast
import hashlib
import json
import os
import sys
from functools import lru_cache
from pathlib import Path

from iterlin.study import claims

from iterlin_book import pages

# Raise it when executed notebooks of older versions must not be used any more.
FORMAT = 4
# A page that names one of these shows all records, or all claims.
RESULTS, CLAIMS = "data/results", "claims"
PRECISION = "JAX_DEFAULT_MATMUL_PRECISION"


def digest(root, page, tier, notebook, values):
    """Twelve hexadecimal digits that change when the outputs of the page may change."""
    root = Path(root)
    cells = pages.code_cells(notebook)
    words = {page.rpartition("/")[2], *_words(cells)}
    beside = imported_files(root, cells)
    # A page run at another tier than quick makes a record: its own would make it outdated.
    shown = shown_records(root, page, words) if tier == pages.QUICK else []
    files = [root / "requirements.lock", *library_files(root), *beside, *shown]
    if tier == pages.QUICK and (CLAIMS in words or shown):
        files.append(root / "book" / "claims.yml")
    content = {
        "format": FORMAT,
        "python": list(sys.version_info[:2]),
        "cells": [(cell.source, sorted(pages.tags(cell))) for cell in cells],
        "tier": tier,
        "parameters": values,
        "precision": os.environ.get(PRECISION),  # what products are computed in, where it matters
        "files": {str(path.relative_to(root)): _hash(path) for path in sorted(files)},
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def library_files(root):
    """Every file of the library and the study."""
    return [
        path for path in (root / "lib" / "iterlin").rglob("*") if path.suffix in (".py", ".yml")
    ]


def imported_files(root, cells):
    """Modules of the project beside the library that cells import, such as bench/report.py."""
    found = set()
    for node in _nodes(cells):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(root.joinpath(*node.module.split(".")).with_suffix(".py"))
    return sorted(path for path in found if path.is_file())


def shown_records(root, page, words):
    """The files of the records that a page shows: its own, those it names and those that its claims
    judge; all where it names their folder, or the claims."""
    if {RESULTS, CLAIMS} & words:
        return recorded(root)
    names = words | {row.get("experiment") for row in rows(root) if row.get("page") == page}
    return [path for path in recorded(root) if path.parent.name in names]


def rows(root):
    """The rows of the ledger. Raises BookError where it is damaged."""
    path = Path(root) / "book" / "claims.yml"
    if not path.is_file():
        return []
    try:
        return _rows(path, path.stat().st_mtime_ns)
    except ValueError as error:
        raise pages.BookError(pages.one_line(error)) from None


@lru_cache(maxsize=2)  # every page asks for it
def _rows(path, changed):
    return claims.load_claims(path)


def recorded(root):
    """The files of all records, and of the quick runs kept beside them; what a killed run left half
    written has a hidden name."""
    return sorted((Path(root) / RESULTS).glob("*/[!.]*.nc"))


def check_records(root):
    """Refuse a record that cannot be read: pages that show it would fail, maybe after hours."""
    from iterlin.study import comparison, records

    for path in recorded(root):
        try:
            if path.stem == pages.QUICK:
                comparison.read(path)
            else:
                records.load(path.parent.name, path.stem, path)
        except ValueError as error:
            problem = pages.one_line(error)
            raise pages.BookError(f"{problem} (restore or remove the file)") from None


def _words(cells):
    """String constants of the cells (an experiment is loaded by its name) and imported names."""
    for node in _nodes(cells):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.name for alias in node.names)


def _nodes(cells):
    """The syntax of the cells that are Python, without IPython's % and ! lines."""
    for cell in cells:
        lines = cell.source.split("\n")
        text = "\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in lines)
        try:
            yield from ast.walk(ast.parse(text))
        except SyntaxError:
            continue


def _hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
