"""`make results`: order, time limit, partial records, failures, and progress while pages run."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import toy_book
import yaml
from iterlin_book import build, pages
from iterlin_book import states as page_states
from iterlin_book.pages import BookError
from toy_book import HEADER, edit, run, started

PARAMETERS = '```{code-cell} ipython3\n:tags: [parameters]\n\ntier = "quick"\nmissing = 0\n```\n'
SAVES = """\
import os
from pathlib import Path
import xarray as xr
from iterlin.study import records

Path("deadline").write_text(os.environ.get("ITERLIN_DEADLINE", "none"))
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
    process = toy_book.begin(book, "build", *GPU)
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
    process = toy_book.begin(book, "build", *GPU)
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
    assert done.returncode == page_states.PARTIAL
    line = "long: out of time before there was anything to record: at step 4; run the same command"
    assert done.stdout.splitlines() == ["long (gpu): started", f"{line} again"]
    assert done.stderr == ""


def test_pages_run_in_the_given_order_one_at_a_time(book):
    for name in ("late", "middle", "early"):
        add(book, name, FOLLOWS)
    prioritise(book, "early", "middle", "late")
    done = run(book, "build", *GPU)
    assert done.returncode == 0, done.stderr
    assert (book / "order").read_text().split() == ["+", "-"] * 3
    order = re.findall(r"^(\S+) \(gpu\): (\w+)", done.stdout, re.M)
    assert order == [
        (name, word) for name in ("early", "middle", "late") for word in ("started", "finished")
    ]


FOLLOWS = """\
with open("order", "a") as order:
    print("+", file=order, flush=True)
    print("-", file=order)"""


def test_no_page_starts_after_the_deadline(book):
    add(book, "first", UNTIL_THE_DEADLINE)
    add(book, "second", WAITS)
    done = run(book, "build", *GPU, "--budget", "0.3")
    assert done.returncode == page_states.PARTIAL
    assert started(done.stdout) == ["first"]
    assert states(done.stdout) == {"first": "done", "second": "not started"}
    (book / "seen").touch()
    done = run(book, "build", *GPU)
    assert states(done.stdout) == {"first": "done earlier", "second": "done"}


UNTIL_THE_DEADLINE = """\
import os, time

while time.time() < float(os.environ["ITERLIN_DEADLINE"]):
    time.sleep(0.1)"""


def test_the_others_run_when_one_is_killed(book):
    add(book, "killed", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)")
    add(book, "short", "1 + 1")
    prioritise(book, "killed", "short")
    done = run(book, "build", *GPU)
    assert done.returncode == 1
    assert states(done.stdout) == {"killed": "failed", "short": "done"}


def test_the_summary_gives_minutes():
    outcomes = {"a/long": ("done", 90.0), "b": (page_states.NOT_STARTED, None)}
    assert page_states.summary(outcomes, "gpu") == (
        "page    state         minutes (gpu tier)\n"
        "a/long  done              1.5\n"
        "b       not started"
    )


def test_stopping_ends_a_process_that_no_interrupt_reached(book, monkeypatch):
    add(book, "first", WAITS + '\nPath("ended").touch()')
    with toy_book.begin(book, "build", *GPU) as process:
        assert process.stderr.readline() == "first: step 1\n"
        process.send_signal(signal.SIGINT)  # it alone, unlike from a terminal
        process.communicate(timeout=60)
    assert process.returncode == 130
    (book / "seen").touch()
    time.sleep(2)
    assert not (book / "ended").exists()


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (["done", "done earlier"], 0),
        (["done", "not started"], 3),
        (["partial", "done"], 3),
        (["partial", "failed", "done"], 1),
    ],
)
def test_the_exit_status_is_that_of_the_worst(found, status):
    assert page_states.exit_status(found) == status


def test_a_page_is_what_its_shares_are_until_it_records(tmp_path):
    def note(name, status):
        page_states.Note(tmp_path, "gpu", name).write(status)

    def state():
        return page_states.of(tmp_path, "gpu", "a/page")[0]

    note("a/page2", 0)  # another page's
    assert state() == "not started"
    note("a/page.1-of-2", 0)
    assert state() == "partial"
    page_states.Note(tmp_path, "gpu", "a/page.2-of-2")  # on its way, or killed
    assert state() == "failed"
    note("a/page.2-of-2", 3)
    assert state() == "partial"
    note("a/page", 0)
    assert state() == "done"
    assert page_states.of(tmp_path, "gpu", "a/page")[1] > 0
    page_states.forget(tmp_path, "gpu", "a/page")
    assert page_states.of(tmp_path, "gpu", "a/page") == ("not started", None)
    assert page_states.of(tmp_path, "gpu", "a/page2")[0] == "done"


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
    assert done.returncode == page_states.FAILED
    assert "dies: its process ended: interrupted, killed (out of memory?) or crashed" in done.stderr
    assert "Traceback" not in done.stderr


FULL = """\
import errno
from pathlib import Path

def full(path, content):
    raise OSError(errno.ENOSPC, "No space left on device")

Path.write_bytes = full
"""


def test_a_full_disk_under_a_record_is_told_in_one_line(book):
    add(book, "grows", FULL + SAVES)
    done = run(book, "execute", "grows", "--tier", "gpu")
    assert done.returncode == page_states.FAILED
    path = book / "data" / "results" / "grows" / "gpu.nc"
    assert done.stderr == (
        f"grows: {path} could not be written: No space left on device; its runs are kept: "
        "run the same command again\n"
    )
    assert list(path.parent.iterdir()) == []


def test_a_notebook_is_reached_through_a_folder_that_goes_with_it(book):
    """No ports, which another process may take first."""
    add(book, "tells", TELLS)
    done = run(book, "execute", "tells", "--tier", "gpu")
    assert done.returncode == page_states.DONE, done.stderr
    transport, address = (book / "told").read_text().split()
    assert transport == "ipc"
    assert not Path(address).parent.exists()


TELLS = """\
from pathlib import Path
from ipykernel.kernelapp import IPKernelApp

kernel = IPKernelApp.instance()
Path("told").write_text(f"{kernel.transport} {kernel.ip}")"""
