"""Run one page as a notebook: ``python -m iterlin_book.execute experiments/xor --tier gpu``.

The result is put in place only when every cell has run and nothing that it depends on has changed
meanwhile, so that what an earlier run left is never damaged. A run that lacks parts when its time
is over saves a partial record; it is not taken for done, and the exit status is 3. That there is no
time to begin with is the same status.
"""

import atexit
import json
import logging
import os
import re
import shutil
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import nbformat
from iterlin.study.environment import PROGRESS, ShareDone

from iterlin_book import freshness, pages, parameters, processes, xla
from iterlin_book.pages import BookError
from iterlin_book.processes import CellFailed, Unfinished
from iterlin_book.states import REFUSED

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK_LINES = 16
# What iterlin.runtime.chunks raises at the deadline, where the page does not go on without the run.
_OUT_OF_TIME = "OutOfTime"
_NOT_WRITTEN = "NotWritten"  # of iterlin.study.records
# A quick page traces and compiles: looking for garbage would take a twelfth of its time.
_FEW_COLLECTIONS = ["__import__('gc').set_threshold(10_000, 10, 10)"]


class Echo:
    """What the page's process writes to stderr, on this one's, line by line behind its name."""

    def __init__(self, page):
        self.page, self.rest = page, ""

    def write(self, text):
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            pages.say(f"{self.page}: {line}", error=True)

    def flush(self):
        sys.stderr.flush()

    def end(self):
        if self.rest:
            self.write("\n")


def prepare(root, page, tier):
    """The page as a notebook, the values it runs with and the digest of both."""
    notebook = pages.read(root, page)
    if notebook is None:
        raise BookError(f"{page}: has no code cells to run")
    values = parameters.load(root, page, tier)
    return notebook, values, freshness.digest(root, page, tier, notebook, values)


def check_places(root, page, tier):
    """Raises BookError for a folder that the run would fail to write to, maybe after hours."""
    root = Path(root).resolve()
    pages.require_writable(root / "_build")
    if tier != pages.QUICK:
        pages.require_writable(root / "data" / "results" / page.rpartition("/")[2])


def execute(root, page, tier, prepared, expected=None):
    """Run a page, as `prepare` found it, and return the path of the executed notebook."""
    notebook, values, digest = prepared
    require_same(page, digest, expected)
    partial = partial_path(root, page, tier)
    started = time.monotonic()
    echo = Echo(page)
    if tier == pages.QUICK:
        # A build of the book runs pages that print nothing but warnings; those end up on the page.
        echo = None
    executed = run(root, page, notebook, values, partial, echo)
    seconds = round(time.monotonic() - started, 1)
    require_same(page, prepare(root, page, tier)[2], digest)
    executed.metadata["iterlin_book"] = {
        "page": page,
        "tier": tier,
        "digest": digest,
        "seconds": seconds,
    }
    path = pages.executed(root, page, tier, digest)
    if tier != pages.QUICK:
        for earlier in path.parent.glob(f"{path.name.split('.')[0]}.*.ipynb"):
            earlier.unlink()  # the record that it speaks of has been replaced
        keep_quick_run(root, page, tier)
        if missing := _missing(root, page, tier):
            raise Unfinished(f"{page} ({tier}): {missing}; run the same command again to go on")
    pages.write_atomically(path, nbformat.writes(executed))
    partial.unlink(missing_ok=True)
    return path


def keep_quick_run(root, page, tier):
    """Run a page that has made a record at its quick tier, too, and keep that run beside it.

    Later builds compare their quick runs with it.
    """
    from iterlin.study import comparison, records

    experiment = page.rpartition("/")[2]
    if not records.path_of(experiment, tier).is_file():
        return
    execute(root, page, pages.QUICK, prepare(root, page, pages.QUICK))
    if records.path_of(experiment, pages.QUICK).is_file():
        comparison.keep(experiment)


def partial_path(root, page, tier, part=""):
    """Where the cells that have run are put meanwhile, those of a part of the page's work apart."""
    path = Path(root) / "_build" / "partial" / tier / f"{page}{part}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def require_same(page, digest, expected):
    """Raises BookError where a page is not the one that was meant, if one was."""
    if expected not in (None, digest):
        raise BookError(f"{page}: the page or what it uses changed during the build: run it again")


def _missing(root, page, tier):
    """What the page's record of the tier lacks, in words; nothing if whole or not there."""
    name = page.rpartition("/")[2]
    path = Path(root) / "data" / "results" / name / f"{tier}.nc"
    if not path.is_file():
        return ""
    from iterlin.study import records

    try:
        return records.partial_note(records.load(name, tier, path))
    except ValueError as error:
        raise BookError(pages.one_line(error)) from None


def run(root, page, notebook, values, partial, echo):
    """The notebook, executed. Raises CellFailed, Unfinished, or ShareDone where it stops for it."""
    import papermill  # slow to import: after the checks of what was asked
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what went wrong is said below
    # Figures must land in the notebook whatever backend the caller's shell prefers.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    xla.set_flags(quick=echo is None)
    told = ["--log-level=50"]
    if echo is None:
        told.append(f"--IPKernelApp.exec_lines={_FEW_COLLECTIONS!r}")
    else:
        os.environ.setdefault(PROGRESS, "1")  # lines now and then
    # Sockets in a folder of its own: another process could take a free port first. The paths of
    # sockets must be short. The folder goes at the end, when an interrupted kernel has gone.
    folder = mkdtemp(prefix="iterlin-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sockets = {"ip": f"{folder}/socket", "connection_file": f"{folder}/kernel.json"}
    try:
        return papermill.execute_notebook(
            notebook,
            str(partial),
            parameters=values,
            kernel_name="python3",
            progress_bar=False,
            stderr_file=echo,
            cwd=str(root),
            extra_arguments=told,
            config=Config(KernelManager={"transport": "ipc", **sockets}),
        )
    except papermill.exceptions.PapermillExecutionError as error:
        if error.ename == ShareDone.__name__:
            raise ShareDone(error.evalue) from None
        if error.ename == _OUT_OF_TIME:
            raise Unfinished(
                f"{page}: out of time before there was anything to record: {error.evalue}; "
                "run the same command again"
            ) from None
        if error.ename == _NOT_WRITTEN:
            raise CellFailed(
                f"{page}: {error.evalue}; its runs are kept: run the same command again"
            ) from None
        raise CellFailed(_failure(root, page, error, partial)) from None
    except DeadKernelError:
        raise CellFailed(
            f"{page}: its process ended: interrupted, killed (out of memory?) or crashed"
        ) from None
    finally:
        if echo:
            echo.end()


def _failure(root, page, error, partial):
    """Page, cell and the end of the traceback: what one needs to see in a terminal."""
    source = pages.source(root, page)
    before, found, _ = source.read_text("utf8").partition(error.source)
    place = f" (from line {before.count(chr(10)) + 1} of {source})" if found else ""
    frames = _ANSI.sub("", "\n".join(error.traceback)).splitlines()
    shown = frames[-_TRACEBACK_LINES:]
    if len(frames) > len(shown):
        shown = ["...", *shown]
    return "\n".join(
        [
            f"{page}: cell {error.exec_count}{place} failed: {error.ename}: "
            f"{pages.one_line(error.evalue)}",
            *(f"    {line}" for line in shown),
            f"{page}: the notebook up to the failure is {partial}",
        ]
    )


def _finished(path):
    seconds = json.loads(path.read_text("utf8"))["metadata"]["iterlin_book"]["seconds"]
    return f"finished in {seconds} s"


def main(arguments=None):
    parser = processes.parser_of("execute", __doc__)
    try:
        options = parser.parse_args(arguments)
        if options.parent:
            processes.stop_with_parent()
        page = pages.find(options.root, options.page)
        asked = options.root, page, options.tier
        check_places(*asked)
        prepared = prepare(*asked)  # nothing is announced that cannot start
    except BookError as error:
        pages.say(error, error=True)
        return REFUSED
    return processes.noted(*asked, "", lambda: _finished(execute(*asked, prepared, options.digest)))


if __name__ == "__main__":
    sys.exit(main())
