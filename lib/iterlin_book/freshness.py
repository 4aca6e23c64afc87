"""Digest everything that a page's outputs depend on: equal digests, equal outputs.

These are its code cells, the parameters of its tier, all files of the library, the records and
claims that it shows, and the pinned versions. Prose is not among them.
"""

import hashlib
import json
import os
import re
import sys

from iterlin_book import pages, parameters

PRECISION = "JAX_DEFAULT_MATMUL_PRECISION"  # a variable that changes the numbers on a GPU
IMPORT = re.compile(r"^\s*from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
NAME = re.compile(r"\w+")


def digest(root, page, tier, notebook, values):
    """Return twelve hexadecimal digits that change when the outputs of the page may change."""
    cells = pages.code_cells(notebook)
    code = "\n".join(cell.source for cell in cells)
    files = [root / "requirements.lock", *library_files(root), *imported_files(root, code)]
    if tier == pages.QUICK:  # a run at another tier makes a record, which must not outdate it
        files += shown_files(root, page, code)
    content = {
        "python": list(sys.version_info[:2]),
        "cells": [(cell.source, sorted(pages.tags(cell))) for cell in cells],
        "tier": tier,
        "parameters": values,
        "precision": os.environ.get(PRECISION),
        "files": {str(path.relative_to(root)): _hash(path) for path in sorted(files)},
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def library_files(root):
    """Return every file of the library and the study."""
    folders = (root / "lib" / name for name in ("iterlin", "iterlin_study"))
    found = (path for folder in folders for path in folder.rglob("*"))
    return [path for path in found if path.suffix in (".py", ".yml")]


def imported_files(root, code):
    """Return the modules outside the library that cells import, and those that these import.

    They are imported as ``from bench import report`` or ``from bench.report import Report``.
    """
    found, waiting = set(), [code]
    while waiting:
        imports = IMPORT.findall(waiting.pop())
        names = {module for module, _ in imports}
        names |= {f"{module}.{name}" for module, listed in imports for name in NAME.findall(listed)}
        paths = {root.joinpath(*name.split(".")).with_suffix(".py") for name in names}
        new = {path for path in paths if path.is_file()} - found
        found |= new
        waiting += [path.read_text("utf8") for path in new]
    return sorted(found)


def shown_files(root, page, code):
    """The records that a page shows, with the ledger of claims if there are any: the page's own
    record, those that its code names in quotes, such as "xor" or "experiments/xor", and all if it
    uses `claims` or lists the folder. With the named ones, the files of their tiers: captions say
    which parameters have changed since.
    """
    quoted = set(re.findall(r"""["']([\w/]+)["']""", code))
    shows_all = "data/results" in quoted or re.search(r"\bclaims\.", code)
    names = {name.rpartition("/")[2] for name in (page, *quoted)}
    shown = [path for path in records(root) if shows_all or path.parent.name in names]
    if not shown and not shows_all:
        return []
    like = {parameters.like(root, page, tier) or page for tier in pages.TIERS}
    names |= {name.rpartition("/")[2] for name in like}
    tiers = (path for path in (root / "book").rglob("*.yml") if path.name.split(".")[0] in names)
    return [*shown, *tiers, root / "book" / "claims.yml"]


def records(root):
    """The files of all records and of the quick runs kept beside them. A record that is being
    written has a hidden name."""
    return sorted((root / "data" / "results").glob("*/[!.]*.nc"))


def _hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
