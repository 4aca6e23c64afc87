"""Records come back as they were written, say where they came from, and are whole or not there."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import toy_pages
import xarray as xr
from iterlin_study.records import experiment_pages, records
from iterlin_study.report import intervals

EXPERIMENT = "trial"


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    """Records belong to the project around the working directory, here a toy."""
    monkeypatch.chdir(toy_pages.write(tmp_path))
    return tmp_path


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
    settings = {
        "parameters": experiment_pages.parameters(EXPERIMENT, tier),
        "wall_time": 125.0,
    }
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
    assert attrs["date"][:2] == "20"
    assert attrs["device"]
    assert attrs["products"] == "highest"
    assert attrs["commit"]


def test_a_record_that_a_caller_changes_or_that_is_replaced_is_read_anew():
    save()
    for _ in range(2):
        loaded = records.load(EXPERIMENT, "laptop")
        assert loaded["loss"].values[0, 0] == 1.0
        assert "changed" not in loaded.attrs
        loaded["loss"].values[:] = loaded.attrs["changed"] = 0.0
    save(value=2.0)
    assert records.load(EXPERIMENT, "laptop")["loss"].values[0, 0] == 2.0


def test_a_complete_record_goes_before_a_partial_one_of_a_higher_tier():
    save("gpu", missing=3)
    assert records.best(EXPERIMENT).attrs["tier"] == "gpu"
    save("laptop")
    assert records.best(EXPERIMENT).attrs["tier"] == "laptop"
    save("gpu")
    assert records.best(EXPERIMENT).attrs["tier"] == "gpu"


def test_best_is_the_highest_recorded_tier_and_never_quick():
    save("quick")
    assert records.best(EXPERIMENT) is None
    for tier in ("laptop", "paper", "gpu"):
        save(tier)
    assert records.best(EXPERIMENT).attrs["tier"] == "paper"
    assert list(records.tiers(EXPERIMENT)) == ["paper", "gpu", "laptop"]


def test_caption_says_tier_seeds_cost_and_device():
    line = records.caption(save("quick", wall_time=20.2))
    assert line == "quick tier, 3 seeds, run while this page was built"
    record = save(wall_time=600.0)
    line = records.caption(record)
    assert line.startswith("laptop tier: 3 seeds, 10 min on ")
    assert record.attrs["device"] in line
    assert record.attrs["date"] in line


def test_a_record_says_how_many_runs_it_lacks():
    whole = save()
    assert (records.missing_runs(whole), records.partial_note(whole)) == (0, "")
    assert "partial" not in records.caption(whole)
    partial = save(missing=7)
    assert records.partial_note(records.load(EXPERIMENT, "laptop")) == "partial: 7 runs missing"
    assert records.caption(partial).endswith(f"{partial.attrs['date']}; partial: 7 runs missing")


# Failures leave what was there.


def test_a_failed_save_leaves_the_old_record_and_nothing_else(monkeypatch):
    save(value=1.0)
    path = records.path_of(EXPERIMENT, "laptop")
    before = path.read_bytes()

    def half(path, content):
        path.write_text("half a record")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        with pytest.raises(records.NotWritten) as error:
            save(value=2.0)
    assert str(error.value) == f"{path} could not be written: No space left on device"
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["laptop.nc"]


# Records that hold what no record of ours does.


def craft(change):
    """A record whose file has been changed past what `save` refuses."""
    save()
    with h5py.File(records.path_of(EXPERIMENT, "laptop"), "r+") as file:
        change(file)


def refused(problem):
    """The one line with which `load` refuses the record."""
    with pytest.raises(ValueError, match=r"laptop\.nc is damaged or not a record: ") as error:
        records.load(EXPERIMENT, "laptop")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        # 60 million numbers that were never written, in a file of some kilobytes.
        (lambda f: f.create_dataset("a", (60_000_000,), "f8", chunks=(1000,)), "more than 64 MB"),
        (lambda f: f.create_dataset("a", (10**6,), h5py.string_dtype()), "more than 64 MB"),
        (lambda f: f.create_dataset("a", data=1j), "'a' is neither numbers nor text"),
        (lambda f: f.attrs.__delitem__("tier"), "it lacks the attribute 'tier'"),
    ],
)
def test_files_that_are_not_records_are_refused_unread(make, problem):
    craft(make)
    refused(problem)


def external(file, outside):
    file.create_dataset("a", (4,), "u1", external=[(str(outside), 0, 4)])


def external_link(file, outside):
    file["a"] = h5py.ExternalLink(str(outside), "/a")


def group(file, outside):
    external(file.create_group("a"), outside)


@pytest.mark.parametrize("make", [external, external_link, group])
def test_a_file_that_refers_to_others_is_refused_unread(tmp_path, make):
    craft(lambda file: make(file, tmp_path / "secret"))
    refused("'a' is ")


# Files that are not the record asked for.


def test_a_record_that_was_not_run_is_missing(root):
    with pytest.raises(FileNotFoundError, match=r"no record of trial at tier gpu: .*gpu\.nc"):
        records.load(EXPERIMENT, "gpu")


@pytest.mark.parametrize("share", [0, 0.5, 0.9])
def test_a_truncated_record_is_damaged(share):
    save()
    path = records.path_of(EXPERIMENT, "laptop")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refused("")


def test_a_record_of_another_format_is_refused():
    craft(lambda file: file.attrs.update(format="iterlin record 1"))
    with pytest.raises(ValueError, match=r"not a record of this library \(no 'iterlin record 3'"):
        records.load(EXPERIMENT, "laptop")


def test_a_record_of_another_experiment_or_tier_is_refused():
    save()
    path = records.path_of(EXPERIMENT, "laptop")
    for asked in (("xor", "laptop"), (EXPERIMENT, "gpu")):
        with pytest.raises(ValueError, match=f"holds trial at tier laptop, not {'/'.join(asked)}"):
            records.load(*asked, path=path)


def test_unknown_tiers_are_refused(root):
    for attempt in (lambda: records.load("xor", "cloud"), lambda: save("cloud")):
        with pytest.raises(ValueError, match="unknown tier 'cloud'; allowed: gpu, laptop"):
            attempt()
    assert not (root / "data").exists()
