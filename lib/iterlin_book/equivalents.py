"""Rows for definitions that were rewritten to the same effect.

``python -m iterlin_book.equivalents COMMIT`` prints, of each definition that some record reached
and whose own text differs from that of the commit, the row that lets it stand for the former one
(`iterlin.study.equivalents`). Why it may, and by which test that is shown, is for you to
say; what you leave out makes records stale.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import yaml
from iterlin.study import equivalents, origins, record_file

from iterlin_book import freshness
from iterlin_book.pages import one_line
from iterlin_book.restamp import NotProven, Trees


def rows(now, then, wanted):
    """(definition, digest as it is, as it was) of `Sources`, what others rest on first.

    wanted: digests that count. Rows that there are of these definitions are replaced; definitions
    that refer to each other are left out.
    """
    new, old = origins.library_of(now), origins.library_of(then)
    both = set(new.everything()) & set(old.everything())
    changed = {
        key
        for key in both
        if not key.name.startswith("#")
        and new.form(key) != old.form(key)
        and old.digest(key) in wanted
    }
    names = {f"{key.module}.{key.name}" for key in changed}
    others = [
        dict(row) for row in equivalents.rows(now.equivalents) if row["definition"] not in names
    ]
    others = yaml.safe_dump(others) if others else ""
    below = {key: (new.reached([key], rewritten=True) & changed) - {key} for key in changed}
    found, done = [], set()
    while ready := sorted(key for key in changed - done if below[key] <= done):
        # With those found so far standing for what they were.
        text = others + printed(found, because="-", shown="-")
        library = origins.library_of(now._replace(equivalents=text))
        found += [
            (f"{key.module}.{key.name}", library.written(key), old.digest(key)) for key in ready
        ]
        done |= set(ready)
    # One that mentions another module's definition by a new name is what it was.
    return [row for row in found if row[1] != row[2]]


def printed(found, because="", shown=""):
    """As YAML."""
    lines = []
    for definition, is_, was in found:
        lines += [f"- definition: {definition}", f'  is: "{is_}"', f'  was: "{was}"']
        lines += [f'  because: "{because}"', f'  shown by: "{shown}"']
    return "".join(f"{line}\n" for line in ["", *lines])


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.equivalents", description=__doc__)
    parser.add_argument("commit", help="in full: the library that the records are fresh by")
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    options = parser.parse_args(arguments)
    wanted = set()
    try:
        for path in freshness.recorded(options.root):
            named = json.loads(record_file.texts(path)["definitions"])["library"]
            wanted |= {digest for _, digest in named}
        with tempfile.TemporaryDirectory() as folder:
            then = origins.sources(Trees(options.root, folder).at(options.commit))
        print(printed(rows(origins.sources(options.root), then, wanted)), end="")
    except (NotProven, ValueError) as error:
        print(one_line(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
