"""Recorded runs: xarray data sets with named dimensions and the origin of every number.

A record is one file, data/results/<experiment>/<tier>.nc (quick runs, which every build makes
anew, go to _build/records/). It carries all parameters of its page, commit, versions, device, wall
time and date of the run, digests of the rules that judge it, and how many runs it lacks. Whether
its page's quick run still gives what it gave then, `comparison` tells.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import xarray as xr
from iterlin.linearise.precision import matmul_precision
from iterlin.linearise.validation import check_one_of
from iterlin.training.files import atomic_write
from iterlin.training.loop import OutOfTime

from iterlin_study.records import environment, experiment_pages, extension, provenance, record_file
from iterlin_study.records.experiment_pages import TIERS

FORMAT = "iterlin record 3"


class NotWritten(OSError):
    """A record could not be written; its runs are kept where those of unfinished ones are."""


def path_of(experiment: str, tier: str) -> Path:
    """Return the path of a record. Raises ValueError for an unknown tier."""
    check_one_of("tier", tier, TIERS)
    root = provenance.project_root()
    folder = root / "_build" / "records" if tier == "quick" else root / "data" / "results"
    return folder / experiment / f"{tier}.nc"


def save(
    dataset: xr.Dataset,
    experiment: str,
    tier: str,
    *,
    parameters: Mapping,
    wall_time: float,
    data_note: str = "",
    missing: int = 0,
    earlier: Sequence[Mapping] = (),
    path: Path | None = None,
) -> xr.Dataset:
    """Write a record, whole or not at all, and return it with its provenance as attributes.

    wall_time: seconds. data_note names the data set. missing: runs that have not been finished;
    with any, the record is partial. earlier: the parts (`extension.parts`) of a record whose seeds
    this one has taken over; wall_time is that of the others.

    Raises ValueError for what `load` would refuse, NotWritten if the file cannot be written. A
    process that has only a share of the runs records nothing: ShareDone if it has trained them all,
    and OutOfTime if it may not have.
    """
    if share := environment.share():
        if environment.out_of_time():
            raise OutOfTime("{}: the deadline came before share {}/{}".format(experiment, *share))
        raise environment.ShareDone("all runs of share {}/{} are kept".format(*share))
    stamped = dataset.assign_attrs(
        format=FORMAT,
        experiment=experiment,
        tier=tier,
        parameters=json.dumps(experiment_pages.plain(parameters)),
        commit=provenance.commit(),
        versions=json.dumps(provenance.versions()),
        device=provenance.device(),
        products=matmul_precision(),
        data=data_note,
        missing=int(missing),
        wall_time=float(wall_time),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    if earlier:
        before = {seed for part in earlier for seed in part["seeds"]}
        new = [seed for seed in stamped.seed.values.tolist() if seed not in before]
        made = [*earlier, extension.part_of(stamped, new)]
        stamped.attrs["parts"] = json.dumps(made, sort_keys=True)
        stamped.attrs["wall_time"] = sum(part["wall_time"] for part in made)
    compressed = {
        name: {"zlib": True} for name, v in stamped.variables.items() if v.dtype.kind in "fiu"
    }
    target = path_of(experiment, tier) if path is None else Path(path)
    try:
        with atomic_write(target) as partial:
            stamped.to_netcdf(partial, engine="netcdf4", encoding=compressed)
            record_file.check(partial)
    except (OSError, RuntimeError) as error:  # netCDF says of a full disk 'HDF error'
        reason = getattr(error, "strerror", None) or f"{error} (is the disk full?)"
        raise NotWritten(f"{target} could not be written: {reason}") from error
    return stamped


def load(experiment: str, tier: str, path: Path | None = None) -> xr.Dataset:
    """Read a record into memory.

    Raises FileNotFoundError if it has not been run, ValueError if the file is damaged, not a record
    (`record_file`), or not of this experiment and tier; both name the file.
    """
    source = path_of(experiment, tier) if path is None else Path(path)
    if not source.exists():
        raise FileNotFoundError(f"no record of {experiment} at tier {tier}: {source} is missing")
    state = source.stat()
    try:
        dataset = _read(source, state.st_ino, state.st_mtime_ns, state.st_size).copy(deep=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{source} is damaged or not a record: {reason}") from error
    if dataset.attrs.get("format") != FORMAT:
        raise ValueError(f"{source} is not a record of this library (no '{FORMAT}' stamp)")
    found = dataset.attrs["experiment"], dataset.attrs["tier"]
    if found != (experiment, tier):
        raise ValueError(f"{source} holds {found[0]} at tier {found[1]}, not {experiment}/{tier}")
    return dataset


# A page looks at a record many times, and its claims at all of them. `state` is the file's.
@lru_cache(maxsize=64)
def _read(source: Path, *state: int) -> xr.Dataset:
    record_file.check(source)
    return xr.load_dataset(source, engine="netcdf4")


def tiers(experiment: str) -> dict[str, xr.Dataset]:
    """Return the records of an experiment, by tier, the highest first."""
    return {t: load(experiment, t) for t in reversed(TIERS[1:]) if path_of(experiment, t).exists()}


def best(experiment: str) -> xr.Dataset | None:
    """Return the complete record of the highest tier, else the highest there is, or None."""
    found = list(tiers(experiment).values())
    complete = [record for record in found if not missing_runs(record)]
    return next(iter(complete + found), None)


def missing_runs(dataset: xr.Dataset) -> int:
    """Return how many runs were not finished when the record was written; 0 if whole."""
    return int(dataset.attrs.get("missing", 0))


def partial_note(dataset: xr.Dataset) -> str:
    """Return 'partial: 7 runs missing', or nothing for a whole record."""
    count = missing_runs(dataset)
    return f"partial: {count} run{'s' if count > 1 else ''} missing" if count else ""


def caption(dataset: xr.Dataset) -> str:
    """Return one line for a figure: tier, seeds, cost, device, date; whether it is partial.

    For a quick run, which every build makes anew, only the tier and the seeds.
    """
    a = dataset.attrs
    seeds = f"{dataset.sizes['seed']} seeds, " if "seed" in dataset.sizes else ""
    if a["tier"] == "quick":
        return f"quick tier, {seeds}run while this page was built"
    minutes = a["wall_time"] / 60
    cost = f"{minutes:.0f} min" if minutes >= 1.5 else f"{a['wall_time']:.0f} s"
    partial = f"; {note}" if (note := partial_note(dataset)) else ""
    made = f"{devices(a)}, {dates(a)}"
    return f"{a['tier']} tier: {seeds}{cost} on {made}{partial}"


def devices(attributes: Mapping) -> str:
    """Return the devices that a record was made on."""
    return " and ".join(dict.fromkeys(part["device"] for part in parts(attributes)))


def dates(attributes: Mapping) -> str:
    """Return the date of a record, or the first and the last date of its parts."""
    days = sorted({part["date"] for part in parts(attributes)})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def parts(attributes: Mapping) -> list[Mapping]:
    """Return the parts of a record (`extension.parts`), or itself if it was made in one go."""
    return json.loads(attributes.get("parts", "[]")) or [attributes]
