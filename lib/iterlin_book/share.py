"""Train a share of one page's runs: ``python -m iterlin_book.share few_updates 3/8 --tier gpu``.

The page runs as ever, up to where it would record its runs; of those it trains every eighth, from
the third on, and keeps them in the run store (`study.environment`). The process that then runs
the page finds them there.
"""

import os
import sys
from pathlib import Path

from iterlin.study import environment

from iterlin_book import execute, pages, processes
from iterlin_book.pages import BookError
from iterlin_book.states import REFUSED

# A page with this in its code keeps its runs, so that other processes find them.
_KEEPS_RUNS = "runs.store("


def keeps_runs(root, page, tier):
    """Whether a page's runs at the tier can be shared out between processes."""
    cells = pages.code_cells(pages.read(root, page))
    return tier != pages.QUICK and any(_KEEPS_RUNS in cell.source for cell in cells)


def stamp_of(root, page, tier, digest, share):
    """The file that says that share (i, n) of the page's runs is kept."""
    return Path(root) / "_build" / "shares" / tier / f"{page}.{digest}{_part(share)}"


def _part(share):
    return ".{}-of-{}".format(*share)


def train(root, page, tier, share, prepared, expected=None):
    """Train share (i, n) of the runs of a page, as `execute.prepare` found it, set its stamp, and
    say so."""
    notebook, values, digest = prepared
    execute.require_same(page, digest, expected)
    partial = execute.partial_path(root, page, tier, _part(share))
    os.environ[environment.SHARE] = "{}/{}".format(*share)
    echo = execute.Echo("{} {}/{}".format(page, *share))
    try:
        execute.run(root, page, notebook, values, partial, echo)
    except environment.ShareDone as done:
        partial.unlink(missing_ok=True)
        pages.write_atomically(stamp_of(root, page, tier, digest, share), "")
        return str(done)
    raise BookError(f"{page}: records nothing, so that a share of its runs has no end")


def main(arguments=None):
    parser = processes.parser_of("share", __doc__)
    parser.add_argument("share", help="i/n: the i-th of n shares of its runs")
    try:
        options = parser.parse_args(arguments)
        if options.parent:
            processes.stop_with_parent()
        page = pages.find(options.root, options.page)
        asked = options.root, page, options.tier
        execute.check_places(*asked)
        prepared = execute.prepare(*asked)  # nothing is announced that cannot start
        if not keeps_runs(*asked):
            raise BookError(f"{page} ({options.tier}): keeps no runs that could be shared out")
        share = environment.parse(options.share)
    except (BookError, ValueError) as error:
        pages.say(error, error=True)
        return REFUSED
    return processes.noted(
        *asked, _part(share), lambda: train(*asked, share, prepared, options.digest)
    )


if __name__ == "__main__":
    sys.exit(main())
