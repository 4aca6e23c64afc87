"""Build the book or run experiments: ``python -m iterlin_book.build book`` or ``results``.

Both are the pipeline of the Snakefile, on this machine or, by a profile of Snakemake's, on a
cluster. One build at a time, everything checked before anything runs, threads shared out between
notebooks. Results run in their order of priority, within a time if one is set; the same command
goes on where this one stopped.
"""

import fcntl
import json
import math
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import yaml
from iterlin.study import environment

from iterlin_book import execute, freshness, pages, processes, states
from iterlin_book.pages import BookError

SNAKEFILE = Path(__file__).resolve().parents[2] / "Snakefile"
# NPROC sizes the thread pools of XLA on the CPU, the others those of numpy and scipy.
_THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PATIENCE = 10  # seconds for notebooks to end by themselves after an interrupt


class Request(NamedTuple):
    """What is to be made. jobs: notebooks at a time, None for what the target or the profile says;
    deadline: by the clock that nobody sets, `time.monotonic`; shares: of each page's runs; profile:
    of Snakemake's, by its name in profiles/ or wherever Snakemake finds it."""

    target: str
    tier: str
    chosen: list[str]
    jobs: int | None = None
    deadline: float | None = None
    shares: int = 1
    profile: str | None = None


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


def run(root, request):
    """Check everything, make what is asked for and return the exit status.

    Raises BookError for what could not run to its end.
    """
    root = Path(root).resolve()
    check_places(root, request.chosen, request.tier)
    profile = check_profile(root, request.profile)
    freshness.check_records(root)
    digests = {page: execute.prepare(root, page, request.tier)[2] for page in request.chosen}
    # The executed notebooks of an earlier build, as far as they are there.
    outputs = {
        page: pages.executed(root, page, request.tier, digest) for page, digest in digests.items()
    }
    default = 2 if request.target == "book" else 1
    if profile is None:
        jobs = max(1, default if request.jobs is None else request.jobs)
        threads = str(max(1, len(os.sched_getaffinity(0)) // jobs))
        for variable in _THREADS:
            os.environ.setdefault(variable, threads)
        # This scheduler keeps to the order of priority.
        arguments = ["--cores", str(jobs), "--scheduler", "greedy", "--quiet", "all"]
    else:
        arguments = ["--profile", str(profile)]
        arguments += [] if request.jobs is None else ["--jobs", str(request.jobs)]
    os.environ.setdefault("PYTHONHASHSEED", "0")
    if request.tier == pages.QUICK:  # several at a time, with the same results everywhere
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with only_build(root):
        pages.drop_damaged(root, list(outputs.values()))
        if request.target == "results":
            return _results(root, request, outputs, digests, arguments)
        told = _configured(digests=digests, pages=request.chosen)
        return _snakemake(root, ["book", *arguments, *told])


def check_places(root, chosen, tier):
    """Raises BookError for a folder that cannot be written to."""
    for page in chosen:
        execute.check_places(root, page, tier)
    # Snakemake keeps files in the project's folder and in the home.
    for folder in (root, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")):
        pages.require_writable(folder)


def check_profile(root, name):
    """The folder of a profile, or its name where it is not the project's; raises BookError for one
    whose executor is not installed."""
    if name is None:
        return None
    folder = root / "profiles" / name
    if not folder.is_dir():
        return name
    executor = yaml.safe_load((folder / "config.yaml").read_text("utf8")).get("executor", "local")
    plugin = f"snakemake_executor_plugin_{executor.replace('-', '_')}"
    if executor != "local" and find_spec(plugin) is None:
        raise BookError(
            f"the profile '{name}' needs {plugin.replace('_', '-')}: "
            "install it with pip install -e '.[cluster]'"
        )
    return folder


def _configured(**values):
    """Arguments of Snakemake that tell the Snakefile so."""
    return ["--config", *(f"{name}={json.dumps(value)}" for name, value in values.items())]


def _results(root, request, outputs, digests, arguments):
    """Run the pages that are not done, print a summary and return the exit status."""
    tier, waiting = request.tier, [page for page, path in outputs.items() if not path.is_file()]
    for page in request.chosen:
        states.forget(root, tier, page)
    if request.deadline is not None:
        told = time.time() + request.deadline - time.monotonic()
        os.environ[environment.DEADLINE] = f"{told:.0f}"
    if waiting:
        told = _configured(tier=tier, pages=waiting, shares=request.shares, digests=digests)
        if _snakemake(root, ["results", *arguments, *told]) == states.INTERRUPTED:
            return states.INTERRUPTED
    outcomes = {
        page: states.of(root, tier, page) if page in waiting else (states.EARLIER, None)
        for page in request.chosen
    }
    print(states.summary(outcomes, tier), flush=True)
    return states.exit_status([state for state, _ in outcomes.values()])


def _snakemake(root, arguments):
    """Run Snakemake in this process and return its exit status, or that of an interrupt."""
    arguments += ["--snakefile", str(SNAKEFILE), "--directory", str(root)]
    # Locks are this module's. File names carry digests of their content, so nothing depends on
    # time stamps; what a killed job left is made again.
    arguments += ["--nolock", "--rerun-incomplete", "--keep-going"]
    arguments += ["--rerun-triggers", "params", "code"]
    with _interrupts() as interrupts:
        from snakemake.cli import main  # takes a second: after the checks

        try:
            main(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return states.INTERRUPTED if interrupts else status


@contextmanager
def _interrupts():
    """A list of the interrupts meanwhile. Jobs that go on after one, as a terminal's reaches them
    and another does not, end with this process after a while."""
    found, before = [], signal.getsignal(signal.SIGINT)

    def interrupted(number, frame):
        found.append(number)
        end = threading.Timer(_PATIENCE, os._exit, [states.INTERRUPTED])
        end.daemon = True
        end.start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)


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
    parser = processes.Parser(prog="iterlin_book.build", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=["book", "results"])
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    parser.add_argument("--tier", default=pages.QUICK)
    parser.add_argument("--page", action="append", help="a page to run; all of the tier unless set")
    parser.add_argument("--jobs", type=int, help="notebooks at a time; book: 2, results: 1")
    parser.add_argument("--shares", type=int, default=1, help="jobs among which a page's runs go")
    parser.add_argument("--profile", help="of Snakemake: slurm, or one of your own")
    parser.add_argument("--budget", help="minutes for all pages of results; unlimited unless set")
    parser.add_argument("--parent", action="store_true", help=processes.PARENT)
    started = time.monotonic()
    try:
        options = parser.parse_args(arguments)
        if options.parent:
            processes.stop_with_parent()
        if options.target == "book" and (options.budget or options.tier != pages.QUICK):
            raise BookError("the book is built at the quick tier, without a budget")
        deadline = None if options.budget is None else started + seconds_of(options.budget)
        chosen = chosen_pages(options.root, options.tier, options.page)
        if options.shares < 1:
            raise BookError(f"shares must be 1 or more, not {options.shares}")
        asked = options.target, options.tier, chosen, options.jobs, deadline
        status = run(options.root, Request(*asked, options.shares, options.profile))
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        status = states.INTERRUPTED
    if status == states.INTERRUPTED:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return status
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
