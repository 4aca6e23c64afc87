"""Does an experiment's quick run give today what it gave when its record was made?

Beside each record lies quick.nc, what the page's quick run gave at the commit of the record. Each
build makes the quick run anew (`records`: _build/records) and compares. A change of the library, of
the page or of JAX that changes numbers shows itself there; one that changes none does not.

``python -m iterlin_study.records.comparison`` lists the comparisons of the last build. With
``--keep xor`` the quick run of the last build becomes the one that later runs are compared with.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import xarray as xr
from iterlin.training.files import atomic_write

from iterlin_study.records import experiment_pages, provenance, records

# Two values are the same up to this share of the largest value of their variable: other machines
# round differently, which early stopping and long runs amplify.
TOLERANCE = 1e-3
# Two methods that agree differ by less than this, by rounding alone: no share is taken of it.
ROUNDING = 1e-9
KEPT = ("experiment", "parameters", "commit", "versions", "device", "date")


def kept_path(experiment: str) -> Path:
    """Return the file of the quick run that was kept with the experiment's record."""
    return provenance.project_root() / "data" / "results" / experiment / "quick.nc"


def kept(experiment: str) -> xr.Dataset | None:
    """Return the quick run that was kept with the experiment's record, or None."""
    path = kept_path(experiment)
    return read(path) if path.is_file() else None


def read(path: Path) -> xr.Dataset:
    """Read a quick run that was kept. Raises ValueError, naming the file, if it is damaged."""
    try:
        return xr.load_dataset(path, engine="scipy")
    except Exception as error:
        raise ValueError(f"{path} is damaged or not a record: {error}") from error


def experiments() -> list[str]:
    """Return the experiments that have a kept quick run beside a record."""
    names = sorted(path.parent.name for path in kept_path("x").parents[1].glob("*/quick.nc"))
    return [name for name in names if records.best(name) is not None]


def keep(experiment: str) -> None:
    """Keep the quick run of the last build beside the experiment's record.

    Raises FileNotFoundError if the last build has none, or there is no record.
    """
    if records.best(experiment) is None:
        raise FileNotFoundError(f"{experiment} has no record to keep a quick run beside")
    run = records.load(experiment, "quick")
    slim = run.drop_vars([name for name in run.variables if not _is_compared(run, name)])
    slim.attrs = {name: run.attrs[name] for name in KEPT}
    with atomic_write(kept_path(experiment)) as partial:
        slim.to_netcdf(partial, engine="scipy")


def differences(then: xr.Dataset, now: xr.Dataset) -> dict[str, float]:
    """Return the variables whose numbers differ, the largest difference first.

    A difference is a share of the variable's largest value, or infinite if its form has changed.
    Measured times ("seconds") and texts are not compared.
    """
    found = {
        str(name): _share(then.variables.get(name), now.variables.get(name))
        for name in [*then.variables, *now.variables]
        if any(name in run.variables and _is_compared(run, name) for run in (then, now))
    }
    largest_first = sorted(found.items(), key=lambda item: -item[1])
    return {name: share for name, share in largest_first if share > TOLERANCE}


def _is_compared(run: xr.Dataset, name) -> bool:
    return "seconds" not in str(name) and run.variables[name].dtype.kind in "biuf"


def _share(then: xr.Variable | None, now: xr.Variable | None) -> float:
    """The largest difference as a share of the largest value then, or of `ROUNDING`.

    Of a statistic over seeds the estimate is compared, and not the limits of its interval: they
    follow from runs that are compared themselves.
    """
    if then is None or now is None or then.dims != now.dims or then.shape != now.shape:
        return math.inf
    if "bound" in then.dims:
        then, now = then.isel(bound=0), now.isel(bound=0)
    before, after = (np.asarray(v.values, float) for v in (then, now))
    finite = np.isfinite(before)
    same_gaps = np.array_equal(before[~finite], after[~finite], equal_nan=True)
    if not same_gaps or not np.isfinite(after[finite]).all():
        return math.inf
    error = np.max(np.abs(after[finite] - before[finite]), initial=0.0)
    return float(error / np.max(np.abs(before[finite]), initial=ROUNDING))


def changed_parameters(record: xr.Dataset) -> list[str]:
    """Return the names of parameters that the page or its tier file has changed since.

    Empty for a record without a page, such as the benchmark's.
    """
    try:
        now = experiment_pages.parameters(record.attrs["experiment"], record.attrs["tier"])
    except ValueError:
        return []
    then = json.loads(record.attrs["parameters"])
    names = sorted(then.keys() | now.keys()) if then else []
    missing = object()
    return [name for name in names if then.get(name, missing) != now.get(name, missing)]


def since(experiment: str, run: xr.Dataset | None = None) -> dict[str, float] | None:
    """Return how today's quick run differs from the kept one; None if either is missing.

    run: today's quick run; that of the last build if None.
    """
    before = kept(experiment)
    if run is None and records.path_of(experiment, "quick").is_file():
        run = records.load(experiment, "quick")
    return None if before is None or run is None else differences(before, run)


def sentence(record: xr.Dataset, run: xr.Dataset | None = None) -> str:
    """Say how today's quick run (`since`) and parameters compare with the record's."""
    found = since(record.attrs["experiment"], run)
    if found is None:
        said = "there is no quick run to compare"
    elif found:
        name, share = next(iter(found.items()))
        by = f"{100 * share:.2g} % of" if share < 1 else "more than"
        how = f"by {by} its largest value"
        how = how if math.isfinite(share) else "has another form"
        rest = f" and {len(found) - 1} more" if len(found) > 1 else ""
        said = f"the quick run differs today: {name} {how}{rest}"
    else:
        said = "the quick run gives the same numbers today"
    if names := changed_parameters(record):
        said += f"; changed since: {', '.join(names)}"
    return said


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="iterlin_study.records.comparison", description=__doc__)
    parser.add_argument("--keep", nargs="+", default=[], metavar="EXPERIMENT")
    options = parser.parse_args(arguments)
    for experiment in options.keep:
        try:
            keep(experiment)
        except (FileNotFoundError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
    for experiment in experiments():
        print(f"{experiment}: {sentence(records.best(experiment))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
