"""Build the book or run experiments: ``python -m iterlin_book.build book`` or ``results``.

Everything is checked before anything runs. Then the Snakefile runs the pages whose outputs are out
of date, on this machine or, by a profile of Snakemake's, on a cluster. Only one build runs in a
checkout at a time. The same command goes on where an earlier one stopped.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from iterlin_study.records import comparison, environment, records
from iterlin_study.report import claims

from iterlin_book import execute, freshness, pages, states, xla
from iterlin_book.pages import BookError

SNAKEFILE = Path(__file__).resolve().parents[2] / "Snakefile"
PATIENCE = 10  # seconds in which notebooks may end by themselves after an interrupt
# In a process that ends with this one, however this one ends.
SNAKEMAKE = """\
from iterlin_book.execute import stop_with_parent
stop_with_parent()
from snakemake.cli import main
main()
"""


@contextmanager
def only_build(root):
    """Hold the project's build lock; the system frees it however this process ends."""
    path = root / "_build" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = path.read_text().strip()
            raise BookError(
                f"another build is running here (process {other}): wait for it or stop it"
            ) from None
        path.write_text(str(os.getpid()))
        yield


def check_records(root):
    """Raise BookError for a damaged record or ledger: pages would fail on it, maybe after hours."""
    try:
        if (ledger := root / "book" / "claims.yml").is_file():
            claims.load_claims(ledger)
        for path in freshness.records(root):
            if path.stem == pages.QUICK:
                comparison.read(path)
            else:
                records.load(path.parent.name, path.stem, path)
    except ValueError as error:
        problem = pages.one_line(error)
        raise BookError(f"{problem} (correct, restore or remove the file)") from None


def run(root, tier, chosen, jobs=None, deadline=None, shares=1, profile=None, book=False):
    """Run the pages that are out of date; return the exit status. book: render them as well.

    jobs: pages at a time; deadline: Unix time at which runs stop; shares: of each page's runs;
    profile: of Snakemake, by its name in profiles/ or wherever Snakemake finds it.

    Raises BookError for a mistake in what is asked for, or in the files that it takes.
    """
    root = Path(root).resolve()
    check_records(root)
    digests = {page: execute.prepare(root, page, tier)[2] for page in chosen}
    arguments = _where(root, profile, jobs)
    if tier == pages.QUICK:  # several at a time, with the same results everywhere
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if deadline is not None:
        os.environ[environment.DEADLINE] = f"{deadline:.0f}"
    with only_build(root):
        waiting = {
            page: digest
            for page, digest in digests.items()
            if not pages.executed(root, page, tier, digest).is_file()
        }
        for path in (path for page in chosen for path in states.notes(root, tier, page)):
            path.unlink()
        status = states.DONE
        if waiting:
            settings = {"tier": tier, "shares": shares, "pages": waiting}
            told = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
            status = _snakemake(root, [*arguments, "--config", *told])
        if book:
            from iterlin_book import render  # slow to import

            return status or render.render(root)
    if status == states.INTERRUPTED:
        return status
    outcomes = {
        page: states.of(root, tier, page) if page in waiting else ("done earlier", None)
        for page in chosen
    }
    print(states.summary(outcomes, tier), flush=True)
    found = {state for state, _ in outcomes.values()}
    if "failed" in found:
        return states.FAILED
    return states.DONE if found <= {"done", "done earlier"} else states.PARTIAL


def _where(root, profile, jobs):
    """Return Snakemake's arguments for where, and how many at a time, pages run."""
    os.environ.setdefault("PYTHONHASHSEED", "0")
    if profile is None:
        jobs = max(1, jobs or 1)
        for variable in xla.THREADS:
            os.environ.setdefault(variable, str(max(1, len(os.sched_getaffinity(0)) // jobs)))
        # The greedy scheduler keeps to the order of priority.
        return ["--cores", str(jobs), "--scheduler", "greedy", "--quiet", "all"]
    folder = root / "profiles" / profile
    if folder.is_dir():
        executor = pages.load_yaml(folder / "config.yaml").get("executor", "local")
        plugin = f"snakemake_executor_plugin_{executor.replace('-', '_')}"
        if executor != "local" and find_spec(plugin) is None:
            raise BookError(
                f"the profile '{profile}' needs {plugin.replace('_', '-')}: "
                "install it with pip install -e '.[cluster]'"
            )
    arguments = ["--profile", str(folder if folder.is_dir() else profile)]
    return arguments + ([] if jobs is None else ["--jobs", str(jobs)])


def _snakemake(root, arguments):
    """Run Snakemake and return its exit status, or that of an interrupt."""
    arguments += ["--snakefile", str(SNAKEFILE), "--directory", str(root)]
    # The lock is `only_build`. The name of every output has the digest of its content, so that
    # nothing depends on time stamps; what a killed job left is made again.
    arguments += ["--nolock", "--rerun-incomplete", "--keep-going", "--rerun-triggers", "params"]
    process = subprocess.Popen([sys.executable, "-c", SNAKEMAKE, *arguments])
    try:
        return process.wait()
    except KeyboardInterrupt:
        # A Ctrl-C in a terminal reaches Snakemake and its jobs, too. A signal to this process alone
        # does not: they end with it.
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        process.kill()
        return states.INTERRUPTED


def chosen_pages(root, tier, names):
    """Return the named pages, or all that have the tier in their order of priority."""
    if names:
        return list(dict.fromkeys(pages.find(root, name) for name in names))
    everything = [page for page in pages.toc(root) if pages.has_code(root, page)]
    chosen = [page for page in everything if tier in pages.tiers(root, page)]
    if not chosen:
        known = sorted({name for page in everything for name in pages.tiers(root, page)})
        raise BookError(f"no page has the tier '{tier}' (tiers: {', '.join(known)})")
    return pages.by_priority(root, chosen)


def main(arguments=None):
    parser = execute.parser("build", __doc__)
    parser.add_argument("target", choices=["book", "results"])
    parser.add_argument("--page", action="append", help="a page to run; all of the tier unless set")
    parser.add_argument("--jobs", type=int, help="pages at a time; book: 2, results: 1")
    parser.add_argument("--shares", type=int, default=1, help="jobs among which a page's runs go")
    parser.add_argument("--profile", help="of Snakemake: slurm, or one of your own")
    parser.add_argument("--budget", type=float, help="minutes for all pages; unlimited unless set")
    started = time.time()
    options = parser.parse_args(arguments)
    if options.parent:
        execute.stop_with_parent()
    book = options.target == "book"
    try:
        if book and (options.budget is not None or options.tier != pages.QUICK):
            raise BookError("the book is built at the quick tier, without a budget")
        if options.budget is not None and not options.budget > 0:
            raise BookError(f"budget must be a positive number of minutes, not {options.budget}")
        if options.shares < 1:
            raise BookError(f"shares must be 1 or more, not {options.shares}")
        status = run(
            options.root,
            options.tier,
            chosen_pages(options.root, options.tier, options.page),
            jobs=2 if book and options.jobs is None else options.jobs,
            deadline=options.budget and started + 60 * options.budget,
            shares=options.shares,
            profile=options.profile,
            book=book,
        )
    except (BookError, OSError) as error:  # OSError: a folder that cannot be written to
        print(error, file=sys.stderr)
        return states.REFUSED
    except KeyboardInterrupt:
        status = states.INTERRUPTED
    if status == states.INTERRUPTED:
        print("interrupted: run the same command again to go on", file=sys.stderr)
    elif book and status:
        print(f"build failed after {time.time() - started:.0f} s", file=sys.stderr)
    elif book:
        index = options.root.resolve() / "_build" / "html" / "index.html"
        print(f"built in {time.time() - started:.0f} s: {index}")
    return status


if __name__ == "__main__":
    sys.exit(main())
