"""Run the pipeline of the Snakefile: ``python -m iterlin_book.build book`` or ``results``.

It adds what Snakemake leaves to its caller: one build at a time, everything checked before anything
runs, threads shared out between notebooks, and a summary.
"""

import fcntl
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from iterlin_book import execute, pages
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


def run(root, target, tier, chosen, jobs):
    """Check everything, run Snakemake in this process and return its exit status."""
    root = Path(root).resolve()
    for page in chosen:
        execute.prepare(root, page, tier)
    threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))
    for variable in _THREADS:
        os.environ.setdefault(variable, threads)
    os.environ.setdefault("PYTHONHASHSEED", "0")
    if tier == pages.QUICK:  # several at a time, with the same results everywhere
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with only_build(root):
        return _snakemake(root, target, tier, chosen, jobs)


def _snakemake(root, target, tier, chosen, jobs):
    from snakemake.cli import main  # takes a second: after the checks

    arguments = [target, "--snakefile", str(SNAKEFILE), "--directory", str(root)]
    # Locks are this module's. File names carry digests of their content, so nothing depends on
    # time stamps; what a killed job left is made again.
    arguments += ["--cores", str(jobs), "--nolock", "--rerun-incomplete", "--keep-going"]
    arguments += ["--rerun-triggers", "params", "code", "--quiet", "all"]
    arguments += ["--config", f"tier={tier}", f"pages={','.join(chosen)}"]
    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def chosen_pages(root, tier, names):
    """The pages meant by names, or all that can run at the tier."""
    if names:
        return [pages.find(root, name) for name in names]
    everything = [page for page in pages.toc(root) if pages.read(root, page) is not None]
    chosen = [page for page in everything if tier in pages.tiers(root, page)]
    if not chosen:
        known = sorted({name for page in everything for name in pages.tiers(root, page)})
        raise BookError(f"no page has the tier '{tier}' (tiers: {', '.join(known)})")
    return chosen


def main(arguments=None):
    parser = execute.Parser(prog="iterlin_book.build", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=["book", "results"])
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    parser.add_argument("--tier", default=pages.QUICK)
    parser.add_argument("--page", action="append", help="a page to run; all of the tier unless set")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks run at the same time")
    started = time.monotonic()
    try:
        options = parser.parse_args(arguments)
        chosen = chosen_pages(options.root, options.tier, options.page)
        status = run(options.root, options.target, options.tier, chosen, max(1, options.jobs))
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.monotonic() - started
    if status:
        print(f"build failed after {seconds:.0f} s", file=sys.stderr)
    elif options.target == "book":
        index = options.root.resolve() / "_build" / "html" / "index.html"
        print(f"built in {seconds:.0f} s: {index}")
    return status


if __name__ == "__main__":
    sys.exit(main())
