"""Run one page as a notebook: ``python -m iterlin_book.execute xor --tier gpu``.

The executed notebook is put in place only when every cell has run and nothing that the page depends
on has changed meanwhile. A run whose time is over saves a partial record; its exit status is 3, and
the next command goes on with it.

With ``--share 3/8`` the page runs up to where it would record its runs. It trains every eighth of
them, from the third on, and keeps them in _build/runs, where the process that makes the record
finds them.
"""

import argparse
import logging
import os
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import nbformat
from iterlin_study.records import environment

from iterlin_book import freshness, pages, parameters, states, xla
from iterlin_book.pages import BookError

# A quick run traces and compiles: looking for garbage would take a twelfth of its time.
FEW_COLLECTIONS = ["__import__('gc').set_threshold(50_000, 20, 20)"]
TRACEBACK_LINES = 16


class Stopped(Exception):
    """A run that ended early, with the exit status."""

    def __init__(self, message, status=states.FAILED):
        super().__init__(message)
        self.status = status


def prepare(root, page, tier):
    """Return the page as a notebook, its parameters, and the digest of all it depends on."""
    notebook = pages.read(root, page)
    if not pages.code_cells(notebook):
        raise BookError(f"{page}: has no code cells to run")
    values = parameters.load(root, page, tier)
    return notebook, values, freshness.digest(Path(root), page, tier, notebook, values)


def execute(root, page, tier, prepared):
    """Run a page, as `prepare` found it, and put the executed notebook in place."""
    started = time.monotonic()
    executed = run(root, page, tier, prepared)
    seconds = round(time.monotonic() - started, 1)
    digest = prepare(root, page, tier)[2]
    if digest != prepared[2]:
        raise BookError(f"{page}: the page or what it uses changed during the run: run it again")
    about = {"page": page, "tier": tier, "digest": digest, "seconds": seconds}
    executed.metadata["iterlin_book"] = about
    path = pages.executed(root, page, tier, digest)
    if tier != pages.QUICK:
        for earlier in path.parent.glob(f"{Path(page).name}.*.ipynb"):
            earlier.unlink()  # its record has been replaced
        keep_quick_run(root, page, tier)
    pages.write_atomically(path, nbformat.writes(executed))
    partial_path(root, page, tier).unlink(missing_ok=True)
    return f"finished in {seconds} s"


def keep_quick_run(root, page, tier):
    """Keep a quick run of the page beside its new record, for later builds to compare theirs with.

    Raises Stopped if the record lacks runs.
    """
    from iterlin_study.records import comparison, records  # they import JAX: not for a quick run

    name = Path(page).name
    if not records.path_of(name, tier).is_file():
        return
    os.environ.pop(environment.DEADLINE, None)  # a quick run takes seconds and must be whole
    os.environ["JAX_PLATFORMS"] = "cpu"  # as in the builds whose quick runs are compared with it
    execute(root, page, pages.QUICK, prepare(root, page, pages.QUICK))
    if records.path_of(name, pages.QUICK).is_file():
        comparison.keep(name)
    if missing := records.partial_note(records.load(name, tier)):
        again = "run the same command again to go on"
        raise Stopped(f"{page} ({tier}): {missing}; {again}", states.PARTIAL)


def keeps_runs(root, page, tier):
    """Return whether processes can share the page's runs at the tier."""
    return tier != pages.QUICK and "grids.store(" in pages.source(root, page).read_text("utf8")


def stamp_of(root, page, tier, digest, share):
    """Return the path of the file that marks share "i/n" of the page's runs as done."""
    return Path(root) / "_build" / "shares" / tier / f"{page}.{digest}{_part(share)}"


def _part(share):
    return f".{share.replace('/', '-of-')}" if share else ""


def train_share(root, page, tier, prepared, share):
    """Train share "i/n" of a page's runs and mark it as done."""
    os.environ[environment.SHARE] = share
    try:
        run(root, page, tier, prepared, share)
    except environment.ShareDone as done:
        partial_path(root, page, tier, share).unlink(missing_ok=True)
        pages.write_atomically(stamp_of(root, page, tier, prepared[2], share), "")
        return str(done)
    raise BookError(f"{page}: records nothing, so that a share of its runs has no end")


def partial_path(root, page, tier, share=""):
    """Return the path of the notebook as far as it has run."""
    return Path(root) / "_build" / "partial" / tier / f"{page}{_part(share)}.ipynb"


def run(root, page, tier, prepared, share=""):
    """Run a page and return the executed notebook. Raises Stopped, or ShareDone."""
    import papermill  # slow to import: after the checks of the command
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    quick = tier == pages.QUICK
    xla.set_flags(quick=quick)
    # Figures must land in the notebook whatever backend the caller's shell prefers.
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    arguments = ["--log-level=50"]
    if quick:
        arguments.append(f"--IPKernelApp.exec_lines={FEW_COLLECTIONS!r}")
        xla.keep_programs(Path(root) / "_build" / "compiled")
    else:
        os.environ.setdefault(environment.PROGRESS, "1")
    partial = partial_path(root, page, tier, share)
    partial.parent.mkdir(parents=True, exist_ok=True)
    # Sockets in a folder of its own, in /tmp as their paths must be short: another process could
    # take a free port first.
    with TemporaryDirectory(prefix="iterlin-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        manager = {"transport": "ipc", "ip": f"{folder}/s", "connection_file": f"{folder}/k.json"}
        try:
            return papermill.execute_notebook(
                prepared[0],
                str(partial),
                parameters=prepared[1],
                kernel_name="python3",
                progress_bar=False,
                # What a quick run warns of stays on the page alone.
                stderr_file=None if quick else _behind(f"{page} {share}".strip()),
                cwd=str(root),
                extra_arguments=arguments,
                config=Config(KernelManager=manager),
            )
        except papermill.exceptions.PapermillExecutionError as error:
            if error.ename == environment.ShareDone.__name__:
                raise environment.ShareDone(error.evalue) from None
            if error.ename == "OutOfTime":  # of iterlin.training.loop
                where = f"out of time before there was anything to record: {error.evalue}"
                again = "run the same command again"
                raise Stopped(f"{page}: {where}; {again}", states.PARTIAL) from None
            if error.ename == "NotWritten":  # of the records: the disk is full, say
                kept = "its runs are kept: run the same command again"
                raise Stopped(f"{page}: {error.evalue}; {kept}") from None
            raise Stopped(_failure(root, page, error, partial)) from None
        except DeadKernelError:
            why = "interrupted, killed (out of memory?) or crashed"
            raise Stopped(f"{page}: its process ended: {why}") from None


def _behind(name):
    """Return a stream that writes each line to stderr after a name."""

    def write(text):
        for line in text.splitlines():
            pages.say(f"{name}: {line}", error=True)

    return SimpleNamespace(write=write, flush=sys.stderr.flush)


def _failure(root, page, error, partial):
    """Return the page, the cell, its line in the page's file, and the end of the traceback."""
    source = pages.source(root, page)
    before = source.read_text("utf8").partition(error.source)[0]
    cell = f"cell {error.exec_count} (from line {before.count(chr(10)) + 1} of {source})"
    frames = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback)).splitlines()
    lines = [f"{page}: {cell} failed: {error.ename}: {pages.one_line(error.evalue)}"]
    lines += [f"    {line}" for line in frames[-TRACEBACK_LINES:]]
    return "\n".join([*lines, f"{page}: the notebook up to the failure is {partial}"])


def stop_with_parent():
    """End this process when the one that started it is gone, even if that was killed."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # the notebook's process watches this one in the same way

    threading.Thread(target=watch, daemon=True).start()


def parser(module, description):
    """Return a parser of arguments whose errors are one line."""
    about = description.splitlines()[0]
    parser = argparse.ArgumentParser(
        prog=f"iterlin_book.{module}", description=about, usage=argparse.SUPPRESS
    )
    parser.add_argument("--tier", default=pages.QUICK, help="quick unless told")
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    parser.add_argument("--parent", action="store_true", help="end with the calling process")
    return parser


def main(arguments=None):
    options = parser("execute", __doc__)
    options.add_argument("page", help="the page's file or name, such as xor")
    options.add_argument("--share", default="", help="i/n: train only the i-th of n shares")
    options.add_argument("--digest", help="stop if this is not the page's digest")
    options = options.parse_args(arguments)
    if options.parent:
        stop_with_parent()
    root, tier, share = options.root, options.tier, options.share
    try:
        page = pages.find(root, options.page)
        prepared = prepare(root, page, tier)
        if options.digest not in (None, prepared[2]):
            raise BookError(f"{page}: the page or what it uses has changed: run the command again")
        if share and environment.parse(share) and not keeps_runs(root, page, tier):
            raise BookError(f"{page} ({tier}): keeps no runs that could be shared out")
        if environment.out_of_time():
            return states.PARTIAL
    except (BookError, ValueError) as error:
        pages.say(error, error=True)
        return states.REFUSED
    part = _part(share)
    name = f"{page} ({tier}{part.replace('.', ' ')})"
    pages.say(f"{name}: started")
    started, status = time.monotonic(), states.DONE
    try:
        # Failed until it has ended: a process that is killed cannot say so.
        states.write(root, tier, f"{page}{part}", states.FAILED)
        work = (root, page, tier, prepared)
        pages.say(f"{name}: {train_share(*work, share) if share else execute(*work)}")
    except Stopped as stopped:
        status = stopped.status
        pages.say(stopped, error=status == states.FAILED)
    except (BookError, OSError) as error:  # OSError: a full disk, or no folder to write to
        status = states.REFUSED
        pages.say(error, error=True)
    except KeyboardInterrupt:
        status = states.INTERRUPTED
        # The same key has ended the notebook's process; nobody waits for what tells of that.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        pages.say(f"{name}: interrupted", error=True)
    with suppress(OSError):
        states.write(root, tier, f"{page}{part}", status, time.monotonic() - started)
    return status


if __name__ == "__main__":
    sys.exit(main())
