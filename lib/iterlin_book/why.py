"""Why a record is stale: ``python -m iterlin_book.why xor`` names what has changed since."""

import argparse
import sys
from pathlib import Path

from iterlin.study import origins, records

from iterlin_book import freshness
from iterlin_book.pages import BookError, one_line


def reasons(root, experiments):
    """(record's path, what has changed since it was made) for each record of the experiments."""
    found = [p for p in freshness.recorded(root) if not experiments or p.parent.name in experiments]
    missing = set(experiments) - {path.parent.name for path in found}
    if missing:
        there = sorted({path.parent.name for path in freshness.recorded(root)})
        raise BookError(f"no record of {', '.join(sorted(missing))} (records: {', '.join(there)})")
    now = origins.sources(root)
    for path in found:
        try:
            record = records.load(path.parent.name, path.stem, path)
        except ValueError as error:
            raise BookError(one_line(error)) from None
        yield path, origins.changes(record.attrs, now)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.why", description=__doc__)
    parser.add_argument("experiments", nargs="*", metavar="experiment", help="all without any")
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    options = parser.parse_args(arguments)
    try:
        for path, lines in reasons(options.root, options.experiments):
            print(f"{path.parent.name} ({path.stem}): {'stale' if lines else 'fresh'}")
            for line in lines:
                print(f"    {line}")
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
