"""Records come back as they were written, say where they came from, and are whole or not there."""

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import toy_pages
import xarray as xr
from iterlin.study import experiment_pages, intervals, records

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
    save(data_note="made up", parameters={"lr": 0.1, "K": (1, 10)})
    loaded = records.load(EXPERIMENT, "laptop")
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


def test_save_returns_what_load_will():
    saved = save()
    xr.testing.assert_identical(saved, records.load(EXPERIMENT, "laptop"))


def test_what_a_caller_does_to_a_record_and_what_replaces_it():
    """Files are read once for a state of theirs, which nobody must notice."""
    save()
    for _ in range(2):
        loaded = records.load(EXPERIMENT, "laptop")
        assert loaded["loss"].values[0, 0] == 1.0
        assert "changed" not in loaded.attrs
        loaded["loss"].values[:] = loaded.attrs["changed"] = 0.0
    save(value=2.0)
    assert records.load(EXPERIMENT, "laptop")["loss"].values[0, 0] == 2.0


def test_places(root):
    assert records.path_of("xor", "gpu") == root / "data" / "results" / "xor" / "gpu.nc"
    assert records.path_of("xor", "quick") == root / "_build" / "records" / "xor" / "quick.nc"


def test_a_complete_record_goes_before_a_partial_one_of_a_higher_tier():
    save("gpu", missing=3)
    assert records.best(EXPERIMENT).attrs["tier"] == "gpu"
    save("laptop")
    assert records.best(EXPERIMENT).attrs["tier"] == "laptop"
    save("gpu")
    assert records.best(EXPERIMENT).attrs["tier"] == "gpu"


def test_best_is_the_highest_recorded_tier_and_never_quick():
    assert records.best(EXPERIMENT) is None
    save("quick")
    assert records.best(EXPERIMENT) is None
    for tier in ("laptop", "paper", "gpu"):
        save(tier)
    assert records.best(EXPERIMENT).attrs["tier"] == "paper"
    assert list(records.tiers(EXPERIMENT)) == ["paper", "gpu", "laptop"]
    assert {tier: r.attrs["tier"] for tier, r in records.tiers(EXPERIMENT).items()} == {
        tier: tier for tier in ("paper", "gpu", "laptop")
    }


def test_the_caption_of_a_quick_run_is_the_same_in_every_build():
    line = records.caption(save("quick", wall_time=20.2))
    assert line == "quick tier, 3 seeds, run while this page was built"


def test_caption_says_tier_seeds_cost_and_device():
    record = save(wall_time=600.0)
    line = records.caption(record)
    assert line.startswith("laptop tier: 3 seeds, 10 min on ")
    assert record.attrs["device"] in line
    assert record.attrs["date"] in line
    assert "20 s on" in records.caption(save(wall_time=20.2))


def test_a_record_says_how_many_runs_it_lacks():
    whole = save()
    assert (records.missing_runs(whole), records.partial_note(whole)) == (0, "")
    assert "partial" not in records.caption(whole)
    old = whole.drop_attrs().assign_attrs({k: v for k, v in whole.attrs.items() if k != "missing"})
    assert records.missing_runs(old) == 0
    partial = save(missing=7)
    assert partial.attrs["missing"] == 7
    assert records.partial_note(records.load(EXPERIMENT, "laptop")) == "partial: 7 runs missing"
    assert records.caption(partial).endswith(f"{partial.attrs['date']}; partial: 7 runs missing")
    assert records.partial_note(save(missing=1)) == "partial: 1 run missing"


@pytest.mark.parametrize("missing", [-1, True])
def test_a_number_of_missing_runs_is_a_whole_number(missing):
    with pytest.raises(ValueError, match="missing must be a non-negative integer, got"):
        save(missing=missing)


# Failures leave what was there.


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("broken", ["write_bytes", "replace", "fsync"])
def test_a_failed_save_leaves_the_old_record_and_nothing_else(monkeypatch, broken):
    save(value=1.0)
    path = records.path_of(EXPERIMENT, "laptop")
    before = path.read_bytes()

    def full(*arguments, **settings):
        raise OSError(28, "No space left on device")

    def half(path, content):
        path.write_text("half a record")
        full()

    with monkeypatch.context() as patch:
        patch.setattr(*((Path, broken, half) if broken == "write_bytes" else (os, broken, full)))
        with pytest.raises(records.NotWritten) as error:
            save(value=2.0)
        assert str(error.value) == f"{path} could not be written: No space left on device"
    assert path.read_bytes() == before
    assert names(path.parent) == ["laptop.nc"]
    save(value=2.0)
    assert float(records.load(EXPERIMENT, "laptop")["loss"][0, 0]) == 2


def test_a_place_that_cannot_be_written_is_an_error(root):
    (root / "data").mkdir()
    (root / "data" / "results").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="results"):
        save()


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
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("data", "made up\n\n# Heading", "'data' is not one line of text"),
        ("commit", "0123456\x1b[2J", "'commit' is not one line of text"),
        ("anything", "to the \u202eleft", "'anything' is not one line of text"),
        ("anything", ["several", "texts"], "'anything' is neither a text nor a few numbers"),
        ("anything", np.zeros(2000), "'anything' is neither a text nor a few numbers"),
        ("device", 3.0, "'device' is not a str"),
        ("wall_time", np.inf, "'wall_time' is not a float"),
        ("wall_time", "long", "'wall_time' is not a float"),
        ("missing", -1, "'missing' is not a int"),
        ("parameters", "{", "'parameters' is not JSON"),
        ("rules", "[" * 100_000, "'rules' is not JSON"),
        ("versions", "[]", "'versions' is not a dict"),
        ("parts", "[3]", "its parts lack what made them"),
        ("parts", '[{"seeds": [0]}]', "its parts lack what made them"),
        ("experiment", None, "it lacks the attribute 'experiment'"),
        ("tier", None, "it lacks the attribute 'tier'"),
    ],
)
def test_attributes_of_another_kind_are_refused(name, value, problem):
    def change(file):
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value

    craft(lambda file: file.attrs.update({name: "there"}) or change(file))
    refused(problem)


def test_what_load_refuses_is_not_saved(root):
    with pytest.raises(ValueError, match="'data' is not one line of text"):
        save(data_note="two\nlines")
    assert not (root / "data").exists()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        # 60 million numbers that were never written, in a file of some kilobytes.
        (lambda f: f.create_dataset("a", (60_000_000,), "f8", chunks=(1000,)), "more than 64 MB"),
        (lambda f: f.create_dataset("a", (2**40, 2**40), "u1", chunks=(9, 9)), "more than 64 MB"),
        (lambda f: f.create_dataset("a", (10**6,), h5py.string_dtype()), "more than 64 MB"),
        (lambda f: f.create_dataset("a", data="x" * 2000), "not one short line"),
        (lambda f: f.create_dataset("a", data=["two\nlines"]), "not one short line"),
        (lambda f: f.create_dataset("a", data=1j), "'a' is neither numbers nor text"),
        (lambda f: f.create_dataset("a", dtype="f"), "'a' is neither numbers nor text"),
        (lambda f: f["loss"].attrs.update(scale_factor=0.0), "unknown attribute 'scale_factor'"),
    ],
)
def test_arrays_that_no_page_could_show_are_refused_unread(make, problem):
    craft(make)
    refused(problem)


def external(file, outside):
    file.create_dataset("a", (4,), "u1", external=[(str(outside), 0, 4)])


def virtual(file, outside):
    layout = h5py.VirtualLayout((4,), "u1")
    layout[:] = h5py.VirtualSource(str(outside), "a", (4,))
    file.create_virtual_dataset("a", layout)


def external_link(file, outside):
    file["a"] = h5py.ExternalLink(str(outside), "/a")


def soft_link(file, outside):
    file["a"] = h5py.SoftLink("/loss")


def group(file, outside):
    external(file.create_group("a"), outside)


@pytest.mark.parametrize("make", [external, virtual, external_link, soft_link, group])
def test_a_file_that_refers_to_others_is_refused_unread(tmp_path, make):
    craft(lambda file: make(file, tmp_path / "secret"))
    refused("'a' is ")


# Files that are not the record asked for.


def test_a_record_that_was_not_run_is_missing(root):
    with pytest.raises(
        FileNotFoundError, match=r"no record of trial at tier gpu: .*gpu\.nc is missing"
    ):
        records.load(EXPERIMENT, "gpu")


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, 0.9])
def test_a_truncated_record_is_damaged(keep):
    save()
    path = records.path_of(EXPERIMENT, "laptop")
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(len(whole) * keep)])
    with pytest.raises(ValueError, match=r"laptop\.nc is damaged or not a record"):
        records.load(EXPERIMENT, "laptop")


def test_a_text_file_is_damaged():
    save()
    path = records.path_of(EXPERIMENT, "laptop")
    path.write_text("no netCDF at all\n" * 100)
    with pytest.raises(ValueError, match=r"laptop\.nc is damaged or not a record"):
        records.load(EXPERIMENT, "laptop")


def test_a_foreign_netcdf_file_is_refused():
    path = records.path_of(EXPERIMENT, "laptop")
    path.parent.mkdir(parents=True)
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf(path, engine="h5netcdf")
    refused("it lacks the attribute 'format'")
    craft(lambda file: file.attrs.update(format="iterlin record 1"))
    with pytest.raises(ValueError, match=r"not a record of this library \(no 'iterlin record 3'"):
        records.load(EXPERIMENT, "laptop")


def test_a_record_of_another_experiment_or_tier_is_refused():
    save()
    path = records.path_of(EXPERIMENT, "laptop")
    with pytest.raises(ValueError, match="holds trial at tier laptop, not xor/laptop"):
        records.load("xor", "laptop", path=path)
    with pytest.raises(ValueError, match="holds trial at tier laptop, not trial/gpu"):
        records.load(EXPERIMENT, "gpu", path=path)


def test_unknown_tiers_are_refused(root):
    for attempt in (
        lambda: records.path_of("xor", "cloud"),
        lambda: records.load("xor", "cloud"),
        lambda: save("cloud"),
    ):
        with pytest.raises(
            ValueError, match="unknown tier 'cloud'; allowed: gpu, laptop, paper, quick"
        ):
            attempt()
    assert not (root / "data").exists()
