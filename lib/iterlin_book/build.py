"""Build the book or run experiments: ``python -m iterlin_book.build book`` or ``results``.

The book is the pipeline of the Snakefile, results are a plain list of pages (iterlin_book.results).
Common to both: one build at a time, everything checked before anything runs, threads shared out
between notebooks.
"""

import fcntl
import math
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from iterlin_book import compiled, execute, freshness, pages, render, results
from iterlin_book.pages import BookError

SNAKEFILE = Path(__file__).resolve().parents[2] / "Snakefile"
# NPROC sizes the thread pools of XLA on the CPU, the others those of numpy and scipy.
_THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def only_build(root):
    """Hold the project's build lock; the system frees it however this process ends."""
    path = Path(root) / "_build" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BookError(
                f"another build is running here (process {file.read().strip() or 'unknown'}): "
                "wait for it or stop it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def run(root, target, tier, chosen, jobs, deadline=None):
    """Check everything, run the target and return the exit status.

    `deadline` is by the clock that nobody sets, `time.monotonic`. Raises BookError for what could
    not run to its end.
    """
    root = Path(root).resolve()
    check_places(root, target, tier, chosen)
    freshness.check_records(root)
    kept = []  # the executed notebooks of an earlier build, as far as they are there
    for page in chosen:
        kept.append(pages.executed(root, page, tier, execute.prepare(root, page, tier)[2]))
    threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))
    for variable in _THREADS:
        os.environ.setdefault(variable, threads)
    os.environ.setdefault("PYTHONHASHSEED", "0")
    if tier == pages.QUICK:  # several at a time, with the same results everywhere
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with only_build(root):
        pages.drop_damaged(root, kept)
        compiled.drop_damaged(root)
        if target == "results":
            return results.run(root, tier, chosen, jobs, deadline)
        render.drop_damaged(root)
        return _snakemake(root, jobs)


def check_places(root, target, tier, chosen):
    """Raises BookError for a folder that cannot be written to."""
    for page in chosen:
        execute.check_places(root, page, tier)
    if target == "book":  # Snakemake keeps files in the project's folder and in the home
        for folder in (root, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")):
            pages.require_writable(folder)


def _snakemake(root, jobs):
    """Run Snakemake in this process."""
    from snakemake.cli import main  # takes a second: after the checks

    arguments = ["book", "--snakefile", str(SNAKEFILE), "--directory", str(root)]
    # Locks are this module's. File names carry digests of their content, so nothing depends on
    # time stamps; what a killed job left is made again.
    arguments += ["--cores", str(jobs), "--nolock", "--rerun-incomplete", "--keep-going"]
    arguments += ["--rerun-triggers", "params", "code", "--quiet", "all"]
    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def chosen_pages(root, tier, names):
    """The pages meant by names, or all that can run at the tier, in their order of priority."""
    if names:
        return list(dict.fromkeys(pages.find(root, name) for name in names))
    everything = [page for page in pages.toc(root) if pages.read(root, page) is not None]
    chosen = [page for page in everything if tier in pages.tiers(root, page)]
    if not chosen:
        known = sorted({name for page in everything for name in pages.tiers(root, page)})
        raise BookError(f"no page has the tier '{tier}' (tiers: {', '.join(known)})")
    return pages.by_priority(root, chosen)


def seconds_of(budget):
    """A time given in minutes, in seconds."""
    try:
        minutes = float(budget)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        raise BookError(f"the budget must be a positive number of minutes, not '{budget}'")
    return 60 * minutes


def main(arguments=None):
    parser = execute.Parser(prog="iterlin_book.build", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=["book", "results"])
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    parser.add_argument("--tier", default=pages.QUICK)
    parser.add_argument("--page", action="append", help="a page to run; all of the tier unless set")
    parser.add_argument("--jobs", type=int, help="notebooks at a time; book: 2, results: 1")
    parser.add_argument("--budget", help="minutes for all pages of results; unlimited unless set")
    parser.add_argument("--parent", action="store_true", help=execute.PARENT)
    started = time.monotonic()
    try:
        options = parser.parse_args(arguments)
        if options.parent:
            execute.stop_with_parent()
        if options.target == "book" and (options.budget or options.tier != pages.QUICK):
            raise BookError("the book is built at the quick tier, without a budget")
        deadline = None if options.budget is None else started + seconds_of(options.budget)
        chosen = chosen_pages(options.root, options.tier, options.page)
        jobs = options.jobs if options.jobs is not None else 2 if options.target == "book" else 1
        status = run(options.root, options.target, options.tier, chosen, max(1, jobs), deadline)
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.monotonic() - started
    if options.target == "results":
        return status
    if status:
        print(f"build failed after {seconds:.0f} s", file=sys.stderr)
    else:
        index = options.root.resolve() / "_build" / "html" / "index.html"
        print(f"built in {seconds:.0f} s: {index}")
    return status


if __name__ == "__main__":
    sys.exit(main())
