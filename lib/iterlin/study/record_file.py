"""A record's file without xarray, which takes longer to import than the file to be looked at."""

from pathlib import Path

import h5py


def check_file(path: Path) -> None:
    """Refuse a file that would read others: links and storage may lead anywhere on this machine.

    Raises ValueError for such a file, OSError for what is no HDF5 file.
    """
    with h5py.File(path) as file:
        for name in file:
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{name!r} is a link to another place")
            held = file[name]
            if not isinstance(held, h5py.Dataset):
                raise ValueError(f"{name!r} is no array")
            if held.external or held.is_virtual:
                raise ValueError(f"{name!r} lies in another file")


def texts(path: Path) -> dict[str, str]:
    """The attributes of a record that are text, as they are: in the hundredth of the time that its
    arrays take. Raises OSError for what is no HDF5 file."""
    with h5py.File(path) as file:
        return {name: value for name, value in file.attrs.items() if isinstance(value, str)}
