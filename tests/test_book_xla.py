"""XLA gets only flags that the installed jaxlib is known to take."""

import os
import re

import pytest
import toy_book
from iterlin_book import xla

NAMES = {flag.partition("=")[0] for flag in (xla.NO_DEADLOCK, *xla.QUICKER)}


@pytest.mark.parametrize(
    ("version", "quick", "count"),
    [("0.10.1", True, 3), ("0.10.1", False, 1), ("0.11.0", True, 0)],
)
def test_flags_depend_on_the_version(monkeypatch, version, quick, count):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(xla.metadata, "version", lambda name: version)
    xla.set_flags(quick)
    assert len(os.environ["XLA_FLAGS"].split()) == count


def test_flags_of_the_caller_are_kept(monkeypatch):
    asked = "--xla_cpu_parallel_codegen_split_count=2"
    monkeypatch.setenv("XLA_FLAGS", asked)
    for _ in range(2):
        xla.set_flags(quick=True)
    flags = os.environ["XLA_FLAGS"].split()
    assert asked in flags
    assert sorted(flag.partition("=")[0] for flag in flags) == sorted(NAMES)


def test_pages_of_the_quick_tier_alone_compile_quickly(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    root = toy_book.create(tmp_path)
    toy_book.edit(root, "book/other.md", "negate(7)", 'import os\nprint(os.environ["XLA_FLAGS"])')
    (root / "book" / "other.gpu.yml").write_text("{}\n")
    counts = {}
    for tier, folder in (("quick", "executed"), ("gpu", "executed-gpu")):
        done = toy_book.run(root, "execute", "other", "--tier", tier)
        assert done.returncode == 0, done.stderr
        (path,) = (root / "_build" / folder).glob("other.*")
        counts[tier] = len(set(re.findall(r"--xla_cpu[a-z_]*=\w+", path.read_text())))
    assert counts == {"quick": 3, "gpu": 1}
