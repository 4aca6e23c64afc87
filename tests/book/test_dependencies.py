"""pyproject.toml declares what the book imports; `test_wheel.py` sees to the library."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import jupytext
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))
PROJECT, GROUPS = DECLARED["project"], DECLARED["dependency-groups"]
EXTRAS = PROJECT["optional-dependencies"]
CORE = PROJECT["dependencies"]
BOOK = [*CORE, *EXTRAS["study"], *EXTRAS["book"]]
OURS = {"iterlin", "iterlin_study", "iterlin_book", "bench", "book"}

DISTRIBUTIONS = packages_distributions()


def names(requirements):
    return {canonicalize_name(Requirement(r).name) for r in requirements if isinstance(r, str)}


def imported(path):
    """Return the distributions that a file imports, inside functions too."""
    code = path.read_text("utf8")
    if path.suffix == ".md":
        cells = jupytext.reads(code, "md:myst").cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        code = re.sub(r"^\s*[%!].*$", "", code, flags=re.M)
    nodes = list(ast.walk(ast.parse(code)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - OURS
    return {canonicalize_name(DISTRIBUTIONS.get(top, [top])[0]) for top in tops}


@pytest.mark.parametrize(
    ("folder", "pattern", "declared"),
    [
        ("lib/iterlin_study", "**/*.py", [*CORE, *EXTRAS["study"]]),
        ("lib/iterlin_book", "*.py", [*BOOK, *GROUPS["browser"]]),
        ("book", "**/*.md", BOOK),
        ("book", "**/*.py", BOOK),
    ],
)
def test_imports_are_declared(folder, pattern, declared):
    found = set().union(*map(imported, (ROOT / folder).glob(pattern)))
    assert found
    assert not found - names(declared)
