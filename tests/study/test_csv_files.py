"""A record as CSV holds every value with its place."""

from io import StringIO

import numpy as np
import pandas as pd
import xarray as xr
from iterlin_study.records import csv_files


def test_every_value_stands_beside_its_variable_and_its_coordinates():
    record = xr.Dataset(
        {
            "accuracy": (("period", "seed"), np.array([[0.5, 0.25], [np.nan, 1.0]])),
            "gap": ("bound", [1.0, 0.5, 1.5]),
            "count": 7,
        },
        {"period": [1.0, np.inf], "seed": [3, 4], "place": ("period", [0, 1])},
        {"experiment": "trial", "tier": "laptop"},
    )
    assert csv_files.name_of(record) == "trial-laptop.csv"
    table = pd.read_csv(StringIO(csv_files.text(record))).set_index("variable")
    assert list(table.columns) == ["period", "seed", "bound", "value"]
    accuracy = table.loc["accuracy"].set_index(["period", "seed"])
    assert accuracy.value.loc[1.0, 4] == 0.25
    assert np.isnan(accuracy.value.loc[np.inf, 3])
    assert table.loc["gap"].set_index("bound").value["lower"] == 0.5
    assert table.value["count"] == 7
    assert table.loc["place"].set_index("period").value[np.inf] == 1
    assert len(table) == 10
