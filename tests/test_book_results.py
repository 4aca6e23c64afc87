"""`make results`: order, time limit, partial records, failures, and progress while pages run."""

import os
import re
import signal
import subprocess
import time

import pytest
import toy_book
import yaml
from iterlin_book import build, execute, pages, results
from iterlin_book.pages import BookError
from toy_book import HEADER, edit, run, started

PARAMETERS = '```{code-cell} ipython3\n:tags: [parameters]\n\ntier = "quick"\nmissing = 0\n```\n'
SAVES = """\
import os
from pathlib import Path
import xarray as xr
from iterlin.study import origins, records

Path("deadline").write_text(os.environ.get("ITERLIN_DEADLINE", "none"))
origin = origins.of_page("grows", origins.sources())
values = {"tier": tier, "missing": missing}
runs = xr.Dataset({"loss": ("seed", [1.0])})
records.save(runs, "grows", tier, parameters=values, origin=origin, wall_time=1, missing=missing)"""
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
    (root / "book" / f"{name}.md").write_text(f"{HEADER}\n# {name}\n\n{PARAMETERS}\n{cell}")
    (root / "book" / f"{name}.gpu.yml").write_text(f"tier: gpu\n{parameters}")
    with (root / "_toc.yml").open("a") as contents:
        contents.write(f"  - file: {name}\n")


@pytest.fixture
def book(tmp_path):
    return toy_book.create(tmp_path / "book")


def prioritise(root, *names):
    (root / "book" / "priority.yml").write_text(yaml.safe_dump(list(names)))


def states(output):
    """Page -> state, of the summary at the end."""
    lines = output.partition("minutes (gpu tier)\n")[2].splitlines()
    return dict(re.match(r"(\S+) +(\w+( \w+)*)", line).groups()[:2] for line in lines)


def test_the_same_command_goes_on_until_all_is_done(book):
    add(book, "breaks", "1 / 0")
    add(book, "grows", SAVES, "missing: 7\n")
    add(book, "shows", WAITS)
    prioritise(book, "shows", "xor", "grows")
    process = subprocess.Popen(
        toy_book.command("build", *GPU),
        cwd=book,
        env=toy_book.environment(book),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The line is here while the page that printed it waits for an answer.
    assert process.stderr.readline() == "shows: step 1\n"
    (book / "seen").touch()
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.findall(r"^(\S+) \(gpu\): started$", output, re.M) == ["shows", "grows", "breaks"]
    assert "shows: the end\n" in errors
    assert "breaks: cell 3 (from line 22 of book/breaks.md) failed: ZeroDivisionError" in errors
    line = "grows (gpu): partial: 7 runs missing; run the same command again to go on\n"
    assert line in output
    assert states(output) == {"shows": "done", "grows": "partial", "breaks": "failed"}
    assert (book / "deadline").read_text() == "none"
    assert not list((book / "_build" / "executed-gpu").glob("grows.*"))

    # Within a time, which its process is told; here the missing runs are made all the same.
    edit(book, "book/breaks.md", "1 / 0", "1 / 1")
    edit(book, "book/grows.md", "1, missing=missing)", "1, missing=0)")
    begun = time.time()
    done = run(book, "build", *GPU, "--budget", "10")
    assert done.returncode == 0, done.stderr
    assert started(done.stdout) == ["breaks", "grows"]
    assert states(done.stdout) == {"shows": "done earlier", "grows": "done", "breaks": "done"}
    assert begun + 599 < float((book / "deadline").read_text()) < time.time() + 600

    done = run(book, "build", *GPU)
    assert (done.returncode, started(done.stdout)) == (0, [])
    assert set(states(done.stdout).values()) == {"done earlier"}


def test_an_interrupt_stops_the_page_and_starts_no_other(book):
    add(book, "first", WAITS + '\nPath("ended").touch()')
    add(book, "second", WAITS)
    process = subprocess.Popen(
        toy_book.command("build", *GPU),
        cwd=book,
        env=toy_book.environment(book),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr.readline() == "first: step 1\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert started(output) == ["first"]
    assert "interrupted: run the same command again to go on\n" in errors
    assert "Traceback" not in errors
    (book / "seen").touch()
    assert not (book / "ended").exists()
    assert states(run(book, "build", *GPU).stdout) == {"first": "done", "second": "done"}


def test_a_page_that_has_nothing_to_record_yet_is_partial(book):
    add(book, "long", "class OutOfTime(Exception):\n    pass\n\nraise OutOfTime('at step 4')")
    done = run(book, "execute", "long", "--tier", "gpu")
    assert done.returncode == execute.PARTIAL
    line = "long: out of time before there was anything to record: at step 4; run the same command"
    assert done.stdout.splitlines() == ["long (gpu): started", f"{line} again"]
    assert done.stderr == ""


# The loop alone: pages that take a known time on a clock of the test's own.


class Clock:
    def __init__(self):
        self.now = 1000.0

    def time(self):
        return self.now

    monotonic = time

    def sleep(self, seconds):
        self.now += seconds


class Process:
    def __init__(self, clock, seconds, status):
        self.clock, self.end, self.status = clock, clock.now + seconds, status

    def poll(self):
        return self.status if self.clock.now >= self.end else None


@pytest.fixture
def simulate(monkeypatch, capsys):
    """Run the loop over {page: (seconds, exit status)}; return status, states and start times."""

    def run(work, jobs=1, deadline=None, done=()):
        clock, starts = Clock(), {}

        def start(root, page, tier, told):
            assert told == deadline
            starts[page] = round(clock.now)
            return Process(clock, *work[page])

        monkeypatch.setattr(results, "time", clock)
        monkeypatch.setattr(results, "_start", start)
        monkeypatch.setattr(results, "_is_done", lambda root, page, tier: page in done)
        status = results.run(".", "gpu", list(work), jobs, deadline)
        return status, states(capsys.readouterr().out), starts

    return run


def test_pages_run_in_the_given_order(simulate):
    status, found, starts = simulate({"a": (100, 0), "b": (10, 0), "c": (10, 0)})
    assert (status, set(found.values())) == (0, {"done"})
    assert starts == {"a": 1000, "b": 1100, "c": 1110}
    assert simulate({"a": (100, 0), "b": (10, 0), "c": (10, 0)}, jobs=2)[2] == {
        "a": 1000,
        "b": 1000,
        "c": 1010,
    }


def test_no_page_starts_after_the_deadline(simulate):
    work = {"a": (50, 0), "b": (51, 3), "c": (1, 0), "d": (1, 0)}
    status, found, starts = simulate(work, deadline=1100, done=["d"])
    assert status == 3
    assert found == {"a": "done", "b": "partial", "c": "not started", "d": "done earlier"}
    assert list(starts) == ["a", "b"]


@pytest.mark.parametrize("status", [1, 2, -9])
def test_the_others_run_when_one_fails(simulate, status):
    found = simulate({"a": (5, status), "b": (5, 3), "c": (5, 0)})
    assert found[:2] == (1, {"a": "failed", "b": "partial", "c": "done"})


def test_the_summary_gives_minutes():
    outcomes = {"a/long": ("done", 90.0), "b": (results.NOT_STARTED, None)}
    assert results._summary(outcomes, "gpu") == (
        "page    state         minutes (gpu tier)\n"
        "a/long  done              1.5\n"
        "b       not started"
    )


def test_stopping_ends_a_process_that_no_interrupt_reached(monkeypatch):
    monkeypatch.setattr(results, "_PATIENCE", 0.2)
    with subprocess.Popen(["sleep", "60"]) as process:
        results._stop([process])
        assert process.returncode == -signal.SIGKILL


# What is refused.


@pytest.mark.parametrize("budget", ["0", "-5", "nan", "inf", "ten", "1h", ""])
def test_a_budget_is_a_positive_number(book, capsys, budget):
    assert build.main([*GPU, "--root", str(book), f"--budget={budget}"]) == 2
    line = f"the budget must be a positive number of minutes, not '{budget}'\n"
    assert capsys.readouterr() == ("", line)
    assert not (book / "_build").exists()


def test_the_book_has_no_budget(book, capsys):
    assert build.main(["book", "--root", str(book), "--budget=5"]) == 2
    assert capsys.readouterr().err == "the book is built at the quick tier, without a budget\n"


def test_pages_without_priority_come_last_in_the_order_of_the_contents(book):
    names = ["index", "experiments/xor", "other", "last"]
    assert pages.by_priority(book, names) == names
    prioritise(book, "last", "xor")
    assert pages.by_priority(book, names) == ["last", "experiments/xor", "index", "other"]
    assert pages.by_priority(book, ["other", "last"]) == ["last", "other"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- xor\n- nowhere\n", "priority.yml: unknown page 'nowhere' "),
        ("- xor\n- experiments/xor\n", "priority.yml: repeated pages experiments/xor"),
        ("xor: 1\n", "priority.yml: expected a list of pages"),
        ("- [xor\n", "priority.yml: not valid YAML: "),
    ],
)
def test_a_wrong_order_is_refused(book, text, message):
    (book / "book" / "priority.yml").write_text(text)
    with pytest.raises(BookError, match=re.escape(message)):
        pages.by_priority(book, [])


def test_the_projects_own_order_is_right():
    names = pages.toc(toy_book.ROOT)
    ordered = pages.by_priority(toy_book.ROOT, names)
    assert ordered[:2] == ["experiments/converged", "experiments/few_updates"]
    assert sorted(ordered) == sorted(names)


def test_a_kernel_that_dies_fails_its_page_in_one_line(book):
    add(book, "dies", "import os\nos._exit(1)")
    done = run(book, "execute", "dies", "--tier", "gpu")
    assert done.returncode == execute.FAILED
    assert "dies: its process ended: interrupted, killed (out of memory?) or crashed" in done.stderr
    assert "Traceback" not in done.stderr
