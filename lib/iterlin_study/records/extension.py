"""More seeds for a record: those that it holds are taken from it instead of trained again.

A page asks for this by one statement, ``live = page.completed(live)``, before its statistics over
seeds. If there is a record of the same parameters, apart from the number of seeds, the page's grids
leave out its whole seeds (NaN), and that statement fills them in. Each part of a record keeps the
commit and the versions that it was made with.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from itertools import product

import numpy as np
import xarray as xr

SEEDS = "num_seeds"
# What a part of a record says of itself, beside its seeds.
PART = ("commit", "date", "device", "versions", "wall_time")

_left: frozenset[int] = frozenset()


def leave(seeds: Iterable[int]) -> None:
    """Train none of these seeds in this process from now on."""
    global _left
    _left = frozenset(seeds)


def whole_seeds(record: xr.Dataset, parameters: Mapping) -> list[int]:
    """Return the seeds of a record that a run of these parameters need not train.

    These are the seeds of which no run is missing. There are none if the record keeps no
    `diverged_at` of the runs that it lacks, if a parameter other than the number of seeds has
    changed, or if the record has all seeds that are asked for: then the run repeats it.
    """
    before = json.loads(record.attrs["parameters"])
    if SEEDS not in parameters or "seed" not in record.coords:
        return []
    if before | {SEEDS: 0} != dict(parameters) | {SEEDS: 0}:
        return []
    whole, unfinished = xr.ones_like(record.seed, dtype=bool), 0
    for name, variable in record.data_vars.items():
        if "diverged_at" in name and "seed" in variable.dims:
            rest = [dim for dim in variable.dims if dim != "seed"]
            whole = whole & variable.notnull().all(rest)
            unfinished += int(variable.isnull().sum())
    if unfinished != record.attrs["missing"]:
        return []
    asked = range(parameters[SEEDS])
    found = [int(seed) for seed in record.seed[whole.values].values if int(seed) in asked]
    return [] if len(found) == len(asked) else found


def unless_recorded(grid: Callable[..., xr.Dataset]) -> Callable[..., xr.Dataset]:
    """Make a function grid(problem, axes, make, ...) skip the seeds of `leave`.

    The variables of a skipped seed are NaN, but for its steps. A grid of such seeds alone trains
    the last one, so that its variables are known.
    """

    @wraps(grid)
    def some(problem, axes, make, **settings):
        wanted = list(axes.get("seed", ()))
        if not _left.intersection(wanted):
            return grid(problem, axes, make, **settings)
        rest = [seed for seed in wanted if seed not in _left] or wanted[-1:]
        found = grid(problem, {**axes, "seed": rest}, make, **settings)
        steps = [
            make(**dict(zip(axes, values, strict=True))).eval_steps
            for values in product(*axes.values())
        ]
        found = found.reindex(seed=wanted)
        found["step"] = found.step.dims, np.reshape(steps, found.step.shape)
        return found

    return some


def completed(live: xr.Dataset, record: xr.Dataset, seeds: Collection[int]) -> xr.Dataset:
    """Return the data set with the record's values of these seeds.

    In variables without the axis "seed" NaNs are replaced by the record's values, too: they are of
    a seed that was not trained.

    Raises ValueError naming a variable that the record lacks, or has in another form.
    """
    recorded = record.reindex(seed=live.seed.values)
    filled = {}
    for name, variable in live.data_vars.items():
        taken = live.seed.isin(list(seeds)) if "seed" in variable.dims else variable.isnull()
        if not taken.any():
            continue
        if name not in record or record[name].dims != variable.dims:
            raise ValueError(f"the record has no variable {name!r} over {variable.dims}")
        held = recorded[name]
        if held.shape != variable.shape:
            raise ValueError(f"{name!r} is {variable.shape} here and {held.shape} in the record")
        values = variable.variable.where(~taken.variable, held.variable).values
        # A grid that lacks runs counts in floating point: back to what the record counts in.
        if values.dtype.kind == "f" and not np.isnan(values).any():
            values = values.astype(record[name].dtype)
        filled[name] = variable.dims, values, variable.attrs
    return live.assign(filled)


def parts(record: xr.Dataset, seeds: Iterable[int]) -> list[dict]:
    """Return the parts that these seeds of a record were made in, each with its seeds and `PART`.

    A part of which only some seeds are taken counts with a proportional wall time.
    """
    seeds = set(seeds)
    a = record.attrs
    found = json.loads(a.get("parts", "[]")) or [part_of(record, record.seed.values.tolist())]
    kept = []
    for part in found:
        if taken := sorted(seeds.intersection(part["seeds"])):
            share = len(taken) / len(part["seeds"])
            kept.append(part | {"seeds": taken, "wall_time": part["wall_time"] * share})
    return kept


def part_of(dataset: xr.Dataset, seeds: Iterable[int]) -> dict:
    """Return what a record says of seeds that were made in one go."""
    said = {name: dataset.attrs[name] for name in PART}
    said |= {"versions": json.loads(said["versions"]), "wall_time": float(said["wall_time"])}
    return said | {"seeds": [int(seed) for seed in seeds]}
