"""The run-time type checker of the tests: beartype, to which a whole number is a real one too.

A word that is not among those of a `Literal` is left to the function, whose message tests check.
"""

from functools import partial
from typing import Literal, get_args, get_origin

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function):
    """Check the types of a function's arguments and result at each call."""
    hints = function.__annotations__
    hints.update({name: str for name, hint in hints.items() if get_origin(hint) is Literal})
    return _check(function)


def has_shape(hint) -> bool:
    """Whether a type hint has an array's shape in it."""
    itself = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return itself or any(map(has_shape, get_args(hint)))


def where_shapes_are(jaxtyped):
    """jaxtyping's decorator, for functions whose hints have shapes in them.

    A function inside another would be decorated anew at each call: it is left as it is.
    """

    def decorate(function=None, *, typechecker):
        if function is None:
            return partial(decorate, typechecker=typechecker)
        inner = "<locals>" in function.__qualname__
        shapes = any(map(has_shape, getattr(function, "__annotations__", {}).values()))
        return jaxtyped(function, typechecker=typechecker) if shapes and not inner else function

    return decorate
