"""`make results`: order, time limit, partial records, failures, shares, and progress."""

import os
import re
import time
from unittest import mock

import pytest
import shared_page
import toy_book
import xarray as xr
import yaml
from iterlin_book import build, execute, pages, states
from toy_book import edit, run, started

PARAMETERS = '```{code-cell} ipython3\n:tags: [parameters]\n\ntier = "quick"\nmissing = 0\n```\n'
SAVES = """\
import os
from pathlib import Path
import xarray as xr
from iterlin_study.records import records

Path(f"deadline-{tier}").write_text(os.environ.get("ITERLIN_DEADLINE", "none"))
Path(f"platform-{tier}").write_text(os.environ.get("JAX_PLATFORMS", "any"))
values = {"tier": tier, "missing": missing}
runs = xr.Dataset({"loss": ("seed", [1.0])})
records.save(runs, "grows", tier, parameters=values, wall_time=1, missing=missing)"""
WAITS = """\
import sys, time
from pathlib import Path

print("step 1", file=sys.stderr)
deadline = time.monotonic() + 60
while not Path("seen").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
print("the end", file=sys.stderr, end="")"""
GPU = ["results", "--tier", "gpu"]


def add(root, name, code, parameters=""):
    """A page with the tier gpu at the end of the contents."""
    cell = f"```{{code-cell}} ipython3\n{code}\n```\n"
    (root / "book" / f"{name}.md").write_text(f"# {name}\n\n{PARAMETERS}\n{cell}")
    (root / "book" / f"{name}.gpu.yml").write_text(f"tier: gpu\n{parameters}")
    with (root / "_toc.yml").open("a") as contents:
        contents.write(f"  - file: {name}\n")


@pytest.fixture
def book(tmp_path):
    return toy_book.create(tmp_path / "book")


def prioritise(root, *names):
    (root / "book" / "priority.yml").write_text(yaml.safe_dump(list(names)))


def outcomes(output):
    """Page -> state, of the summary at the end."""
    lines = output.partition("minutes (gpu tier)\n")[2].splitlines()
    return dict(re.match(r"(\S+) +(\w+( \w+)*)", line).groups()[:2] for line in lines)


ENDS = {
    "killed": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "crashes": "import os\nos._exit(1)",
    "long": "class OutOfTime(Exception):\n    pass\n\nraise OutOfTime('at step 4')",
}


def test_the_others_run_when_one_ends_and_the_same_command_goes_on(book, monkeypatch, capfd):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    add(book, "grows", SAVES, "missing: 7\n")
    add(book, "shows", WAITS)
    for name, code in ENDS.items():
        add(book, name, code)
    prioritise(book, "shows", "xor", "grows")
    process = toy_book.begin(book, "build", *GPU)
    # The line is here while the page that printed it waits for an answer.
    assert process.stderr.readline() == "shows: step 1\n"
    (book / "seen").touch()
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    order = ["shows", "grows", *ENDS]
    assert re.findall(r"^(\S+) \(gpu\): started$", output, re.M) == order
    assert "shows: the end\n" in errors
    line = "grows (gpu): partial: 7 runs missing; run the same command again to go on\n"
    assert line in output
    why = "its process ended: interrupted, killed (out of memory?) or crashed"
    assert f"crashes: {why}\n" in errors
    assert "long: out of time before there was anything to record: at step 4" in output
    found = dict(zip(order, ["done", "partial", *2 * ["failed"], "partial"], strict=True))
    assert outcomes(output) == found
    assert (book / "deadline-gpu").read_text() == "none"

    # Within a time, which its process is told; here the missing runs are made all the same.
    for name in ENDS:
        edit(book, "_toc.yml", f"  - file: {name}\n", "")
    edit(book, "book/grows.md", "1, missing=missing)", "1, missing=0)")
    begun = time.time()
    with mock.patch.dict(os.environ, toy_book.environment(book)):
        assert build.main([*GPU, "--budget", "10", "--root", str(book)]) == 0
    output = capfd.readouterr().out
    assert started(output) == ["grows"]
    assert outcomes(output) == {"shows": "done earlier", "grows": "done"}
    assert begun + 599 < float((book / "deadline-gpu").read_text()) < time.time() + 600
    # The quick run to be kept beside the record must be whole, and made on the CPU.
    assert (book / "deadline-quick").read_text() == "none"
    assert (book / "platform-gpu").read_text() == "any"
    assert (book / "platform-quick").read_text() == "cpu"


def test_no_page_starts_after_the_deadline(book, monkeypatch, capsys):
    monkeypatch.setenv("ITERLIN_DEADLINE", "0")
    add(book, "page", "1 + 1")
    assert execute.main(["page", "--tier", "gpu", "--root", str(book)]) == states.PARTIAL
    assert started(capsys.readouterr().out) == []
    assert states.of(book, "gpu", "page") == ("not started", None)


def test_a_page_is_what_its_shares_are_until_it_records(tmp_path):
    def state(name=None, status=states.DONE):
        if name:
            states.write(tmp_path, "gpu", name, status, seconds=45.0)
        return states.of(tmp_path, "gpu", "a/page")

    assert state("a/page2") == ("not started", None)  # another page's
    assert state("a/page.1-of-2") == ("partial", 45.0)
    assert state("a/page.2-of-2", states.FAILED) == ("failed", 90.0)
    assert state("a/page.2-of-2", states.PARTIAL) == ("partial", 90.0)
    assert state("a/page") == ("done", 135.0)


def test_pages_without_priority_come_last_in_the_order_of_the_contents(book):
    assert pages.by_priority(toy_book.ROOT, []) == []  # the project's order names its pages
    names = ["index", "experiments/xor", "other", "last"]
    assert pages.by_priority(book, names) == names
    prioritise(book, "last", "xor")
    assert pages.by_priority(book, names) == ["last", "experiments/xor", "index", "other"]
    prioritise(book, "nowhere")
    with pytest.raises(pages.BookError, match="unknown page 'nowhere'"):
        pages.by_priority(book, names)


@pytest.mark.nightly
def test_shares_make_the_record_of_one_process(tmp_path):
    alone = shared_page.create(tmp_path / "alone", num_steps=20)
    done = run(alone, "build", *GPU)
    assert done.returncode == 0, done.stdout + done.stderr

    root = shared_page.create(tmp_path / "book", num_steps=20)
    first = run(root, "execute", "grid", "--share", "1/3", "--tier", "gpu")
    assert first.returncode == 0, first.stderr
    assert "grid (gpu 1-of-3): all runs of share 1/3 are kept\n" in first.stdout
    assert set(shared_page.kept(root)) < set(shared_page.kept(alone))
    assert not (root / "data").exists()

    # The build trains the other shares; the page itself has nothing left to train.
    done = run(root, "build", *GPU, "--shares", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert started(done.stdout) == ["grid"]
    shares = re.findall(r"^grid \(gpu (\d)-of-3\): started$", done.stdout, re.M)
    assert sorted(shares) == ["2", "3"]
    assert outcomes(done.stdout) == {"grid": "done"}
    assert shared_page.kept(root) == shared_page.kept(alone)
    xr.testing.assert_identical(shared_page.record(root), shared_page.record(alone))

    # At the quick tier a page keeps no runs.
    assert execute.main(["grid", "--share", "1/3", "--root", str(root)]) == 2
