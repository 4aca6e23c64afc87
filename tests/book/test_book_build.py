"""The pipeline end to end on a toy book: what runs again after which change, failures, kills."""

import os
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import nbformat
import pytest
import toy_book
from bs4 import BeautifulSoup
from crafted import TEXT
from iterlin_book import execute, offline, references, render
from iterlin_book.build import main as build_main
from toy_book import build, edit, executed, here, html

XOR, OTHER = "experiments/xor", "other"
# Displays what a record may say.
CRAFTED = f"""\
from iterlin_study.report import tables
text = {TEXT!r}
display(tables.table([text], [[text]], text), tables.said(text))"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Built once, in a folder of any name, without home, git or locale; `book` hands out copies."""
    root = toy_book.create(tmp_path_factory.mktemp("toy") / "zum Üben, 100 % of $HOME's {book}")
    edit(root, f"book/{OTHER}.md", "negate(7)", 'print("Größe ≤ 3")\nnegate(7)')
    edit(root, f"book/{OTHER}.md", "from iterlin import", f"{CRAFTED}\nfrom iterlin import")
    with pytest.MonkeyPatch.context() as patched:
        for name in ("HOME", "XDG_CACHE_HOME", "LANG"):
            patched.delenv(name, raising=False)
        patched.setenv("PATH", str(root / "nowhere"))
        patched.setenv("LC_ALL", "C")
        patched.setenv("PYTHONCOERCECLOCALE", "0")
        assert build(root) == [XOR, OTHER]
    return root


@pytest.fixture
def book(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "book")


def test_pages_show_outputs_mathematics_citations_and_times(finished):
    page = html(finished, XOR)
    assert "result 12 quick 0.5 [1, 10]" in page
    assert "Figure computed in the section “A picture”" in page
    assert "Größe ≤ 3" in html(finished, OTHER)
    assert "Some One" in html(finished, "last")
    icons = (finished / "_build" / "html" / render.ICONS).read_text("utf8")
    assert {"download", "magnifying-glass"} <= {name for name, _ in render.ICON.findall(icons)}
    assert not [*offline.check(finished / "_build" / "html")]
    _, *rows = BeautifulSoup(html(finished, "last"), "html.parser").select("tbody tr")
    for page, row in zip((XOR, OTHER), rows, strict=True):
        seconds = nbformat.read(executed(finished, page), 4).metadata["iterlin_book"]["seconds"]
        assert [cell.get_text() for cell in row.select("td")[:2]] == [page, f"{seconds:.1f}"]


def test_a_built_page_shows_what_a_record_says_and_does_nothing_of_it(finished):
    article = BeautifulSoup(html(finished, OTHER), "html.parser").select_one("article")
    outputs = article.select(".cell_output table, .cell_output p")
    shown = [" ".join(part.get_text().split()) for part in outputs]
    assert all(" ".join(TEXT.split()) in text for text in shown)
    assert len(shown) == 2
    for output in article.select(".cell_output"):
        assert output.select("a, img, script, h1, h2") == []


@pytest.mark.parametrize("page", ["index", XOR])
def test_each_page_offers_its_notebook_which_says_how_to_install_the_library(finished, page):
    (link,) = BeautifulSoup(html(finished, page), "html.parser").select(".article-header-buttons a")
    folder = (finished / "_build" / "html" / page).parent
    notebook = nbformat.read(folder / link["href"], as_version=4)
    nbformat.validate(notebook)
    assert "pip install" in notebook.cells[0].source
    assert "pip install" not in html(finished, page)


@pytest.fixture
def reference(book):
    """The reference of a page that has run; none is left of a page that is not compared."""
    folder = book / references.FOLDER
    folder.mkdir(parents=True)
    (folder / "pages.txt").write_text("xor  # quick\n\n-other  above a minute\n")
    (folder / "old.ipynb").write_text("{}")
    with mock.patch.dict(os.environ):  # which a build changes
        assert references.main(["--root", str(book)]) == 0
    (path,) = folder.rglob("*.ipynb")
    assert path == references.path_of(book, XOR)
    return path


def test_references_hold_no_pictures(reference):
    notebook = nbformat.read(reference, as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    assert "image/" not in nbformat.writes(notebook)
    assert "<Figure" in nbformat.writes(notebook)


@pytest.mark.nightly
def test_nbval_compares_what_cells_print(book, reference):
    edit(book, "lib/iterlin/__init__.py", "4 * x", "4 * x + 1")
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", reference]
    done = subprocess.run(command, cwd=book, env=toy_book.environment(book), **toy_book.PIPES)
    assert "1 failed, 2 passed" in done.stdout


def test_a_failing_cell_fails_the_build_and_damages_nothing(book, capfd):
    before = executed(book, OTHER).read_bytes()
    edit(book, f"book/{XOR}.md", "quadruple(3)", "quadruple(5)")
    edit(book, f"book/{OTHER}.md", "\nnegate(7)", "\nnegate(7) / 0")
    status, ran, errors = here(book, capfd, build_main, "book")
    assert (status, ran) == (1, [XOR, OTHER])
    assert "line 4 of book/other.md) failed: ZeroDivisionError" in errors
    assert "ZeroDivisionError" in (book / "_build/partial/quick/other.ipynb").read_text()
    assert executed(book, OTHER).read_bytes() == before
    assert "-7" in html(book, OTHER)
    # Without the mistake the earlier result is found, and that of the page that ran; prose,
    # headings and time stamps run nothing.
    edit(book, f"book/{OTHER}.md", "negate(7) / 0", "negate(7)")
    edit(book, f"book/{OTHER}.md", "# Second page", "# Renamed page")
    edit(book, f"book/{XOR}.md", "The prose of", "Better prose of")
    edit(book, "_toc.yml", "  - file: last\n", "")
    edit(book, "book/index.md", "{cite:t}`someone`, ", "")
    os.utime(book / "lib" / "iterlin" / "gamma.py")
    assert here(book, capfd, build_main, "book") == (0, [], "")
    for text in ("result 20", "Better prose of", "Renamed page"):
        assert text in html(book, XOR)
    assert not (book / "_build" / "html" / "last.html").exists()


SLOW = """\
import time
from pathlib import Path
if not Path("go").exists():
    Path("started").touch()
    time.sleep(60)
Path("ended").touch()
Path("lib/iterlin/gamma.py").write_text("def negate(x):\\n    return -x - 1\\n")
negate(7)"""


def interrupted(book, how, capfd):
    """The output of a build that is ended in the midst of a cell."""
    # Killed is the shell that started it; its notebooks have to notice.
    before = ["sh", "-c", '"$@"; :', "sh"] if how == signal.SIGKILL else []
    asked = ["build", "book", "--parent"]
    process = toy_book.begin(book, *asked, before=before, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not (book / "started").exists():
        assert time.monotonic() < deadline, "the slow cell never began"
        time.sleep(0.05)
    (book / "started").unlink()
    if how == signal.SIGKILL:
        process.kill()
    else:
        status, _, errors = here(book, capfd, build_main, "book")
        assert status == 2
        assert errors.startswith("another build is running here (process ")
        os.killpg(process.pid, how)
    output, _ = process.communicate(timeout=30)  # until nothing writes any more
    assert process.returncode != 0
    assert not (book / "ended").exists()
    return output


def test_an_interrupted_build_goes_on_and_a_changed_library_gives_no_result(book, capfd):
    """One page runs alone if asked. A warning of the book is an error: the earlier book stays."""
    edit(book, f"book/{OTHER}.md", "negate(7)", SLOW)
    interrupted(book, signal.SIGKILL, capfd)
    output = interrupted(book, signal.SIGINT, capfd)
    assert "interrupted: run the same command again to go on" in output.splitlines()
    assert "Traceback" not in output
    (book / "go").touch()
    status, _, errors = here(book, capfd, execute.main, OTHER)
    assert status == 2
    assert "changed during the run: run it again" in errors
    status, ran, errors = here(book, capfd, build_main, "book", "--page", OTHER)
    assert (status, ran) == (0, [OTHER]), errors
    assert "-8" in html(book, OTHER)
    assert "result 12" in html(book, XOR)
    edit(book, f"book/{XOR}.md", "The prose of", "See {doc}`nowhere`. The prose of")
    digest = book / "_build" / "html" / ".digest"
    before = digest.read_text()
    status, ran, errors = here(book, capfd, build_main, "book", "--page", OTHER)
    assert (status, ran) == (1, [])
    assert f"book/{XOR}.md: WARNING: unknown document: 'nowhere'" in errors
    assert digest.read_text() == before  # so it is built again


LAPTOP = ["results", "--tier", "laptop"]


@pytest.mark.parametrize(
    ("file", "text", "arguments", "named"),
    [
        ("data/results/other/gpu.nc", "{ half", LAPTOP, "data/results/other/gpu.nc"),
        ("book/claims.yml", "{ half", LAPTOP, "book/claims.yml"),
        ("book/other.laptop.yml", "new: 1", LAPTOP, "other.laptop.yml: unknown parameter 'new'"),
        ("_build", "in the way", ["book"], "_build"),
        ("any", "", ["book", "--budget=5"], "budget"),
        ("any", "", ["book", "--page", "nowhere"], "'nowhere'"),
        ("any", "", ["results", "--tier", "moon"], "'moon'"),
        ("any", "", [*LAPTOP, "--budget", "nan"], "budget"),
        ("any", "", [*LAPTOP, "--shares", "0"], "shares"),
        (
            "profiles/far/config.yaml",
            "executor: far-away",
            [*LAPTOP, "--profile", "far"],
            "snakemake-executor-plugin-far-away",
        ),
    ],
)
def test_a_wrong_command_or_file_is_refused_in_one_line_before_anything_runs(
    tmp_path, capsys, file, text, arguments, named
):
    root = toy_book.create(tmp_path)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)
    assert build_main([*arguments, "--root", str(root)]) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not (root / "_build").is_dir()
