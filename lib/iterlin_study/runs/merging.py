"""Several grids of runs in one data set: each under a name of its own, and out again."""

from collections.abc import Collection

import xarray as xr


def named(
    dataset: xr.Dataset, name: str, axes: Collection[str] = ("period", "evaluation")
) -> xr.Dataset:
    """Return a grid's data set with "<name>_" before its variables and before these of its axes.

    An axis that is not renamed, such as "seed", is shared with the grids that it is merged with.
    """
    old = [*dataset.data_vars, *(axis for axis in axes if axis in dataset.dims)]
    return dataset.rename({variable: f"{name}_{variable}" for variable in old})


def of(dataset: xr.Dataset, name: str) -> xr.Dataset:
    """Return the grid that `named` put under this name, with its variables and axes as before."""
    prefix = f"{name}_"
    chosen = dataset[[v for v in dataset.data_vars if v.startswith(prefix)]]
    old = [v for v in [*chosen.data_vars, *chosen.dims] if v.startswith(prefix)]
    return chosen.rename({variable: variable.removeprefix(prefix) for variable in old})


def totals(*grids: xr.Dataset) -> dict[str, float]:
    """Return the seconds and missing runs of these grids together, as `Page.save` takes them."""
    return {
        "seconds": sum(float(grid.attrs["seconds"]) for grid in grids),
        "missing": sum(int(grid.attrs["missing"]) for grid in grids),
    }
