"""Check the file of a record before it is read."""

import math
from pathlib import Path

import h5py

LARGEST = 64 * 2**20  # bytes of all arrays, where a text counts as LINE; our largest takes 0.5 MB
LINE = 1000
NEEDED = ("format", "experiment", "tier", "device", "data", "date", "commit", "wall_time")
NEEDED += ("missing", "parameters")


def check(source: Path) -> None:
    """Require the attributes of a record, and arrays of numbers or texts that lie in this file.

    Raises ValueError if the file is not a record, OSError if it is not an HDF5 file.
    """
    with h5py.File(source) as file:
        size = 0
        for name in file:
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{name!r} is a link to another place")
            held = file[name]
            if not isinstance(held, h5py.Dataset) or held.external or held.is_virtual:
                raise ValueError(f"{name!r} is no array or lies in another file")
            text = h5py.check_string_dtype(held.dtype)
            if held.shape is None or (held.dtype.kind not in "biuf" and not text):
                raise ValueError(f"{name!r} is neither numbers nor text")
            size += math.prod(held.shape) * (LINE if text else held.dtype.itemsize)
            if size > LARGEST:
                raise ValueError(f"with {name!r} its arrays take more than {LARGEST >> 20} MB")
        if missing := [name for name in NEEDED if name not in file.attrs]:
            raise ValueError(f"it lacks the attribute {missing[0]!r}")
