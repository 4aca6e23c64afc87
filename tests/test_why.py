"""`python -m iterlin_book.why` names what has changed since a record was made."""

import pytest
import toy_sources
import yaml
from iterlin.study import origins, provenance, records
from iterlin_book import why
from toy_sources import SOURCES, edited


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.chdir(toy_sources.write(tmp_path))
    for experiment in ("trial", "other"):
        records.save(
            toy_sources.results(),
            experiment,
            "laptop",
            parameters=origins.parameters(experiment, "laptop", SOURCES),
            origin=origins.of_page(experiment, SOURCES),
            wall_time=1.0,
        )
    return tmp_path


def said(capsys, *arguments):
    status = why.main(arguments)
    return status, *capsys.readouterr()


def test_a_fresh_record(root, capsys):
    assert said(capsys) == (0, "other (laptop): fresh\ntrial (laptop): fresh\n", "")
    assert said(capsys, "trial") == (0, "trial (laptop): fresh\n", "")


def test_the_definition_and_the_parameter_are_named(root, capsys):
    toy_sources.write(
        root,
        edited(
            ("steps.py", "power=2", "power=3"),
            ("experiments/trial.laptop.yml", "[5, 20]", "[5, 30]"),
            ("experiments/trial.md", "START = 2.0", "START = 3.0"),
        ),
    )
    status, out, err = said(capsys, "trial")
    assert (status, err) == (0, "")
    assert out == (
        "trial (laptop): stale\n"
        "    changed: square (steps)\n"
        "    parameter periods: [5, 20] then, [5, 30] now\n"
    )
    assert "    parameter periods: " in said(capsys, "other")[1]


def test_the_statement_is_named(root, capsys):
    toy_sources.write(root, edited(("experiments/trial.md", "START = 2.0", "START = 3.0")))
    assert said(capsys, "trial")[1].endswith("stale\n    changed on the page: START\n")


def test_from_outside_by_the_projects_folder(root, capsys, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    toy_sources.write(root, edited(("errors.py", "LIMIT = 3", "LIMIT = 4")))
    out = said(capsys, "--root", str(root))[1]
    assert out == "other (laptop): stale\n    changed: LIMIT (errors)\ntrial (laptop): fresh\n"


def test_an_unknown_experiment_is_one_clear_line(root, capsys):
    line = "no record of gone, nowhere (records: other, trial)\n"
    assert said(capsys, "nowhere", "trial", "gone") == (2, "", line)


def test_a_damaged_record_is_one_clear_line(root, capsys):
    path = records.path_of("trial", "laptop")
    path.write_bytes(path.read_bytes()[:100])
    status, out, err = said(capsys, "trial")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "laptop.nc is damaged or not a record" in err


def test_records_of_an_earlier_library_are_those_listed_for_renewal():
    """A change of the numerics says which records it leaves behind; their renewal strikes them."""
    root = provenance.project_root()
    listed = yaml.safe_load((root / "data" / "results" / "renewal.yml").read_text("utf8"))
    stale = {path.parent.name for path, lines in why.reasons(root, []) if lines}
    assert stale == set(listed or [])
