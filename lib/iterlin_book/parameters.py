"""Parameters of a run: the page's own defaults, replaced by the tier's file once it is checked."""

import math
import re

from iterlin.study import experiment_pages, strict_yaml

from iterlin_book import pages
from iterlin_book.pages import BookError

# Lists that say when, or to what, something is done besides: with nothing in them it is not.
_MAY_BE_EMPTY = ("halve_after", "first_alone")
# Of these there is no run without one.
_AT_LEAST_ONE = re.compile(r"num_\w+|batch_size|periods?")
_LARGEST = 2**63


def load(root, page, tier):
    """The values to run a page with at a tier; raise BookError for whatever would not fit it."""
    available = pages.tiers(root, page)
    if tier not in available:
        raise BookError(f"{page}: unknown tier '{tier}' (tiers: {', '.join(available)})")
    if tier not in pages.TIERS:
        known = ", ".join(pages.TIERS)
        raise BookError(f"{page}: tier '{tier}' cannot be recorded (tiers: {known})")
    if tier == pages.QUICK:
        return {}
    path = pages.parameter_file(root, page, tier)
    try:
        values = experiment_pages.tier_values(path)
        allowed = experiment_pages.defaults(pages.source(root, page))
    except ValueError as error:
        raise BookError(pages.one_line(error)) from None
    # A file may name its tier, so that plain papermill records as the right one; no other.
    if "tier" in allowed and values.get("tier", tier) != tier:
        raise BookError(f"{path}: parameter 'tier' must be '{tier}', not {values['tier']!r}")
    check(path, values, allowed)
    return {**values, "tier": tier} if "tier" in allowed else values


def like(root, page, tier):
    """The page beside it that a page's file of the tier is ``like``, or None."""
    path = pages.parameter_file(root, page, tier)
    values = (strict_yaml.load(path.read_text("utf8")) if path.is_file() else None) or {}
    folder, slash, _ = page.rpartition("/")
    return f"{folder}{slash}{values['like']}" if "like" in values else None


def check(path, values, allowed):
    """Every value must have a name and a type that the parameters cell knows, and a run with it."""
    for name, value in values.items():
        if name not in allowed:
            names = ", ".join(allowed) or "none: the page has no cell tagged 'parameters'"
            raise BookError(f"{path}: unknown parameter '{name}' (allowed: {names})")
        if problem := _mismatch(value, allowed[name]) or _nonsense(name, value, allowed[name]):
            raise BookError(f"{path}: parameter '{name}' {problem}")


def _mismatch(value, default):
    """What is wrong with a value given the default in its place, or None."""
    if default is None:
        return None
    if isinstance(default, list | tuple):
        if not isinstance(value, list):
            return f"must be a list, not {_described(value)}"
        if not default or any(item is None for item in default):
            return None
        for item in value:
            problems = [_mismatch(item, other) for other in default]
            if all(problems):
                return f"has a wrong element: it {problems[0]}"
        return None
    expected = type(default)
    # bool is a subclass of int in Python, hence `type` and not `isinstance`.
    if type(value) is expected or (expected is float and type(value) is int):
        return None
    return f"must be {expected.__name__}, not {_described(value)}"


def _nonsense(name, value, default):
    """What is wrong with a value that has the right type, or None."""
    if value == [] and default != [] and name not in _MAY_BE_EMPTY:
        return "must not be empty"
    for number in _numbers(value):
        if isinstance(number, int) and abs(number) >= _LARGEST:
            return "is too large: 2**63 or more"
        if math.isnan(number) or (math.isinf(number) and math.inf not in _numbers(default)):
            return f"must be finite, not {number}"
        if _AT_LEAST_ONE.fullmatch(name) and number < 1:
            return f"must be at least 1, not {number}"
    return None


def _numbers(value):
    """The numbers in a value, whether it is one or a list or mapping of some."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for part in value for number in _numbers(part)]
    return [value] if type(value) in (int, float) else []


def _described(value):
    return f"{type(value).__name__} {value!r:.60}"
