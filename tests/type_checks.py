"""The run-time type checker of the tests: beartype, to which a whole number is a real one too."""

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function):
    """Check calls of a function whose arguments or result have types to check."""
    return _check(function) if function.__annotations__ else function
