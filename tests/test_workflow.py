"""The hosted checks call what the Makefile has, with no more rights than they need."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from iterlin_book import repository

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text("utf8")
TARGETS = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))
(PATH,) = (ROOT / ".github" / "workflows").glob("*.yml")
WORKFLOW = yaml.safe_load(PATH.read_text("utf8"))
EVENTS = WORKFLOW[True]  # YAML takes the key `on` for a truth value
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def made(name):
    """The targets of make that a job calls, in order."""
    lines = "\n".join(step.get("run", "") for step in JOBS[name]["steps"])
    return re.findall(r"^make (\S+)", lines, re.MULTILINE)


def test_what_each_job_makes_is_there_to_be_made():
    assert {name: made(name) for name in JOBS} == {
        "library": ["lint", "library"],
        "book": ["test"],
        "publish": [],
        "nightly": ["nightly"],
        "links": ["links"],
    }
    assert {target for name in JOBS for target in made(name)} <= TARGETS
    variables = set(re.findall(r"^([A-Z]+) \?=", MAKEFILE, re.MULTILINE))
    lines = [step["run"] for _, step in STEPS if step.get("run", "").startswith("make ")]
    assert {name for line in lines for name in re.findall(r" ([A-Z]+)=", line)} <= variables


def test_links_to_other_sites_are_no_part_of_another_target():
    assert not re.search(r"^(?!links:)[a-z]+:.*\blinks\b.*##", MAKEFILE, re.MULTILINE)
    assert MAKEFILE.count("iterlin_book.links") == 1


def test_the_pythons_are_those_that_the_project_supports():
    pythons = JOBS["library"]["strategy"]["matrix"]["python"]
    (versions,) = re.findall(r"^VERSIONS \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert [f"python{python}" for python in pythons] == versions.split()
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    for python in pythons:
        assert f"Programming Language :: Python :: {python}" in classifiers["classifiers"]


def test_only_the_job_that_publishes_may_write():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job} == {
        "publish": {"contents": "write"}
    }
    assert JOBS["publish"]["if"] == (
        "github.event_name == 'push' && github.ref == 'refs/heads/main'"
    )
    assert set(JOBS["publish"]["needs"]) == {"library", "book"}
    # What runs the project's own code does not keep the token.
    checkouts = [step for _, step in STEPS if step.get("uses", "").startswith("actions/checkout")]
    assert len(checkouts) == len(JOBS) - 1
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert "pull_request_target" not in EVENTS


@pytest.mark.parametrize("name", JOBS)
def test_a_job_ends_and_its_actions_are_pinned(name):
    assert JOBS[name]["timeout-minutes"] <= 360
    for step in JOBS[name]["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+(\.\d+)*|[0-9a-f]{40})", step["uses"])


def test_what_is_installed_is_kept_by_the_locks():
    setups = [step for _, step in STEPS if step.get("uses", "").startswith("actions/setup-python")]
    assert len(setups) == len(JOBS) - 1
    for step in setups:
        assert step["with"]["cache"] == "pip"
        kept = {path.name for path in ROOT.glob(step["with"]["cache-dependency-path"])}
        assert {"requirements.lock", "requirements-dev.lock"} <= kept


def test_each_schedule_has_its_job():
    crons = {entry["cron"] for entry in EVENTS["schedule"]}
    named = {c for job in JOBS.values() for c in re.findall(r"schedule == '(.*?)'", job["if"])}
    assert crons == named
    assert "main" in EVENTS["push"]["branches"]


def test_what_is_published_is_where_the_buttons_lead():
    (push,) = [step["run"] for name, step in STEPS if name == "publish" and "run" in step]
    assert f"--initial-branch {repository.PUBLISHED}\n" in push
    assert push.strip().endswith(repository.PUBLISHED)
    assert "/blob/gh-pages/_sources/" in repository.Repository("a", "b", "main").colab("index")
    (upload,) = [step["with"] for _, step in STEPS if "upload" in step.get("uses", "")]
    assert upload["path"].split() == ["_build/html", "environment.yml"]
    assert (ROOT / "environment.yml").is_file()
