"""Grids in one data set come out as they went in."""

import xarray as xr
from curves import runs
from iterlin_study.runs import merging


def test_a_grid_comes_out_of_the_merged_data_set_as_it_went_in():
    first = runs({"period": [1, 5], "seed": [0, 1]}, [0.1, 0.2, 0.3])
    second = runs({"period": [7], "seed": [0, 1]}, [0.4, 0.5])
    parts = {"first": first, "second": second}
    merged = xr.merge([merging.named(ds.drop_attrs(), name) for name, ds in parts.items()])
    assert set(merged.dims) == {
        "first_period",
        "first_evaluation",
        "second_period",
        "second_evaluation",
        "seed",
    }
    for name, ds in parts.items():
        xr.testing.assert_identical(merging.of(merged, name), ds.drop_attrs())


def test_only_the_axes_that_are_asked_for_get_the_name():
    named = merging.named(runs({"period": [1], "seed": [0]}, [0.1, 0.2]), "large", ["period"])
    assert named.large_test_accuracy.dims == ("large_period", "seed", "evaluation")
