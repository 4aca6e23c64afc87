"""What a record must hold: numbers and plain text, so that no page shows or does anything else.

Records are binary and come from others, too: nobody sees by reading a change what is in one.
"""

import json
import re
from collections.abc import Iterator

import numpy as np
import xarray as xr

from iterlin.study.plain_text import is_plain

NUMBERS = ("wall_time", "missing")
# Attributes that hold JSON, and what that is.
JSON = dict.fromkeys(("parameters", "versions", "rules"), dict)
JSON |= {"conditions": dict, "peers": dict, "whole": dict, "left_out": list, "parts": list}
# Whoever was left out, and the messages of exceptions that say why.
MESSAGES = "left_out"
FORMS = {
    "date": (re.compile(r"\d{4}-\d\d-\d\d"), "YYYY-MM-DD"),
    "commit": (re.compile(r"[0-9a-f]{40,64}(\+changes)?|unknown"), "a commit"),
}
NEEDED = ("experiment", "tier", "parameters", "device", "data", *FORMS, *NUMBERS)


def check_content(dataset: xr.Dataset) -> None:
    """Raises ValueError naming what a page that shows or judges the record could not take."""
    if missing := [name for name in NEEDED if name not in dataset.attrs]:
        raise ValueError(f"it lacks the attribute {missing[0]!r}")
    for name, value in dataset.attrs.items():
        if problem := _problem(name, value):
            raise ValueError(f"its attribute {name!r} {problem}")
    if "parts" in dataset.attrs:
        made = sorted(s for part in json.loads(dataset.attrs["parts"]) for s in part["seeds"])
        if "seed" not in dataset.coords or made != sorted(dataset.seed.values.tolist()):
            raise ValueError("its parts are not of its seeds, each once")
    for name, variable in dataset.variables.items():
        texts = [name, *(variable.values.flat if variable.dtype.kind not in "biuf" else ())]
        if not all(isinstance(text, str) and is_plain(text) for text in texts):
            raise ValueError(f"its variable {name!r} is neither numbers nor plain text")


def _problem(name: str, value: object) -> str:
    """What is wrong with the value of an attribute, in words; nothing if nothing is."""
    if name in JSON:
        return _json_problem(name, value)
    if name in NUMBERS or not isinstance(value, str):
        return "" if _is_finite(name, np.asarray(value)) else "is not a finite number"
    if not is_plain(value):
        return "is not plain text: one line, without ` < and {"
    pattern, form = FORMS.get(name, (None, ""))
    return "" if pattern is None or pattern.fullmatch(value) else f"is not {form}"


def _is_finite(name: str, value: np.ndarray) -> bool:
    if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
        return False
    return name not in NUMBERS or (value.ndim == 0 and bool(value >= 0))


def _json_problem(name: str, value: object) -> str:
    try:
        found = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return "is not JSON"
    if not isinstance(found, JSON[name]):
        return f"is not the JSON of a {JSON[name].__name__}"
    if name != MESSAGES and not all(map(is_plain, _texts(found))):
        return "holds what is not plain text"
    if name == "parts" and not (found and all(map(_is_part, found))):
        return "does not say of each part its seeds, what made it, when, and how long it took"
    return ""


def _is_part(found: object) -> bool:
    """Whether it is what a record says of seeds that were made in one go (`extension.part_of`)."""
    if not isinstance(found, dict) or not isinstance(found.get("seeds"), list):
        return False
    if not all(type(seed) is int for seed in found["seeds"]):
        return False
    texts = ("date", "commit", "device")
    if not all(isinstance(found.get(name), str) for name in texts):
        return False
    if any(not form.fullmatch(found[name]) for name, (form, _) in FORMS.items()):
        return False
    time = found.get("wall_time")
    if not isinstance(found.get("versions"), dict):
        return False
    return isinstance(time, int | float) and _is_finite("wall_time", np.asarray(time))


def _texts(found: object) -> Iterator[str]:
    """All texts in what JSON holds, names included."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, list | dict):
        for part in [*found, *(found.values() if isinstance(found, dict) else ())]:
            yield from _texts(part)
