"""A file is the old one or the new one, whatever ends the writing."""

import os

import pytest
from iterlin.runtime import files
from iterlin.runtime.files import replaced


def test_a_new_file_takes_the_place_of_the_old_one(tmp_path):
    target = tmp_path / "deep" / "record.nc"
    for text in ("first", "second"):
        with replaced(target) as partial:
            assert partial.suffix == ".nc"
            assert partial.name.startswith(".record-")
            partial.write_text(text)
        assert target.read_text() == text
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o644


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "record.nc"
    target.write_text("old")

    def half_way():
        with replaced(target) as partial:
            partial.write_text("half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        half_way()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_content_is_on_disk_before_the_name_and_the_name_after_it(tmp_path, monkeypatch):
    """fsync of the file, rename, fsync of the folder, in this order."""
    done = []
    sync, replace = os.fsync, os.replace

    def synced(handle):
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", synced)
    monkeypatch.setattr(files.os, "replace", lambda a, b: done.append("name") or replace(a, b))
    with replaced(tmp_path / "x.txt") as partial:
        partial.write_text("text")
    assert done == ["file", "name", "folder"]


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OSError, match="taken"), replaced(tmp_path / "taken" / "x.nc"):
        pytest.fail("nothing can be written there")
