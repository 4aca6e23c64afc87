"""What is published: the wheel is the library and works with what it declares and nothing else;
pyproject.toml declares what the book imports."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution, packages_distributions

import iterlin
import pytest
import yaml
from iterlin_book import dist, pages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from toy_book import ROOT

LIB = ROOT / "lib"
SOURCES = {path.relative_to(LIB).as_posix() for path in (LIB / "iterlin").rglob("*.py")}
DATA = {"iterlin/py.typed"}
IS_BARE = """
import importlib, sys, warnings
from importlib.util import find_spec
folders, modules = sys.argv[1:3], sys.argv[3:]
sys.path[:0] = folders
import iterlin
assert iterlin.__file__.startswith(folders[0]), iterlin.__file__
others = ["iterlin_book", "pytest", "pip", "IPython", "flax", "matplotlib", "xarray", "yaml"]
assert not any(map(find_spec, others))
with warnings.catch_warnings():
    warnings.simplefilter("error")
    for module in modules:
        importlib.import_module(module)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive and the wheel of this checkout."""
    return dist.build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder that holds the installed wheel alone."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", folder, built[1]], check=True)
    return folder


def declared(package, extras, seen):
    """All distributions that one needs with some extras, found among the installed ones."""
    for line in package.requires or ():
        need = Requirement(line)
        if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras or {""}):
            found = distribution(need.name)
            if (key := (found.name, frozenset(need.extras))) not in seen:
                seen.add(key)
                yield found
                yield from declared(found, need.extras, seen)


def dependencies(installed, folder):
    """A folder that shows, by links, the dependencies that the wheel declares and no others."""
    (metadata,) = installed.glob("iterlin-*.dist-info")
    folder.mkdir()
    for package in declared(Distribution.at(metadata), set(), set()):
        for top in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
            if not (link := folder / top).exists():
                link.symlink_to(package.locate_file(top))
    return folder


def test_wheel_and_archive_hold_the_library_its_data_and_its_licence(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    about = {name for name in names if name.startswith(f"iterlin-{iterlin.__version__}.dist-info/")}
    assert names - about == SOURCES | DATA
    assert any(name.endswith("licenses/LICENSE") for name in about)
    with tarfile.open(built[0]) as opened:
        names = {path.split("/", 1)[1] for path in opened.getnames() if "/" in path}
    kinds = (".py", ".pyi", ".typed", ".yml")
    code = {name.removeprefix("lib/") for name in names if name.endswith(kinds)}
    assert code == SOURCES | DATA
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def test_there_is_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf8"))
    assert citation["version"] == iterlin.__version__
    assert f"version = {{{iterlin.__version__}}}" in (ROOT / "book/index.md").read_text("utf8")


def test_the_book_s_zip_holds_the_book_and_the_records(tmp_path):
    with pytest.raises(pages.BookError, match="make book"):
        dist.archive(tmp_path, tmp_path)
    places = {"html/index.html": "_build/html/index.html", "iterlin.pdf": "_build/iterlin.pdf"}
    places["records/xor/laptop.nc"] = "data/results/xor/laptop.nc"
    inside = ["CITATION.cff", "LICENSE", "README.md", *places]
    for name in (*inside, "_build/html/.digest", "pyproject.toml"):
        path = tmp_path / places.get(name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("version: 1.2.3\n")
    made = dist.archive(tmp_path, tmp_path / "dist")
    assert made.name == "iterlin-1.2.3-book.zip"
    with zipfile.ZipFile(made) as opened:
        assert opened.namelist() == [f"{made.stem}/{name}" for name in inside]


@pytest.mark.nightly
def test_the_library_and_the_readme_s_python_run_with_the_library_alone(installed, tmp_path):
    text = (ROOT / "README.md").read_text("utf8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    promised = 'assert history["evaluations"][-1] < 3000'  # "about a thousand products"
    names = [path.removesuffix(".py").removesuffix("/__init__") for path in SOURCES]
    modules = [name.replace("/", ".") for name in names]
    shown, empty = dependencies(installed, tmp_path / "dependencies"), tmp_path / "empty"
    empty.mkdir()
    code = "\n".join([IS_BARE, *blocks, promised])
    command = [sys.executable, "-I", "-S", "-c", code, installed, shown, *modules]
    done = subprocess.run(command, cwd=empty, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))
CORE, EXTRAS = (PROJECT["project"][name] for name in ("dependencies", "optional-dependencies"))
BOOK = [*CORE, *EXTRAS["study"], *EXTRAS["book"]]
OURS = {"iterlin", "iterlin_study", "iterlin_book", "bench", "book"}
DISTRIBUTIONS = packages_distributions()


def imported(path):
    """Return the distributions that a module or a page imports, inside functions too."""
    code = path.read_text("utf8")
    if path.suffix == ".md":
        page = path.relative_to(ROOT / "book").with_suffix("")
        code = "\n".join(cell.source for cell in pages.code_cells(pages.read(ROOT, page)))
        code = re.sub(r"^\s*[%!].*$", "", code, flags=re.M)
    nodes = list(ast.walk(ast.parse(code)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - OURS
    return {canonicalize_name(DISTRIBUTIONS.get(top, [top])[0]) for top in tops}


@pytest.mark.parametrize(
    ("pattern", "requirements"),
    [
        ("lib/iterlin_study/**/*.py", [*CORE, *EXTRAS["study"]]),
        ("lib/iterlin_book/*.py", [*BOOK, *PROJECT["dependency-groups"]["browser"]]),
        ("book/**/*.md", BOOK),
        ("book/**/*.py", BOOK),
    ],
)
def test_imports_are_declared(pattern, requirements):
    found = set().union(*map(imported, ROOT.glob(pattern)))
    assert found
    assert not found - {canonicalize_name(Requirement(need).name) for need in requirements}
