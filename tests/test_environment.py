"""requirements.lock, environment.yml and pyproject.toml name the same things."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from iterlin_book import environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text("utf8")
PINS = [Requirement(pin) for pin in environment.pins(LOCK)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))
WANTED = [
    Requirement(line)
    for line in [
        *PROJECT["project"]["dependencies"],
        *PROJECT["dependency-groups"]["dev"],
        *PROJECT["build-system"]["requires"],
    ]
]


def test_conda_users_get_the_locked_versions():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text("utf8"))
    (pip,) = [item["pip"] for item in conda["dependencies"] if isinstance(item, dict)]
    assert pip[-1] == "-e ."
    assert [str(Requirement(line)) for line in pip[:-1]] == [str(pin) for pin in PINS]


def test_the_lock_has_hashes_and_no_addresses():
    assert "://" not in LOCK
    for block in re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block


@pytest.mark.parametrize("wanted", WANTED, ids=lambda requirement: requirement.name)
def test_what_the_project_asks_for_is_locked_and_installed(wanted):
    name = canonicalize_name(wanted.name)
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == name]
    assert pins
    for pin in pins:
        assert all(wanted.specifier.contains(spec.version) for spec in pin.specifier)
    (here,) = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    assert here.specifier.contains(version(wanted.name))
