"""Records as CSV, for readers without xarray."""

import pandas as pd
import xarray as xr

FOLDER = "_static/records"  # of the built book
BOUNDS = ["estimate", "lower", "upper"]


def name_of(record: xr.Dataset) -> str:
    """Return the name of a record's CSV file."""
    return f"{record.attrs['experiment']}-{record.attrs['tier']}.csv"


def text(record: xr.Dataset) -> str:
    """Return a record as CSV: a line for each value, with its variable and its place on each axis.

    Coordinates that are no axes have lines of their own. An axis that a variable does not have is
    left empty. Numbers have 12 digits.
    """
    if record.sizes.get("bound") == len(BOUNDS):
        record = record.assign_coords(bound=BOUNDS)
    tables = []
    for name, variable in record.reset_coords().data_vars.items():
        if variable.dims:
            table = variable.rename("value").to_dataframe().reset_index()
        else:
            table = pd.DataFrame({"value": [variable.item()]})
        tables.append(table.assign(variable=name))
    axes = [str(axis) for axis in record.dims]
    found = pd.concat(tables).reindex(columns=["variable", *axes, "value"])
    # pandas takes no float_format where some values are texts.
    found["value"] = [
        f"{value:.12g}" if isinstance(value, float) and pd.notna(value) else value
        for value in found["value"]
    ]
    return found.to_csv(index=False, float_format="%.12g", lineterminator="\n")
