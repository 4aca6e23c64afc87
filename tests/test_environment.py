"""pyproject.toml, the locks and environment.yml tell what the code needs, all the same."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml
from iterlin_book.lint import cells
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {
    name: (ROOT / f"{name}.lock").read_text("utf8")
    for name in ("requirements", "requirements-dev", "requirements-gpu")
}


def pinned(lock):
    lines = re.findall(r"^[A-Za-z0-9][^\s\\]*==[^\\\n]*", lock, re.MULTILINE)
    return [Requirement(line.strip()) for line in lines]


PINS, DEV_PINS, GPU_PINS = map(pinned, LOCKS.values())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))
PROJECT = PYPROJECT["project"]
EXTRAS, GROUPS = PROJECT["optional-dependencies"], PYPROJECT["dependency-groups"]
OURS = {"iterlin", "iterlin_book", "bench", *(path.stem for path in (ROOT / "tests").iterdir())}


def requirements(lines):
    return [Requirement(line) for line in lines if isinstance(line, str)]


CORE = requirements(PROJECT["dependencies"])
STUDY = [*CORE, *requirements(EXTRAS["study"])]
BOOK = [*STUDY, *requirements(EXTRAS["book"])]
BROWSER = requirements(GROUPS["browser"])
DEV = [*BOOK, *BROWSER, *requirements([*GROUPS["test"], *GROUPS["dev"]])]
READERS = [need for need in BOOK if need.name != PROJECT["name"]]
READERS += requirements(PYPROJECT["build-system"]["requires"])
WANTED = [*((PINS, need) for need in READERS), *((DEV_PINS, need) for need in DEV[len(BOOK) :])]
LIBRARY = ROOT / "lib" / "iterlin"
# What needs an extra of its own: the adapters once a module of the framework comes.
WITH_EXTRAS = {
    "networks/adapters.py": ("equinox", "flax"),
    "networks/convnets.py": ("flax",),
    "networks/modules.py": ("flax",),
}
CORE_FILES = [
    path
    for path in LIBRARY.rglob("*.py")
    if "study" not in path.relative_to(ROOT).parts
    and path.relative_to(LIBRARY).as_posix() not in WITH_EXTRAS
]


def imports(code):
    """The names at the top of what a piece of code imports, inside functions too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def needed(paths):
    """The distributions that files import, our own and Python's left out."""
    codes = [
        code
        for path in paths
        for code in (
            [path.read_text("utf8")]
            if path.suffix == ".py"
            else [code for _, code in cells(path.read_text("utf8"))]
        )
    ]
    names = {name for code in codes for name in imports(code)} - sys.stdlib_module_names - OURS
    installed = packages_distributions()
    return {canonicalize_name(installed.get(name, [name])[0]) for name in names}


def names(declared):
    return {canonicalize_name(need.name) for need in declared}


def test_the_library_declares_what_it_imports_and_no_more():
    assert needed(CORE_FILES) == names(CORE)


@pytest.mark.parametrize("path", WITH_EXTRAS)
def test_modules_with_extras_declare_them(path):
    asked = {name for extra in WITH_EXTRAS[path] for name in names(requirements(EXTRAS[extra]))}
    assert needed([LIBRARY / path]) <= names(CORE) | asked


@pytest.mark.parametrize(
    ("folder", "pattern", "declared"),
    [
        ("lib/iterlin/study", "**/*.py", STUDY),
        ("lib/iterlin_book", "*.py", [*BOOK, *BROWSER]),
        ("book", "**/*.md", BOOK),
        ("tests", "*.py", DEV),
        ("bench", "*.py", DEV),
    ],
    ids=["study", "machinery", "pages", "tests", "bench"],
)
def test_what_is_imported_is_declared(folder, pattern, declared):
    paths = list((ROOT / folder).glob(pattern))
    assert paths
    assert needed(paths) <= names(declared)


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_lock_has_hashes_and_no_addresses(lock):
    assert "://" not in lock
    for block in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block


@pytest.mark.parametrize(("locked", "wanted"), WANTED, ids=[need.name for _, need in WANTED])
def test_what_the_project_asks_for_is_locked_and_installed(locked, wanted):
    name = canonicalize_name(wanted.name)
    pins = [pin for pin in locked if canonicalize_name(pin.name) == name]
    assert pins
    for pin in pins:
        assert all(wanted.specifier.contains(spec.version) for spec in pin.specifier)
    (here,) = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    assert here.specifier.contains(version(wanted.name))


def test_what_a_reader_installs_is_no_tool_of_the_tests():
    """And what both locks name is of one version, on every platform that either means."""
    readers, checks = (
        {canonicalize_name(p.name): p.specifier for p in pins} for pins in (PINS, DEV_PINS)
    )
    assert not readers.keys() & {*names(BROWSER), "pytest", "ruff"}
    both = readers.keys() & checks.keys()
    assert {name: readers[name] for name in both} == {name: checks[name] for name in both}


LINUX = [{"python_full_version": f"3.{minor}.1", "sys_platform": "linux"} for minor in (11, 13)]


@pytest.mark.parametrize("machine", LINUX, ids=lambda machine: machine["python_full_version"])
def test_what_the_gpu_extra_asks_for_is_locked_in_the_versions_of_the_other_lock(machine):
    """The plugins of JAX are of the very version of JAX; what both locks name is the same."""

    def versions(pins):
        here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(machine)]
        return {canonicalize_name(pin.name): str(pin.specifier) for pin in here}

    (wanted,) = requirements(EXTRAS["gpu"])
    locked, others = versions(GPU_PINS), versions(PINS)
    assert wanted.extras == {"cuda13"}
    assert wanted.specifier.contains(locked["jax"].removeprefix("=="))
    for name in ("jax-cuda13-pjrt", "jax-cuda13-plugin", "jaxlib"):
        assert locked[name] == locked["jax"]
    assert {"nvidia-cublas", "nvidia-cudnn-cu13"} <= locked.keys()
    assert names(CORE) <= locked.keys()
    both = locked.keys() & others.keys()
    assert {name: locked[name] for name in both} == {name: others[name] for name in both}
    assert all(name.startswith(("jax-cuda13-", "nvidia-")) for name in locked.keys() - both)


def test_conda_users_get_a_python_that_the_project_takes_and_make():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text("utf8"))
    python, *rest = conda["dependencies"]
    assert python.startswith("python=")
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))
    assert rest == ["pip", "make"]
