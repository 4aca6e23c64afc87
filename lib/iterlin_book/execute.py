"""Run one page as a notebook: ``python -m iterlin_book.execute experiments/xor --tier gpu``.

The result is put in place only when every cell has run and nothing that it depends on has changed
meanwhile, so that what an earlier run left is never damaged. A run that lacks parts when its time
is over saves a partial record; it is not taken for done, and the exit status is 3.
"""

import argparse
import json
import logging
import os
import re
import sys
import threading
import time
from pathlib import Path

import nbformat

from iterlin_book import compiled, freshness, pages, parameters
from iterlin_book.pages import BookError

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK_LINES = 16
# Exit statuses, as a build that runs pages reads them.
DONE, FAILED, REFUSED, PARTIAL, INTERRUPTED = 0, 1, 2, 3, 130
# What iterlin.runtime.chunks raises at the deadline, where the page does not go on without the run.
_OUT_OF_TIME = "OutOfTime"
PARENT = "end when the calling process ends"
# With this scheduler jaxlib 0.10.2 can wait for ever on two cores, when a vmapped program has
# several decompositions that do not depend on each other.
_XLA_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler"


class CellFailed(Exception):
    """A cell raised; the message names the page, the cell and where to look on."""


class Unfinished(Exception):
    """The time was over: the page's record lacks runs, or there is none of this run."""


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
    values = parameters.load(root, page, tier, notebook)
    return notebook, values, freshness.digest(root, page, tier, notebook, values)


def check_places(root, page, tier):
    """Raises BookError for a folder that the run would fail to write to, maybe after hours."""
    root = Path(root).resolve()
    pages.require_writable(root / "_build")
    if tier != pages.QUICK:
        pages.require_writable(root / "data" / "results" / page.rpartition("/")[2])


def execute(root, page, tier, expected=None):
    """Run a page and return the path of the executed notebook."""
    notebook, values, digest = prepare(root, page, tier)
    changed = f"{page}: the page or what it uses changed during the build: run it again"
    if expected is not None and digest != expected:
        raise BookError(changed)
    partial = Path(root) / "_build" / "partial" / tier / f"{page}.ipynb"
    partial.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    # A build of the book runs pages that print nothing but warnings; those end up on the page.
    echo = None if tier == pages.QUICK else Echo(page)
    executed = _run(root, page, notebook, values, partial, echo)
    seconds = round(time.monotonic() - started, 1)
    if prepare(root, page, tier)[2] != digest:
        raise BookError(changed)
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
        if missing := _missing(root, page, tier):
            raise Unfinished(f"{page} ({tier}): {missing}; run the same command again to go on")
    pages.write_atomically(path, nbformat.writes(executed))
    partial.unlink(missing_ok=True)
    return path


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


def _run(root, page, notebook, values, partial, echo):
    import papermill  # slow to import: after the checks of what was asked
    from nbclient.exceptions import DeadKernelError

    # Figures must land in the notebook whatever backend the caller's shell prefers.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    if echo:
        os.environ.setdefault("ITERLIN_PROGRESS", "1")  # lines now and then
    compiled.keep(root)
    flags = os.environ.get("XLA_FLAGS", "")
    if _XLA_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_XLA_FLAG}=false".strip()
    try:
        return papermill.execute_notebook(
            notebook,
            str(partial),
            parameters=values,
            kernel_name="python3",
            progress_bar=False,
            stderr_file=echo,
            cwd=str(root),
            extra_arguments=["--log-level=50"],  # nothing of plain TCP on the loopback
        )
    except papermill.exceptions.PapermillExecutionError as error:
        if error.ename == _OUT_OF_TIME:
            raise Unfinished(
                f"{page}: out of time before there was anything to record: {error.evalue}; "
                "run the same command again"
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


def stop_with_parent():
    """End this process when the one that started it is gone, killed ones included."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # the kernel watches this process in the same way

    threading.Thread(target=watch, daemon=True).start()


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise BookError(f"{self.prog}: {message}")


def main(arguments=None):
    parser = Parser(prog="iterlin_book.execute", description=__doc__.splitlines()[0])
    parser.add_argument("page", help="the page's file or name, such as xor")
    parser.add_argument("--tier", default=pages.QUICK, help="quick unless told")
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    parser.add_argument("--digest", help="stop where this is not the page's digest (the build's)")
    parser.add_argument("--parent", action="store_true", help=PARENT)
    try:
        options = parser.parse_args(arguments)
        if options.parent:
            stop_with_parent()
        page = pages.find(options.root, options.page)
        check_places(options.root, page, options.tier)
        prepare(options.root, page, options.tier)  # nothing is announced that cannot start
        pages.say(f"{page} ({options.tier}): started")
        path = execute(options.root, page, options.tier, options.digest)
    except BookError as error:
        pages.say(error, error=True)
        return REFUSED
    except CellFailed as error:
        pages.say(error, error=True)
        return FAILED
    except Unfinished as unfinished:
        pages.say(unfinished)
        return PARTIAL
    except KeyboardInterrupt:
        # Of the kernel that the same key has ended, and whose end nobody waits for any more.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        pages.say(f"{page} ({options.tier}): interrupted", error=True)
        return INTERRUPTED
    seconds = json.loads(path.read_text("utf8"))["metadata"]["iterlin_book"]["seconds"]
    pages.say(f"{page} ({options.tier}): finished in {seconds} s")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
