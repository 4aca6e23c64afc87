"""A record's file, which is netCDF-4 and so HDF5, by h5py alone.

Through xarray's engine the same takes five times as long, and to import xarray longer than that:
every page and the ledger look at many records.
"""

from pathlib import Path

import h5py
import numpy as np

# What netCDF-4 keeps beside a variable's own attributes, and what it writes of a bare dimension.
_ITS_OWN = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_NCProperties"}
_ITS_OWN |= {"_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict"}
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


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


def arrays(path: Path) -> tuple[dict[str, tuple], dict]:
    """{name: (dimensions, values, attributes)} of the variables, and the file's attributes, as they
    are stored. Raises OSError for what is no HDF5 file, IndexError for an array whose dimensions
    have no names."""
    variables = {}
    with h5py.File(path) as file:
        for name, held in file.items():
            if held.attrs.get("NAME", b"").startswith(_NO_VARIABLE):
                continue
            dimensions = (name,) if held.is_scale else tuple(_name(axis) for axis in held.dims)
            text = h5py.check_string_dtype(held.dtype)
            values = np.asarray(held.asstr()[...], str) if text else held[...]
            variables[name] = dimensions, values, _attributes(held)
        return variables, _attributes(file)


def _name(axis) -> str:
    return axis[0].name.lstrip("/")


def _attributes(held) -> dict:
    """Those of one number as numbers, as netCDF has them."""
    found = {name: value for name, value in held.attrs.items() if name not in _ITS_OWN}
    alone = {n: v[0] for n, v in found.items() if isinstance(v, np.ndarray) and v.shape == (1,)}
    return found | alone
