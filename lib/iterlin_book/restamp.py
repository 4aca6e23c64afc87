"""Bring records to the present way of telling where they come from: ``make restamp``.

Only what is proven is written. Of each record: the tree of its own commit says, by that tree's own
rules, that the record is of it; what made the record has the same digests there and here; and the
parameters that it lacks, taken from the files of that tree, agree with what it holds. Whatever
cannot be proven is left as it is, and the reason is told.
"""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
import xarray as xr
from iterlin.study import origins, provenance, record_file, records

from iterlin_book import freshness
from iterlin_book.pages import BookError, one_line

# Run in the tree of a record's commit, with that tree's library.
_OWN_WORD = """
import json, sys
try:
    from iterlin.study import records
except ImportError:
    from iterlin import records
stale = {p: records.is_stale(records.load(e, t, p)) for p, e, t in json.load(sys.stdin)}
import iterlin
print(json.dumps([iterlin.__file__, stale]))
"""


class NotProven(Exception):
    """Why a record is left as it is."""


class Trees:
    """Trees of earlier commits, laid out in a folder."""

    def __init__(self, root, folder):
        self.root, self.folder = Path(root).resolve(), Path(folder)

    def at(self, commit):
        """The folder that holds the tree of a commit."""
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise NotProven(f"it was made in a tree that is no commit: {commit}")
        tree = self.folder / commit
        if not tree.exists():
            command = ["git", "-C", str(self.root), "archive", commit]
            archive = subprocess.run(command, capture_output=True)
            if archive.returncode:
                raise NotProven(f"there is no commit {commit} here")
            with tarfile.open(fileobj=BytesIO(archive.stdout)) as opened:
                opened.extractall(tree, filter="data")
        return tree

    def own_word(self, commit, found):
        """Path -> whether the record is stale in the tree of its commit, which decides itself."""
        tree = self.at(commit)
        library = tree / "lib"
        told = subprocess.run(
            [sys.executable, "-c", _OWN_WORD],
            input=json.dumps([[str(p.resolve()), e, t] for p, e, t in found]),
            cwd=tree,
            env={"PATH": "", "PYTHONPATH": str(library), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
        if told.returncode:
            reason = told.stderr.strip().splitlines()[-1:]
            raise NotProven(f"the library of {commit[:7]} cannot read it: {' '.join(reason)}")
        file, stale = json.loads(told.stdout)
        if not Path(file).is_relative_to(library.resolve()):
            raise NotProven(f"the library of {commit[:7]} was not the one that was asked")
        return stale


def restamp(root, trees):
    """(record's path, what became of it) for each record; see the module."""
    now = origins.sources(root)
    head = provenance.commit(root)
    for path in freshness.recorded(root):
        try:
            yield path, _restamp(path, trees, now, head)
        except NotProven as reason:
            yield path, f"left as it is: {reason}"


def _restamp(path, trees, now, head):
    dataset = _read(path)
    a = dataset.attrs
    if a.get("format") == records.FORMAT:
        lines = origins.changes(a, now)
        return f"stale: {'; '.join(lines)}" if lines else "fresh"
    if head.endswith("+changes"):
        raise NotProven("lib/ or book/ have changes that are not committed")
    attributes = proven(dataset, path, trees, now)
    attributes |= {"format": records.FORMAT, "restamped": f"{head}: moved, not changed"}
    stamped = dataset.copy()
    stamped.attrs = {name: value for name, value in a.items() if name != "modules"} | attributes
    records.write(stamped, path)
    return "restamped"


def proven(dataset, path, trees, now):
    """The attributes that say where a record comes from; raises NotProven."""
    a = dataset.attrs
    experiment, tier = a["experiment"], a["tier"]
    tree = trees.at(a["commit"])
    then = origins.sources(tree)
    if trees.own_word(a["commit"], [(path, experiment, tier)])[str(path.resolve())]:
        raise NotProven(f"it is stale in the tree of its own commit {a['commit'][:7]}")
    try:
        before, parameters = origins.of_page(experiment, then), json.loads(a["parameters"])
        measured = {}
        if before is None:
            (folder,) = origins.MEASURED
            before, measured = origins.of_code(then.measured[folder], then), {"measured": folder}
        else:
            parameters = completed(dataset, origins.parameters(experiment, tier, then))
    except (ValueError, SyntaxError) as error:
        raise NotProven(one_line(error)) from None
    attributes = {
        **before.attributes(),
        **measured,
        "parameters": json.dumps(parameters, sort_keys=True),
    }
    if lines := origins.changes(a | attributes, now):
        raise NotProven("; ".join(lines))
    return attributes


def completed(dataset, values):
    """The parameters of the record's tier at its commit, where they agree with all it holds."""
    a = dataset.attrs
    for name, value in json.loads(a["parameters"]).items():
        if name not in values or values[name] != value:
            raise NotProven(f"it ran with {name} = {value!r}, its files say {values.get(name)!r}")
    for name, value in values.items():
        singular = re.sub(r"ies$", "y", name) if name.endswith("ies") else name.removesuffix("s")
        if name in a and isinstance(value, str) and a[name] != value:
            raise NotProven(f"its attribute {name} is {a[name]!r}, its files say {value!r}")
        if isinstance(value, list) and singular in dataset.coords:
            held = np.sort(dataset[singular].values.astype(float))
            if not np.array_equal(held, np.sort(np.asarray(value, float))):
                raise NotProven(f"its axis {singular} is {held.tolist()}, its files say {value}")
    if "num_seeds" in values and values["num_seeds"] != dataset.sizes.get("seed"):
        raise NotProven(f"it has {dataset.sizes.get('seed')} seeds, not {values['num_seeds']}")
    return values


def _read(path):
    try:
        record_file.check_file(path)
        with xr.open_dataset(path, engine="h5netcdf") as opened:
            return opened.load().drop_encoding()
    except Exception as error:
        raise NotProven(f"it cannot be read: {one_line(error)}") from None


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="iterlin_book.restamp", description=__doc__.split(":")[0])
    parser.add_argument("--root", default=".", type=Path, help="the project's folder")
    options = parser.parse_args(arguments)
    counts = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for path, outcome in restamp(options.root, Trees(options.root, folder)):
                print(f"{path.parent.name} ({path.stem}): {outcome}", flush=True)
                word = outcome.partition(":")[0]
                counts[word] = counts.get(word, 0) + 1
    except BookError as error:
        print(error, file=sys.stderr)
        return 2
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "no records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
