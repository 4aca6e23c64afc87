"""The pipeline end to end on a toy book: what runs again after which change, failures, kills."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import nbformat
import pytest
import toy_book
import xarray as xr
from bs4 import BeautifulSoup
from IPython.core.inputtransformer2 import TransformerManager
from iterlin.study import records
from iterlin_book import pages
from iterlin_book.build import main as build_main
from toy_book import build, edit, executed, html

XOR, OTHER = "experiments/xor", "other"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A book built once, in a folder of any name; `book` hands out copies."""
    root = toy_book.create(tmp_path_factory.mktemp("toy") / "zum Üben, 100 % of $HOME's {book}")
    assert build(root) == [XOR, OTHER]
    return root


@pytest.fixture
def book(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "book")


def test_a_line_is_said_in_one_write(monkeypatch):
    """Else lines of pages that run side by side come apart, where Python buffers nothing."""
    written = []
    stream = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr("sys.stdout", stream)
    pages.say("experiments/xor (quick): started")
    assert written == ["experiments/xor (quick): started\n"]


def test_pages_show_outputs_mathematics_and_citations(finished):
    page = html(finished, XOR)
    assert "result 12 quick 0.5 [1, 10]" in page
    assert "Figure computed in the section “A picture”" in page
    assert "Some One" in html(finished, "last")
    assert toy_book.run(finished, "offline").returncode == 0


def test_a_page_tells_what_each_page_took(finished):
    took = {}
    for page in (XOR, OTHER):
        (path,) = executed(finished, page)
        about = nbformat.read(path, as_version=4).metadata
        took[page] = about["iterlin_book"]["seconds"], about["papermill"]["end_time"][:10]
    rows = BeautifulSoup(html(finished, "last"), "html.parser").select("tbody tr")
    (everything, *rows) = [[cell.get_text() for cell in row.select("td")] for row in rows]
    assert rows == [[page, f"{seconds:.1f}", day] for page, (seconds, day) in took.items()]
    assert everything[0].startswith("all 2 pages")
    assert int(everything[1]) == round(sum(seconds for seconds, _ in took.values()))


PAGES = ("index", XOR, OTHER, "last")
URL, UNSET = "https://github.com/someone/toy", 'repository_url: ""'


def buttons(root, page):
    """The addresses of a page's buttons, without those of its own site."""
    found = BeautifulSoup(html(root, page), "html.parser").select(".article-header-buttons a")
    return {link.get_text(strip=True): link["href"] for link in found}


@pytest.mark.parametrize("page", PAGES)
def test_each_page_offers_its_notebook_which_says_how_to_install_the_library(finished, page):
    links = buttons(finished, page)
    assert list(links) == [".ipynb"]
    folder = (finished / "_build" / "html" / page).parent
    notebook = nbformat.read(folder / links[".ipynb"], as_version=4)
    nbformat.validate(notebook)
    assert "pip install" in notebook.cells[0].source
    assert "data/results" in notebook.cells[0].source
    assert "pip install" not in html(finished, page)
    assert URL not in "".join(cell.source for cell in notebook.cells)


def test_a_repository_brings_its_buttons_to_every_page(book):
    edit(book, "_config.yml", UNSET, f'repository_url: "{URL}"')
    assert build(book) == []
    for page in PAGES:
        links = buttons(book, page)
        assert links.pop(".ipynb")
        place = f"_sources/{page}.ipynb"
        assert links == {
            "Colab": f"https://colab.research.google.com/github/someone/toy/blob/gh-pages/{place}",
            "Binder": f"https://mybinder.org/v2/gh/someone/toy/gh-pages?urlpath=lab/tree/{place}",
            "Repository": URL,
            "Issue": f"{URL}/issues/new?title=Page%20{page}",
            "Edit this page": f"{URL}/edit/main/book/{page}.md",
        }
        assert (book / "_build" / "html" / place).is_file()
        assert (book / "book" / f"{page}.md").is_file()
    assert buttons(book, "genindex") == buttons(book, "search") == {}
    notebook = nbformat.read(book / "_build/html/_sources/index.ipynb", as_version=4)
    assert f"git clone {URL}" in notebook.cells[0].source
    assert f"--branch main {URL} toy\n" in notebook.cells[1].source
    compile(TransformerManager().transform_cell(notebook.cells[1].source), "cell", "exec")
    assert "git clone" not in html(book, "index")
    assert toy_book.run(book, "offline").returncode == 0


def test_nothing_runs_twice_nor_where_only_prose_changed(book):
    assert build(book) == []
    edit(book, f"book/{XOR}.md", "The prose of", "Better prose of")
    assert build(book) == []
    assert "Better prose of" in html(book, XOR)
    assert "result 12" in html(book, XOR)


def test_a_touched_file_runs_nothing(book):
    os.utime(book / "book" / f"{XOR}.md")
    os.utime(book / "lib" / "iterlin" / "alpha.py")
    assert build(book) == []


def test_a_changed_code_cell_runs_its_page(book):
    edit(book, f"book/{XOR}.md", "quadruple(3)", "quadruple(5)")
    assert build(book) == [XOR]
    assert "result 20" in html(book, XOR)
    assert len(executed(book, XOR)) == 1


def test_a_library_change_runs_every_page(book):
    edit(book, "lib/iterlin/alpha.py", "2 * x", "3 * x")
    assert build(book) == [XOR, OTHER]
    assert "result 27" in html(book, XOR)
    # Back to an earlier state: its outputs are gone and must not be mistaken for these.
    edit(book, "lib/iterlin/alpha.py", "3 * x", "2 * x")
    assert build(book) == [XOR, OTHER]
    assert "result 12" in html(book, XOR)


def test_one_page_alone_runs_and_the_others_keep_their_outputs(book):
    edit(book, "lib/iterlin/gamma.py", "return -x", "return -x - 1")
    done = toy_book.run(book, "build", "book", "--page", OTHER)
    assert toy_book.started(done.stdout) == [OTHER], done.stderr
    assert "-8" in html(book, OTHER)
    assert "result 12" in html(book, XOR)
    assert build(book) == [XOR]


def test_a_new_lock_runs_everything(book):
    edit(book, "requirements.lock", "numpy==1", "numpy==2")
    assert build(book) == [XOR, OTHER]


def test_a_new_record_runs_its_page_only(book):
    record = book / "data" / "results" / "xor" / "laptop.nc"
    runs = xr.Dataset({"loss": ("seed", [1.0])})
    records.save(runs, "xor", "laptop", parameters={}, wall_time=1.0, path=record)
    # Half a record that a killed run left is none.
    record.with_name(".laptop-x.nc").write_bytes(record.read_bytes()[:100])
    assert build(book) == [XOR]
    assert build(book) == []


@pytest.mark.parametrize("arguments", [["book"], ["results", "--tier", "laptop"]])
def test_a_damaged_record_is_refused_before_anything_runs(tmp_path, capsys, arguments):
    root = toy_book.create(tmp_path)
    record = root / "data" / "results" / "other" / "gpu.nc"
    record.parent.mkdir(parents=True)
    record.write_bytes(b"half")
    assert build_main([*arguments, "--root", str(root)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{record} is damaged or not a record: ")
    assert said.err.endswith(" (restore or remove the file)\n")
    assert said.err.count("\n") == 1
    assert not (root / "_build").exists()


@pytest.mark.parametrize(
    ("arguments", "broken", "message"),
    [
        (["results", "--tier", "laptop"], "data", "{root}/data is no folder"),
        (["results", "--tier", "laptop"], "_build", "{root}/_build is no folder"),
        (["book"], "_build", "{root}/_build is no folder"),
        (["book"], "home", "{root}/home is no folder"),
        (["book"], None, "{root} cannot be written to"),
        (["results", "--tier", "laptop"], "full", "{root} has room for 1 MB: 16 MB are needed"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_told_before_anything_runs(
    tmp_path, capsys, monkeypatch, arguments, broken, message
):
    root = toy_book.create(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if broken == "full":
        state = SimpleNamespace(free=1 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: state)
    elif broken:
        (root / broken).write_text("in the way")
        monkeypatch.setenv("HOME", str(root / "home"))
    else:  # tests may run as root, who may write anywhere
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert build_main([*arguments, "--root", str(root)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(message.format(root=root))
    assert said.err.count("\n") == 1


def test_what_a_crash_cut_off_is_made_again(book):
    (notebook,) = executed(book, OTHER)
    notebook.write_bytes(notebook.read_bytes()[:-20])
    done = toy_book.run(book, "build", "book")
    assert (done.returncode, toy_book.started(done.stdout)) == (0, [OTHER])
    assert done.stderr == f"{notebook} was cut off: its page runs again\n"
    assert "-7" in html(book, OTHER)
    assert build(book) == []


def test_neither_home_nor_git_nor_a_locale_is_needed(book, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(book / "nowhere"))
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    edit(book, f"book/{OTHER}.md", "# Second page", "# Zweite Seite – übersetzt")
    edit(book, f"book/{OTHER}.md", "negate(7)", 'print("Größe ≤ 3", negate(7))')
    assert build(book) == [OTHER]
    assert "Größe ≤ 3 -7" in html(book, OTHER)
    assert "Zweite Seite – übersetzt" in html(book, OTHER)


def test_claims_belong_to_pages_that_use_the_claims(book):
    edit(book, f"book/{OTHER}.md", "negate(7)", "from iterlin import claims\nclaims.TEXT")
    assert build(book) == [OTHER]
    edit(book, "book/claims.yml", "[]", "[]  # none")
    assert build(book) == [OTHER]


def test_a_page_taken_out_of_the_contents_disappears(book):
    edit(book, "_toc.yml", "  - file: other\n", "")
    (book / "book" / "other.md").unlink()
    assert build(book) == []
    assert not (book / "_build" / "html" / "other.html").exists()
    assert "Second page" not in html(book, XOR)
    assert executed(book, OTHER) == []


def test_a_new_heading_reaches_the_contents_of_other_pages(book):
    edit(book, f"book/{OTHER}.md", "# Second page", "# Renamed page")
    assert build(book) == []
    assert "Renamed page" in html(book, XOR)


def test_a_failing_cell_fails_the_build_and_damages_nothing(book):
    before = executed(book, OTHER)[0].read_bytes()
    edit(book, f"book/{OTHER}.md", "negate(7)", "x = 1\nnegate(7) / 0")
    done = toy_book.run(book, "build", "book")
    assert done.returncode == 1
    assert "other: cell 1 (from line 15 of book/other.md) failed: ZeroDivisionError" in done.stderr
    assert "----> 4 negate(7) / 0" in done.stderr
    assert len(done.stderr.splitlines()) < 30
    assert "_build/partial/quick/other.ipynb" in done.stderr
    assert "ZeroDivisionError" in (book / "_build/partial/quick/other.ipynb").read_text()
    assert [path.read_bytes() for path in executed(book, OTHER)] == [before]
    assert "-7" in html(book, OTHER)
    # Taking the mistake back finds the earlier result.
    edit(book, f"book/{OTHER}.md", "x = 1\nnegate(7) / 0", "negate(7)")
    assert build(book) == []


def test_a_warning_of_the_book_is_an_error_each_time(book):
    edit(book, f"book/{XOR}.md", "The prose of", "See {doc}`nowhere`. The prose of")
    for _ in range(2):
        done = toy_book.run(book, "build", "book")
        assert done.returncode == 1
        assert f"book/{XOR}.md:14: WARNING: unknown document: 'nowhere'" in done.stderr


def _start(root, before=(), *options):
    """A build in a session of its own, once it is inside a slow cell."""
    edit(root, f"book/{OTHER}.md", "negate(7)", SLOW)
    process = toy_book.begin(
        root, "build", "book", *options, before=before, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 60
    while not (root / "started").exists() and process.poll() is None:
        assert time.monotonic() < deadline, "the slow cell never began"
        time.sleep(0.05)
    assert process.poll() is None, process.stdout.read()
    return process


SLOW = """\
import time
from pathlib import Path
if not Path("started").exists():
    Path("started").touch()
    time.sleep(60)
Path("ended").touch()
negate(7)"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_build_goes_on_with_the_same_command(book, how):
    process = _start(book)
    refused = toy_book.run(book, "build", "book")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"another build is running here (process {process.pid}): wait for it or stop it\n"
    )
    if how == signal.SIGKILL:
        process.kill()  # the build alone: its notebooks have to notice
    else:
        os.killpg(process.pid, how)  # as a terminal does
    output, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    if how == signal.SIGINT:
        assert output.splitlines()[-2:] == [
            f"{OTHER} (quick): interrupted",
            "interrupted: run the same command again to go on",
        ]
        assert "Traceback" not in output
    assert not (book / "ended").exists()
    assert build(book) == [OTHER]
    assert "-7" in html(book, OTHER)


def test_an_interrupt_while_modules_are_loaded_prints_no_traceback():
    code = "import iterlin_book; raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_a_build_may_end_with_the_process_that_started_it(book):
    process = _start(book, ["sh", "-c", '"$@"; :', "sh"], "--parent")
    process.kill()
    with (book / "_build" / ".lock").open() as lock:
        deadline = time.monotonic() + 10
        while not _free(lock):
            assert time.monotonic() < deadline, "the build goes on"
            time.sleep(0.05)
    process.communicate(timeout=10)  # nothing that the build started writes any more
    assert not (book / "ended").exists()


def _free(lock):
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_change_during_a_run_is_not_taken_for_its_result(book):
    edit(book, f"book/{OTHER}.md", "negate(7)", CHANGES_LIBRARY)
    done = toy_book.run(book, "build", "book")
    assert done.returncode == 1
    assert "changed during the build: run it again" in done.stderr
    assert build(book) == [XOR, OTHER]
    assert "-8" in html(book, OTHER)


CHANGES_LIBRARY = """\
from pathlib import Path
Path("lib/iterlin/gamma.py").write_text("def negate(x):\\n    return -x - 1\\n")
negate(7)"""


def test_results_run_at_their_tier_beside_the_book(book):
    done = toy_book.run(book, "build", "results", "--tier", "laptop", "--page", "xor")
    assert done.returncode == 0, done.stderr
    assert "experiments/xor (laptop): finished in" in done.stdout
    (path,) = (book / "_build" / "executed-laptop" / "experiments").glob("xor.*.ipynb")
    assert "result 12 laptop 0.25 [5]" in path.read_text()
    assert build(book) == []
