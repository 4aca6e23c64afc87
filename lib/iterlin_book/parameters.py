"""Read a tier's parameters and check them against the page's defaults."""

from iterlin_study.records import experiment_pages

from iterlin_book import pages
from iterlin_book.pages import BookError


def load(root, page, tier):
    """Return a page's parameters at a tier. Raises BookError if one does not fit the page."""
    available = pages.tiers(root, page)
    if tier not in available:
        raise BookError(f"{page}: unknown tier '{tier}' (tiers: {', '.join(available)})")
    if tier == pages.QUICK:
        return {}
    path = pages.parameter_file(root, page, tier)
    try:
        values = experiment_pages.tier_values(path)
        allowed = experiment_pages.defaults(pages.source(root, page))
    except ValueError as error:
        raise BookError(pages.one_line(error)) from None
    for name, value in values.items():
        if name not in allowed:
            names = ", ".join(allowed) or "none: the page has no cell tagged 'parameters'"
            raise BookError(f"{path}: unknown parameter '{name}' (allowed: {names})")
        if problem := mismatch(value, allowed[name]):
            raise BookError(f"{path}: parameter '{name}' {problem}")
    # A file may name its tier, so that plain papermill records as the right one.
    if values.get("tier", tier) != tier:
        raise BookError(f"{path}: parameter 'tier' must be '{tier}', not {values['tier']!r}")
    return {**values, "tier": tier} if "tier" in allowed else values


def like(root, page, tier):
    """Return the page whose parameters this page's file of the tier takes by ``like``, or None."""
    path = pages.parameter_file(root, page, tier)
    values = (pages.load_yaml(path) if path.is_file() else None) or {}
    folder, slash, _ = page.rpartition("/")
    return f"{folder}{slash}{values['like']}" if "like" in values else None


def mismatch(value, default):
    """Say what is wrong with the type of a value that replaces a default; None if nothing."""
    if default is None:
        return None
    if isinstance(default, list | tuple):
        if not isinstance(value, list):
            return f"must be a list, not {type(value).__name__} {value!r:.60}"
        problems = [[mismatch(item, other) for other in default] for item in value]
        wrong = [found[0] for found in problems if found and all(found)]
        return f"has a wrong element: it {wrong[0]}" if wrong else None
    expected = type(default)
    # bool is a subclass of int in Python, hence `type` and not `isinstance`.
    if type(value) is expected or (expected is float and type(value) is int):
        return None
    return f"must be {expected.__name__}, not {type(value).__name__} {value!r:.60}"
