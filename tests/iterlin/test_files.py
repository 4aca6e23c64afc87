"""A file is the old one or the new one, whatever ends the writing."""

import contextlib
import itertools
import os

import pytest
from iterlin.training.files import atomic_write


def test_a_new_file_takes_the_place_of_the_old_one_unless_an_error_ends_it(tmp_path):
    target = tmp_path / "deep" / "record.nc"
    for text in ("first", "second"):
        with atomic_write(target) as partial:
            assert partial.suffix == ".nc"
            partial.write_text(text)
        assert target.read_text() == text
    with pytest.raises(TypeError, match="str"), atomic_write(target) as partial:
        partial.write_text(3)
    assert target.read_text() == text
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_decides_who_may_read_a_file(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic_write(tmp_path / "record.nc") as partial:
            partial.write_text("text")
    finally:
        os.umask(before)
    assert (tmp_path / "record.nc").stat().st_mode & 0o777 == mode


CALLS = ("open", "close", "fsync", "replace", "unlink")


class Crash(BaseException):
    """The end of the process: nothing is tidied up after it."""


def written(folder, monkeypatch, at=None, after=False):
    """The calls that replacing old text by new takes, up to the one at which the process ends:
    before the call of that number or after it. From there on no call does anything."""
    folder.mkdir()
    target, made = folder / "record.nc", []
    target.write_text("old")

    def failing(name, call):
        def instead(*arguments, **options):
            place = len(made)
            made.append(name)
            if at is not None and (place > at or (place == at and not after)):
                raise Crash
            result = call(*arguments, **options)
            if place == at:
                raise Crash
            return result

        return instead

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        with contextlib.suppress(Crash), atomic_write(target) as partial:
            partial.write_text("new")
    return made


def test_a_crash_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    made = written(tmp_path / "whole", monkeypatch)
    renamed, synced = made.index("replace"), made.index("fsync")
    assert synced < renamed < len(made) - 1 - made[::-1].index("fsync")
    for at, after in itertools.product(range(len(made)), (False, True)):
        folder = tmp_path / f"{at}-{after}"
        written(folder, monkeypatch, at, after)
        new = at > renamed or (at == renamed and after)
        assert (folder / "record.nc").read_text() == ("new" if new else "old"), made[at]
        others = [path.name for path in folder.iterdir() if path.name != "record.nc"]
        assert all(name.startswith(".record-") for name in others)  # which nobody takes for one
        assert len(others) <= 1
