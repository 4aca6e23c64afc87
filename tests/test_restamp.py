"""A record of the earlier format is restamped if it is proven unchanged, and else left as it is."""

import json

import pytest
import toy_sources
import xarray as xr
from iterlin.study import origins, records
from iterlin_book import restamp
from toy_sources import LIBRARY, PAGE, PAGES, SOURCES, edited

# The tree that the record is of: a flat library, which judges its records itself.
OWN = (
    "def load(experiment, tier, path):\n    return path\n\n\ndef is_stale(record):\n    return {}\n"
)
OLD_PAGE = PAGE.replace('page = Page("trial", globals())\n', "").replace(
    'page.save(live, data="made up")',
    'records.save(live, "trial", tier, parameters={"num_seeds": num_seeds})',
)
FLAT = {
    **{path: text for path, text in LIBRARY.items() if not path.startswith("study/")},
    "plotting.py": LIBRARY["study/plotting.py"],
    "page.py": LIBRARY["study/page.py"],
    "records.py": OWN.format(False),
}
THEN = SOURCES._replace(
    library=FLAT,
    pages=PAGES | {"experiments/trial.md": OLD_PAGE.replace("iterlin.study", "iterlin")},
)
# The tree of today: the same in rooms, under other names.
ROOMS = {path: text for path, text in LIBRARY.items() if path not in ("steps.py", "__init__.py")}
NOW = SOURCES._replace(
    library={
        **ROOMS,
        "__init__.py": "",
        "deep/__init__.py": "",
        "deep/descent.py": LIBRARY["steps.py"].replace("square", "power_of"),
    },
    pages=PAGES | {"experiments/trial.md": PAGE.replace("iterlin.steps", "iterlin.deep.descent")},
)
HELD = {"num_seeds": 3}


class Project:
    """A checkout whose first commit made a record; the tree of today replaces it."""

    def __init__(self, root):
        self.root = root
        self.path = root / "data" / "results" / "trial" / "laptop.nc"

    def start(self, then=THEN, dataset=None, held=HELD, **attributes):
        toy_sources.write(self.root, then)
        (self.root / ".gitignore").write_text("data/\n")
        made = toy_sources.commit(self.root, "Made")
        attributes = {
            "format": "iterlin record 1",
            "experiment": "trial",
            "tier": "laptop",
            "parameters": json.dumps(held),
            "modules": '["steps"]',
            "numerics": "0" * 64,
            "page_code": "1" * 64,
            "commit": made,
            "versions": '{"jax": "0.4"}',
            "device": "1 CPU core",
            "data": "made up",
            "missing": 0,
            "wall_time": 125.0,
            "date": "2020-01-01",
            "note": "kept",
        } | attributes
        dataset = toy_sources.results() if dataset is None else dataset
        records.write(dataset.assign_attrs(attributes), self.path)
        return made

    def move(self, now=NOW, commit=True):
        for path in (*(self.root / "lib").rglob("*.py"), *(self.root / "book").rglob("*.*")):
            path.unlink()
        toy_sources.write(self.root, now)
        return toy_sources.commit(self.root, "Moved") if commit else None

    def restamp(self, capsys):
        assert restamp.main(["--root", str(self.root)]) == 0
        *lines, total = capsys.readouterr().out.splitlines()
        return "\n".join(lines).removeprefix("trial (laptop): "), total

    def read(self):
        with xr.open_dataset(self.path, engine="h5netcdf") as opened:
            return opened.load()


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_a_moved_library_and_completed_parameters(project, capsys):
    made = project.start()
    head = project.move()
    before = project.read()
    assert project.restamp(capsys) == ("restamped", "1 restamped")

    after = project.read()
    xr.testing.assert_identical(after.drop_attrs(), before.drop_attrs())
    assert after.attrs["format"] == records.FORMAT
    assert after.attrs["restamped"] == f"{head}: moved, not changed"
    expected = {"tier": "laptop", "num_seeds": 3, "periods": [5, 20]}
    assert json.loads(after.attrs["parameters"]) == expected
    kept = before.attrs.keys() - {"format", "modules", "numerics", "page_code", "parameters"}
    assert {name: after.attrs[name] for name in kept} == {n: before.attrs[n] for n in kept}
    assert (after.attrs["commit"], "modules" in after.attrs) == (made, False)
    assert not origins.changes(after.attrs, NOW)
    records.load("trial", "laptop", project.path)

    written = project.path.stat().st_mtime_ns, project.path.read_bytes()
    assert project.restamp(capsys) == ("fresh", "1 fresh")
    assert (project.path.stat().st_mtime_ns, project.path.read_bytes()) == written
    project.move(edited(("deep/descent.py", "RATE = 0.5", "RATE = 0.25"), found=NOW))
    assert project.restamp(capsys) == ("stale: changed: RATE (deep.descent)", "1 stale")


def left(project, capsys):
    """Why the record was left as it is, which it was, to the byte."""
    before = project.path.read_bytes()
    said, total = project.restamp(capsys)
    assert project.path.read_bytes() == before
    assert total == "1 left as it is"
    return said.removeprefix("left as it is: ")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("RATE = 0.5", "RATE = 0.25", "changed: RATE (deep.descent)"),
        ("power=2", "power=3", "changed: power_of (deep.descent)"),
        ("@jax.custom_jvp", "@jax.jit", "changed: power_of (deep.descent)"),
        ("return 2 *", "return 3 *", "changed: effect on power_of (deep.descent)"),
        ("x - RATE", "x + RATE", "changed: step (deep.descent)"),
    ],
)
def test_a_changed_definition_is_named(project, capsys, old, new, reason):
    project.start()
    project.move(edited(("deep/descent.py", old, new), found=NOW))
    # Of definitions that were renamed as well, the old names are not reached any more.
    first, *others = left(project, capsys).split("; ")
    assert first in (reason, reason.replace("changed", "new"))
    assert all(line.startswith("no longer reached: ") for line in others)


def test_a_changed_statement_and_a_changed_file_are_named(project, capsys):
    project.start()
    project.move(edited(("experiments/trial.md", "START = 2.0", "START = 3.0"), found=NOW))
    assert left(project, capsys) == "changed on the page: START"
    project.move(edited(("experiments/trial.laptop.yml", "[5, 20]", "[5, 30]"), found=NOW))
    assert left(project, capsys) == "parameter periods: [5, 20] then, [5, 30] now"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"held": {"num_seeds": 4}}, "it ran with num_seeds = 4, its files say 3"),
        ({"held": {"width": 4}}, "it ran with width = 4, its files say None"),
        (
            {"dataset": toy_sources.results(periods=(5.0, 30.0))},
            "its axis period is [5.0, 30.0], its files say [5, 20]",
        ),
        ({"dataset": toy_sources.results(num_seeds=2)}, "it has 2 seeds, not 3"),
        ({"tier": "gpu"}, "it ran with num_seeds = 3, its files say 2"),
        ({"commit": "0" * 40}, f"there is no commit {'0' * 40} here"),
        ({"commit": "unknown"}, "it was made in a tree that is no commit: unknown"),
        (
            {"commit": f"{'a' * 40}+changes"},
            f"it was made in a tree that is no commit: {'a' * 40}+changes",
        ),
    ],
)
def test_what_disagrees_with_the_files_or_is_of_no_commit_is_left(project, capsys, changes, reason):
    project.start(**changes)
    project.move()
    assert left(project, capsys) == reason


def test_the_axes_may_be_in_another_order(project, capsys):
    project.start(dataset=toy_sources.results(periods=(20.0, 5.0)))
    project.move()
    assert project.restamp(capsys)[0] == "restamped"


def test_the_tree_of_the_commit_has_the_first_word(project, capsys):
    library = FLAT | {"records.py": OWN.format(True)}
    made = project.start(THEN._replace(library=library))
    project.move()
    assert left(project, capsys) == f"it is stale in the tree of its own commit {made[:7]}"


def test_a_library_that_cannot_read_it_is_told(project, capsys):
    library = FLAT | {"records.py": "raise OSError('no disk')\n"}
    made = project.start(THEN._replace(library=library))
    project.move()
    said = left(project, capsys)
    assert said == f"the library of {made[:7]} cannot read it: OSError: no disk"


def test_changes_that_are_not_committed_are_refused(project, capsys):
    project.start()
    project.move(commit=False)
    assert left(project, capsys) == "lib/ or book/ have changes that are not committed"
    toy_sources.commit(project.root)
    assert project.restamp(capsys)[0] == "restamped"


def test_a_file_that_is_no_record_is_left(project, capsys):
    project.start()
    project.path.write_bytes(b"half a record")
    assert left(project, capsys).startswith("it cannot be read: ")


def test_what_measures_the_library_has_an_origin_without_a_page(project, capsys):
    """Its page, if it has one, saves no record: the modules that measured are its origin."""
    case = "from iterlin.steps import step\n\n\ndef case():\n    return step(2.0)\n"

    def measure(text):
        path = project.root / "bench" / "peers" / "ours" / "steps.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    measure(case)
    no_save = THEN._replace(pages=THEN.pages | {"experiments/trial.md": "# Speed\n"})
    project.start(no_save, held={"repeats": 5})
    measure(case.replace("iterlin.steps", "iterlin.deep.descent"))
    project.move(NOW._replace(pages=no_save.pages))
    assert project.restamp(capsys)[0] == "restamped"
    record = project.read()
    assert record.attrs["measured"] == "bench/peers/ours"
    assert json.loads(record.attrs["parameters"]) == {"repeats": 5}
    assert not origins.changes(record.attrs, origins.sources(project.root))
