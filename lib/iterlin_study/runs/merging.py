"""Merge several grids into one data set, in which the names of each grid have a prefix."""

from collections.abc import Collection

import xarray as xr


def named(
    dataset: xr.Dataset, name: str, axes: Collection[str] = ("period", "evaluation")
) -> xr.Dataset:
    """Add the prefix "<name>_" to the variables and to some axes of a grid; `of` undoes it.

    The merged grids share the axes that are not renamed, such as "seed".
    """
    old = [*dataset.data_vars, *(axis for axis in axes if axis in dataset.dims)]
    return dataset.rename({variable: f"{name}_{variable}" for variable in old})


def of(dataset: xr.Dataset, name: str) -> xr.Dataset:
    """Return one grid of a merged data set, with the names that it had before `named`."""
    prefix = f"{name}_"
    chosen = dataset[[v for v in dataset.data_vars if v.startswith(prefix)]]
    old = [v for v in [*chosen.data_vars, *chosen.dims] if v.startswith(prefix)]
    return chosen.rename({variable: variable.removeprefix(prefix) for variable in old})


def totals(*grids: xr.Dataset) -> dict[str, float]:
    """Return the total "seconds" and "missing" runs of several grids, as `Page.save` takes them."""
    return {
        "seconds": sum(float(grid.attrs["seconds"]) for grid in grids),
        "missing": sum(int(grid.attrs["missing"]) for grid in grids),
    }
