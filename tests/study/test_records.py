"""Records come back as they were written, say where they came from, and are whole or not there."""

import json
from io import StringIO

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from iterlin_study.records import csv_files, experiment_pages, records
from iterlin_study.report import intervals
from refusals import fails

EXPERIMENT = "trial"
pytestmark = pytest.mark.usefixtures("root")


def results(value=1.0):
    return xr.Dataset(
        {
            "loss": (("period", "seed"), np.array([[value, np.nan, 3.0], [np.inf, -2.0, 0.0]])),
            "status": (("period", "seed"), np.arange(6, dtype=np.int32).reshape(2, 3)),
            "label": (("period",), np.array(["short", "long"])),
            "gap": intervals.Interval(1.0, 0.5, 1.5).variable(),
        },
        coords={"period": [10.0, np.inf], "seed": [0, 1, 2]},
    )


def save(tier="laptop", value=1.0, **changes):
    settings = {"parameters": experiment_pages.parameters(EXPERIMENT, tier), "wall_time": 125.0}
    return records.save(results(value), EXPERIMENT, tier, **(settings | changes))


def test_a_record_comes_back_as_it_was_written():
    saved = save(data_note="made up", parameters={"lr": 0.1, "K": (1, 10)})
    loaded = records.load(EXPERIMENT, "laptop")
    xr.testing.assert_identical(saved, loaded)
    xr.testing.assert_identical(loaded.drop_attrs(), results().drop_attrs())
    assert loaded["status"].dtype == np.int32
    attrs = loaded.attrs
    assert json.loads(attrs["parameters"]) == {"lr": 0.1, "K": [1, 10]}
    assert json.loads(attrs["versions"])["jax"]
    assert (attrs["tier"], attrs["experiment"], attrs["data"]) == ("laptop", EXPERIMENT, "made up")
    assert attrs["wall_time"] == 125.0
    assert all(attrs[name] for name in ("date", "device", "products", "commit"))


def test_a_record_that_a_caller_changes_or_that_is_replaced_is_read_anew():
    save()
    for _ in range(2):
        loaded = records.load(EXPERIMENT, "laptop")
        assert loaded["loss"].values[0, 0] == 1.0
        assert "changed" not in loaded.attrs
        loaded["loss"].values[:] = loaded.attrs["changed"] = 0.0
    save(value=2.0)
    assert records.load(EXPERIMENT, "laptop")["loss"].values[0, 0] == 2.0


def test_best_is_the_highest_complete_record_and_never_quick():
    save("quick")
    assert records.best(EXPERIMENT) is None
    for tier, missing, best in (("paper", 3, "paper"), ("laptop", 0, "laptop"), ("gpu", 0, "gpu")):
        save(tier, missing=missing)
        assert records.best(EXPERIMENT).attrs["tier"] == best
    assert list(records.tiers(EXPERIMENT)) == ["paper", "gpu", "laptop"]


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), RuntimeError("NetCDF: HDF error")]
)
def test_a_failed_save_leaves_the_old_record_and_nothing_else(monkeypatch, failure):
    save(value=1.0)
    path = records.path_of(EXPERIMENT, "laptop")
    before = path.read_bytes()

    def half(dataset, path, **_):
        path.write_text("half a record")
        raise failure

    monkeypatch.setattr(xr.Dataset, "to_netcdf", half)
    fails(str(path), save, value=2.0, error=records.NotWritten)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["laptop.nc"]


def craft(change):
    """Save a record and change its file past what `save` refuses."""
    save()
    with h5py.File(records.path_of(EXPERIMENT, "laptop"), "r+") as file:
        change(file)


DAMAGED = r"laptop\.nc is damaged or not a record"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        # 60 million numbers that were never written, in a file of some kilobytes.
        (lambda f: f.create_dataset("a", (60_000_000,), "f8", chunks=(1000,)), "'a'"),
        (lambda f: f.create_dataset("a", (10**6,), h5py.string_dtype()), "'a'"),
        (lambda f: f.attrs.__delitem__("tier"), "'tier'"),
        (lambda f: f.__setitem__("a", h5py.ExternalLink("/etc/hostname", "/a")), "'a'"),
    ],
)
def test_files_that_are_not_records_are_refused_unread(make, named):
    craft(make)
    fails(f"{DAMAGED}: .*{named}", records.load, EXPERIMENT, "laptop")


@pytest.mark.parametrize("share", [0, 0.9])
def test_a_truncated_record_is_damaged(share):
    save()
    path = records.path_of(EXPERIMENT, "laptop")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    fails(DAMAGED, records.load, EXPERIMENT, "laptop")


def test_a_record_of_another_format_experiment_or_tier_is_refused():
    craft(lambda file: None)
    path = records.path_of(EXPERIMENT, "laptop")
    for asked in (("xor", "laptop"), (EXPERIMENT, "gpu")):
        fails(f"holds trial at tier laptop, not {'/'.join(asked)}", records.load, *asked, path=path)
    craft(lambda file: file.attrs.update(format="iterlin record 1"))
    fails("not a record of this library", records.load, EXPERIMENT, "laptop")


def test_as_csv_every_value_stands_beside_its_variable_and_its_coordinates():
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
