"""The run-time type checker of the tests: beartype, to which a whole number is a real one too.

A word that is not among those of a `Literal` is left to the function, whose message tests check.
"""

from typing import Literal, get_origin

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function):
    """Check calls of a function whose arguments or result have types to check."""
    hints = function.__annotations__
    hints.update({name: str for name, hint in hints.items() if get_origin(hint) is Literal})
    return _check(function) if hints else function
