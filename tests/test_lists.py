"""Lists that are kept by hand say what there is: the README's map, the reference, public names;
and the pages' code is looked at by the project's style check, each finding told by its line."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import iterlin
import pytest
import xarray as xr
from iterlin.study import findings
from iterlin_book import lint

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib" / "iterlin"
REFERENCE = ROOT / "book" / "appendix" / "api.md"
# Texts that a reader follows word by word.
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "book").rglob("*.md"))]

README = GUIDES[0].read_text("utf8")
MAP = [
    row.split("|")[1:3] for row in re.findall(r"^\| `.*\|$", README.split("## The map")[1], re.M)
]
PLACES = [place for where, _ in MAP for place in re.findall(r"`([^`]+)`", where)]

# Modules, but for the rooms themselves: what these hold is listed module by module.
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
)


def documented():
    """(module, names listed as its members; None for all of its own, () for none) in order."""
    blocks = re.findall(
        r"^\.\. automodule:: (\S+)\n((?: +:.*\n)*)", REFERENCE.read_text("utf8"), re.M
    )
    for module, options in blocks:
        found = re.search(r":members:(.*)", options)
        names = () if found is None else tuple(re.findall(r"\w+", found[1])) or None
        yield module, names


def is_documented(module, name):
    names = dict(documented()).get(module, ())
    if names is None:
        found = getattr(importlib.import_module(module), name, None)
        return not name.startswith("_") and getattr(found, "__module__", None) == module
    return name in names


def folders():
    """Of the project: the top ones that git tracks, and the library's rooms."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    top = {path.partition("/")[0] for path in tracked if "/" in path and path[0] != "."}
    rooms = {path.parent.relative_to(ROOT).as_posix() for path in PACKAGE.glob("*/*.py")}
    return top | rooms


def test_the_map_names_every_folder():
    named = {"/".join(place.split("/")[:depth]) for place in PLACES for depth in (1, 2, 3)}
    assert folders() <= {place.rstrip("/") for place in named}
    assert len(MAP) <= 10


@pytest.mark.parametrize("place", PLACES)
def test_what_the_map_names_is_there(place):
    assert list(ROOT.glob(place.rstrip("/"))), place


def test_the_map_names_the_modules_of_the_core():
    (row,) = [what for where, what in MAP if "lib/iterlin/*.py" in where]
    core = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", row)) == core


def test_every_module_is_in_the_reference_once():
    assert sorted(module for module, _ in documented()) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_lists_members_that_exist(module):
    found = importlib.import_module(module)
    assert inspect.getdoc(found)
    missing = [name for name in dict(documented())[module] or () if not hasattr(found, name)]
    assert not missing


@pytest.mark.parametrize("name", iterlin.__all__)
def test_a_public_name_has_a_docstring_and_a_place_in_the_reference(name):
    value = getattr(iterlin, name)
    assert inspect.getdoc(value)
    assert is_documented(value.__module__, name)
    first_part = REFERENCE.read_text("utf8").split("## What a user calls")[1].split("\n### ")[0]
    assert f"`~{value.__module__}.{name}`" in first_part


def test_public_names_are_those_that_editors_are_told_of():
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text("utf8"))
    told = {
        alias.name: f"{node.module}.{alias.name}" for node in tree.body for alias in names_of(node)
    }
    exports = {name: f"iterlin.{module}.{name}" for name, module in iterlin._EXPORTS.items()}
    assert told.pop("losses") == "iterlin.losses"  # a module, which pages and readers name
    assert exports == told
    (names,) = (node.value for node in tree.body if isinstance(node, ast.Assign))
    assert iterlin.__all__ == ast.literal_eval(names) == sorted(told)


def test_no_public_name_is_that_of_a_module_which_importing_it_would_put_in_its_place():
    assert not set(iterlin.__all__) & {path.stem for path in PACKAGE.iterdir()}


def test_names_are_loaded_on_first_use_and_looking_for_them_loads_nothing():
    code = """if True:
        import sys, iterlin
        assert set(iterlin.__all__) <= set(dir(iterlin)) and not hasattr(iterlin, "nothing")
        assert not hasattr(iterlin, "losses.mean") and not hasattr(iterlin, "")
        assert "jax" not in sys.modules
        assert iterlin.study and "jax" not in sys.modules
        from iterlin import train
        assert train is iterlin.train and iterlin.losses.mean and "jax" in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_runs_pages_and_judges_their_freshness_needs_no_jax_and_no_xarray():
    names = ["build", "execute", "freshness", "merge", "pages", "render", "share", "states"]
    code = f"import sys, {', '.join(f'iterlin_book.{name}' for name in names)}"
    code += "\nassert not {'jax', 'xarray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def names_of(node):
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else []


def test_references_of_the_pages_are_to_what_is_documented():
    for path in GUIDES:
        for kind, target in re.findall(r"\{py:(\w+)\}`~?([\w.]+)`", path.read_text("utf8")):
            module, _, name = target.rpartition(".")
            known = target in MODULES if kind == "mod" else is_documented(module, name)
            assert known, f"{path.name}: {target}"


def test_dotted_names_in_prose_and_commands_exist():
    for path in GUIDES:
        for dotted in re.findall(r"\biterlin(?:_book)?(?:\.[A-Za-z_]\w*)+", path.read_text("utf8")):
            assert exists(dotted), f"{path.name}: {dotted}"


def exists(dotted):
    """Whether a dotted name is of a module of the project, or of something in one."""
    first, *rest = dotted.split(".")
    found = importlib.import_module(first)
    for done, name in enumerate(rest, 1):
        try:
            found = importlib.import_module(".".join([first, *rest[:done]]))
        except ModuleNotFoundError:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
    return True


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_targets_of_make_exist(path):
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf8"), re.M))
    named = re.findall(r"(?:`|^ *)make ([a-z][\w-]*)", path.read_text("utf8"), re.M)
    assert set(named) <= targets


def test_the_example_of_the_reference_runs(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", REFERENCE.read_text("utf8"), re.M | re.S)
    exec(compile(code, REFERENCE.name, "exec"), {})
    accuracy, updates = capsys.readouterr().out.split()
    assert float(accuracy) > 0.5
    assert int(updates) == 9


PAGE = """# A page

```{code-cell} python
:tags: [hide-input]
%matplotlib inline
import os
x = [1,2]
```

```{code-cell} python
---
mystnb:
  figure:
    caption: "{code-cell}"
---
print(x, y)
```
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "page.md").write_text(PAGE)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


def test_the_style_check_names_page_and_line(root, capsys):
    assert lint.main(["--root", str(root)]) == 1
    told = [line.split(": ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [(where, what.split()[0]) for where, what in told] == [
        ("book/page.md:6:1", "I001"),
        ("book/page.md:6:8", "F401"),
        ("book/page.md:16:10", "F821"),
        ("book/page.md:5", "this"),
    ]


def test_the_style_is_mended_in_place_and_magics_stay(root, capsys):
    assert lint.main(["--root", str(root), "--fix"]) == 1
    assert capsys.readouterr().out.startswith("book/page.md:15:10: F821")
    wanted = PAGE.replace("import os\n", "").replace("[1,2]", "[1, 2]")
    found = (root / "book" / "page.md").read_text()
    assert found.replace("inline\n\n", "inline\n") == wanted


def test_the_readme_tells_what_the_records_say():
    """Its findings are those of the landing page, with other links."""
    listed = README.split("## What was found")[1].split("\n## ")[0]
    assert re.findall(r"^- (.*)$", listed, re.M) == list(findings.told("[{title}](book/{page}.md)"))


def test_a_finding_without_a_record_or_of_an_older_one_is_not_told(monkeypatch):
    monkeypatch.setattr(findings.records, "best", lambda experiment: None)
    assert list(findings.told()) == []
    monkeypatch.setattr(findings.records, "best", lambda experiment: xr.Dataset())
    monkeypatch.setattr(findings.records, "is_stale", lambda record: True)
    assert list(findings.told()) == []
    monkeypatch.setattr(findings.records, "is_stale", lambda record: False)
    with pytest.raises((KeyError, AttributeError)):
        list(findings.told())


@pytest.mark.parametrize("finding", findings.FINDINGS, ids=lambda finding: finding.title)
def test_a_finding_is_of_a_page_that_is_there(finding):
    assert (ROOT / "book" / f"{finding.page}.md").is_file()
    assert finding.page.endswith(f"/{finding.experiment}")
