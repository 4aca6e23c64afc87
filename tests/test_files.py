"""A file is the old one or the new one, whatever ends the writing."""

import contextlib
import errno
import itertools
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


# What can go wrong at each call of the system, before it and after it.

CALLS = ("open", "close", "fsync", "chmod", "replace", "unlink")


class Crash(BaseException):
    """The end of the process: nothing is tidied up after it."""


def written(folder, monkeypatch, error=None, at=None, after=False):
    """The calls that replacing old text by new takes, up to the one that fails.

    Before the call of that number, or after it, the error is raised; from a crash on no call does
    anything.
    """
    folder.mkdir()
    target, made = folder / "record.nc", []
    target.write_text("old")

    def failing(name, call):
        def instead(*arguments, **options):
            place = len(made)
            made.append(name)
            dead = isinstance(error, Crash) and at is not None and place > at
            if dead or (place == at and not after):
                raise error
            result = call(*arguments, **options)
            if place == at:
                raise error
            return result

        return instead

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        with contextlib.suppress(OSError, Crash), replaced(target) as partial:
            partial.write_text("new")
    return made


def test_a_crash_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    made = written(tmp_path / "whole", monkeypatch)
    renamed, synced = made.index("replace"), made.index("fsync")
    assert synced < renamed < len(made) - 1 - made[::-1].index("fsync")
    for at, after in itertools.product(range(len(made)), (False, True)):
        folder = tmp_path / f"{at}-{after}"
        written(folder, monkeypatch, Crash(), at, after)
        new = at > renamed or (at == renamed and after)
        assert (folder / "record.nc").read_text() == ("new" if new else "old"), made[at]
        others = [path.name for path in folder.iterdir() if path.name != "record.nc"]
        assert all(name.startswith(".record-") for name in others)  # which nobody takes for one
        assert len(others) <= 1


def test_a_full_disk_at_any_call_leaves_no_half_and_is_told(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    made = written(tmp_path / "whole", monkeypatch)
    renamed = made.index("replace")
    for at in range(len(made)):
        folder = tmp_path / str(at)
        assert written(folder, monkeypatch, full, at)[: at + 1] == made[: at + 1]
        assert (folder / "record.nc").read_text() == ("new" if at > renamed else "old")
        if at > made.index("close") and made[at] != "unlink":
            assert [path.name for path in folder.iterdir()] == ["record.nc"]
    target = tmp_path / "told" / "record.nc"
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space left"), replaced(target) as partial:
        partial.write_text("new")
    assert list(target.parent.iterdir()) == []
