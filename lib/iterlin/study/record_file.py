"""What the file of a record may hold, checked before it is read.

Records come from others, too, and nobody sees what is in a binary file by reading a change.
"""

import json
import math
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np

LARGEST = 64 * 2**20  # bytes of all arrays, where a text counts as LINE; our largest takes 0.5 MB
LINE = 1000  # characters of a text in an array
# The attributes that pages read; a dict or a list is stored as JSON. Any other attribute is one
# line of text, or numbers.
NEEDED = dict.fromkeys(("format", "experiment", "tier", "device", "data", "date", "commit"), str)
NEEDED |= {"wall_time": float, "missing": int, "parameters": dict}
KINDS = NEEDED | {"versions": dict, "rules": dict, "parts": list, "left_out": list}
KINDS |= dict.fromkeys(("conditions", "peers", "whole"), dict)  # the benchmark's
PART = {"seeds": list, "versions": dict, "date": str, "commit": str, "device": str}
PART |= {"wall_time": float}
# What netCDF-4 keeps with a variable.
OF_VARIABLES = {"_Netcdf4Dimid", "_Netcdf4Coordinates", "DIMENSION_LIST", "REFERENCE_LIST"}
OF_VARIABLES |= {"CLASS", "NAME", "_FillValue", "coordinates", "dtype"}


def check(source: Path | BytesIO) -> None:
    """Raise ValueError for what no record of ours holds, OSError for what is no HDF5 file."""
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
            if not all(_is_line(held.asstr()[at]) for at in np.ndindex(held.shape if text else 0)):
                raise ValueError(f"{name!r} holds a text that is not one short line")
            if other := held.attrs.keys() - OF_VARIABLES:
                raise ValueError(f"{name!r} has the unknown attribute {min(other)!r}")
        if missing := [name for name in NEEDED if name not in file.attrs]:
            raise ValueError(f"it lacks the attribute {missing[0]!r}")
        for name in file.attrs.keys() - {"_NCProperties"}:
            _check_attribute(file, name)


def _check_attribute(file: h5py.File, name: str) -> None:
    about, kind = file.attrs.get_id(name), KINDS.get(name)
    text = h5py.check_string_dtype(about.dtype)
    if math.prod(about.shape) > (1 if text else LINE) or not (text or about.dtype.kind in "biuf"):
        raise ValueError(f"its attribute {name!r} is neither a text nor a few numbers")
    value = file.attrs[name] if text else np.squeeze(file.attrs[name]).tolist()
    if text and not _is_line(value, math.inf):
        raise ValueError(f"its attribute {name!r} is not one line of text")
    try:
        value = json.loads(value) if kind in (dict, list) else value
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"its attribute {name!r} is not JSON") from None
    if not _is(value, kind):
        raise ValueError(f"its attribute {name!r} is not a {kind.__name__}")
    for part in value if name == "parts" else ():
        if not _is(part, dict) or not all(_is(part.get(said), PART[said]) for said in PART):
            raise ValueError("its parts lack what made them, when, or how long it took")


def _is(value: object, kind: type | None) -> bool:
    number = isinstance(value, int | float) and 0 <= value < math.inf
    return kind is None or (number if kind in (int, float) else isinstance(value, kind))


def _is_line(text: object, most: float = LINE) -> bool:
    return isinstance(text, str) and text.isprintable() and len(text) <= most
