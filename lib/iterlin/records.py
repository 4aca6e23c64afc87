"""Recorded runs: xarray data sets with named dimensions and the provenance of every number.

A record is one file, data/results/<experiment>/<tier>.nc (quick runs, which every build makes
anew, go to _build/records/). It carries the parameters, commit, hashes of the numerics and of the
page's code, versions, device, wall time and date of the run that made it, and how many runs it
lacks.
"""

import json
import os
import tempfile
import time
from datetime import UTC, datetime
from functools import lru_cache
from numbers import Integral
from pathlib import Path

import numpy as np
import xarray as xr

from iterlin import provenance
from iterlin.precision import product_precision
from iterlin.validation import one_of

TIERS = ("quick", "laptop", "gpu", "paper")
FORMAT = "iterlin record 1"

# As the run began: a file edited while it computes is not what it came from.
_STARTED = time.perf_counter()
_SOURCES = provenance.sources()
_PAGES = provenance.pages()


def path_of(experiment: str, tier: str) -> Path:
    """Where the record lies; ValueError lists the tiers if there is no such one."""
    one_of("tier", tier, TIERS)
    root = provenance.project_root()
    folder = root / "_build" / "records" if tier == "quick" else root / "data" / "results"
    return folder / experiment / f"{tier}.nc"


def save(
    dataset: xr.Dataset,
    experiment: str,
    tier: str,
    *,
    parameters: dict,
    modules: list[str],
    data_note: str = "",
    wall_time: float | None = None,
    missing: int = 0,
    path: Path | None = None,
) -> xr.Dataset:
    """Write a record, whole or not at all, and return it with its provenance as attributes.

    modules: the library's modules whose numerics it came from (their imports are followed).
    wall_time: seconds, by default since the library was loaded. data_note names the data set.
    missing: runs that have not been finished; with any, the record is partial.
    """
    one_of("tier", tier, TIERS)
    if isinstance(missing, bool) or not isinstance(missing, Integral) or missing < 0:
        raise ValueError(f"missing must be a non-negative integer, got {missing!r}")
    seconds = time.perf_counter() - _STARTED if wall_time is None else wall_time
    stamped = dataset.assign_attrs(
        format=FORMAT,
        experiment=experiment,
        tier=tier,
        parameters=json.dumps(parameters, sort_keys=True),
        modules=json.dumps(sorted(modules)),
        numerics=provenance.source_hash(modules, _SOURCES),
        commit=provenance.commit(),
        versions=json.dumps(provenance.versions()),
        device=provenance.device(),
        products=product_precision(),
        data=data_note,
        missing=int(missing),
        wall_time=float(seconds),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    if (page_code := provenance.page_code(experiment, _PAGES)) is not None:
        stamped.attrs["page_code"] = page_code
    target = path_of(experiment, tier) if path is None else Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    compressed = {
        name: {"zlib": True} for name, v in dataset.variables.items() if v.dtype.kind in "fiu"
    }
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=".nc")
    os.close(handle)
    try:
        stamped.to_netcdf(partial, engine="h5netcdf", encoding=compressed)
        # On disk before it takes the name: a crash leaves the old record or the new one.
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return stamped


def load(experiment: str, tier: str, path: Path | None = None) -> xr.Dataset:
    """Read a record into memory.

    Raises FileNotFoundError if it has not been run, ValueError if the file is damaged or not one
    of this experiment and tier; both name the file.
    """
    source = path_of(experiment, tier) if path is None else Path(path)
    if not source.exists():
        raise FileNotFoundError(f"no record of {experiment} at tier {tier}: {source} is missing")
    state = source.stat()
    try:
        dataset = _read(source, state.st_ino, state.st_mtime_ns, state.st_size).copy(deep=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{source} is damaged or not a record: {reason}") from error
    if dataset.attrs.get("format") != FORMAT:
        raise ValueError(f"{source} was not written by iterlin.records (no '{FORMAT}' stamp)")
    found = dataset.attrs["experiment"], dataset.attrs["tier"]
    if found != (experiment, tier):
        raise ValueError(f"{source} holds {found[0]} at tier {found[1]}, not {experiment}/{tier}")
    return dataset


# A page looks at a record many times, and its claims at all of them. `state` is the file's.
@lru_cache(maxsize=64)
def _read(source: Path, *state: int) -> xr.Dataset:
    with xr.open_dataset(source, engine="h5netcdf") as opened:
        return opened.load()


def tiers(experiment: str) -> dict[str, xr.Dataset]:
    """The records that there are of an experiment, by tier, the highest first."""
    return {t: load(experiment, t) for t in reversed(TIERS[1:]) if path_of(experiment, t).exists()}


def best(experiment: str) -> xr.Dataset | None:
    """The record of the highest tier that is complete, else of the highest there is, or None."""
    found = list(tiers(experiment).values())
    complete = [record for record in found if not missing_runs(record)]
    return next(iter(complete + found), None)


def is_stale(dataset: xr.Dataset) -> bool:
    """Whether the numerics or the page's code that the record came from have changed since."""
    a = dataset.attrs
    try:
        texts = tuple(sorted(provenance.sources().items()))
        current = _source_hash(tuple(json.loads(a["modules"])), texts)
    except ValueError:  # a module it came from is gone
        return True
    if current != a["numerics"]:
        return True
    return "page_code" in a and a["page_code"] != provenance.page_code(a["experiment"])


@lru_cache(maxsize=64)
def _source_hash(modules: tuple[str, ...], texts: tuple[tuple[str, str], ...]) -> str:
    return provenance.source_hash(modules, dict(texts))


def missing_runs(dataset: xr.Dataset) -> int:
    """How many of its runs had not been finished when the record was written; 0 if whole."""
    return int(dataset.attrs.get("missing", 0))


def partial_note(dataset: xr.Dataset) -> str:
    """'partial: 7 runs missing', or nothing for a whole record."""
    count = missing_runs(dataset)
    return f"partial: {count} run{'s' if count > 1 else ''} missing" if count else ""


def caption(dataset: xr.Dataset) -> str:
    """One line for a figure: tier, seeds, cost, device, date; whether it is partial or stale.

    Of a quick run, which every build makes anew, only the tier and the seeds.
    """
    a = dataset.attrs
    if a["tier"] == "quick":
        count = f", {dataset.sizes['seed']} seeds" if "seed" in dataset.sizes else ""
        return f"quick tier{count}, run while this page was built"
    seeds = f"{dataset.sizes['seed']} seeds, " if "seed" in dataset.sizes else ""
    minutes = a["wall_time"] / 60
    cost = f"{minutes:.0f} min" if minutes >= 1.5 else f"{a['wall_time']:.0f} s"
    partial = f"; {note}" if (note := partial_note(dataset)) else ""
    stale = "; STALE: its code has changed since" if is_stale(dataset) else ""
    return f"{a['tier']} tier: {seeds}{cost} on {a['device']}, {a['date']}{partial}{stale}"


def interval_variable(interval) -> tuple[str, np.ndarray]:
    """An `intervals.Interval` of a scalar statistic as a variable over ("bound",)."""
    return "bound", np.asarray([float(value) for value in interval])
