"""Checks of arguments, made before any compute: each error names the offender and what is allowed.

Values that JAX is tracing have no concrete value to check and pass; their callers check the
concrete arrays before tracing begins.
"""

import inspect
import math
import reprlib
import textwrap
from contextlib import contextmanager
from numbers import Integral, Real
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np


def is_traced(value) -> bool:
    return isinstance(value, jax.core.Tracer)


def as_python(value):
    """A single number of NumPy or JAX as one of Python; anything else as it is."""
    one = isinstance(value, (np.generic, np.ndarray, jax.Array)) and np.ndim(value) == 0
    return value.item() if one and not is_traced(value) else value


def check_positive_integer(
    name: str, value, *, infinity: bool = False, below: float = math.inf
) -> None:
    """Refuses anything but a whole number of at least 1 (or infinity, where it has a meaning), or
    one that is not below the limit."""
    if is_traced(value):
        return
    scalar = as_python(value)
    if infinity and isinstance(scalar, float) and scalar == math.inf:
        return
    if isinstance(scalar, bool) or not isinstance(scalar, Integral) or scalar < 1:
        allowed = "a positive integer or infinity" if infinity else "a positive integer"
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    if scalar >= below:
        raise ValueError(f"{name} must be below {below}")


def check_positive_integers(name: str, values) -> None:
    """Refuses anything but a sequence of whole numbers of at least 1."""
    try:
        for index in range(len(values)):
            check_positive_integer(name, values[index])
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be a sequence of positive integers, got {values!r}"
        ) from None


def check_non_negative_integer(name: str, value, *, below: float = math.inf) -> None:
    """Refuses anything but an integer of at least 0, or one that is not below the limit."""
    if is_traced(value):
        return
    scalar = as_python(value)
    if isinstance(scalar, bool) or not isinstance(scalar, Integral) or scalar < 0:
        raise ValueError(f"{name} must be a non-negative integer, got {value!r}")
    if scalar >= below:
        raise ValueError(f"{name} must be below {below}")


def check_non_negative(name: str, value, *, infinity: bool = False) -> None:
    """Refuses a negative, NaN or (unless allowed) infinite real number or array of them."""
    _real(name, value, infinity, "non-negative", lambda v: v >= 0)


def check_positive(name: str, value, *, infinity: bool = False) -> None:
    """Refuses a non-positive, NaN or (unless allowed) infinite real number or array of them."""
    _real(name, value, infinity, "positive", lambda v: v > 0)


def _real(name, value, infinity, sign, holds) -> None:
    if is_traced(value):
        return
    array = None if isinstance(value, bool) else np.asarray(value)
    untyped = isinstance(value, Real) and array is not None and array.dtype == object
    if untyped and not infinity:
        # A large whole number, or a fraction: JAX has no type for it either.
        raise ValueError(f"{name} must be a number that a float holds, as float(...) gives it")
    kinds = jnp.floating, jnp.integer  # of JAX, whose bfloat16 is none of NumPy's numbers
    if array is None or not (
        isinstance(value, Real) or any(jnp.issubdtype(array.dtype, kind) for kind in kinds)
    ):
        raise ValueError(f"{name} must be a {sign} real number, got {value!r}")
    in_range = holds(array) & (True if infinity else np.isfinite(array))
    if not np.all(in_range):
        finite = "" if infinity else "finite and "
        raise ValueError(f"{name} must be {finite}{sign}, got {value!r}")


def check_scalar(name: str, value) -> None:
    """Refuses an array of several axes or numbers; what is in it is not looked at."""
    if not is_traced(value) and np.ndim(value) > 0:
        raise ValueError(f"{name} must be one number, got an array of shape {np.shape(value)}")


def check_open_unit_interval(name: str, value) -> None:
    """Refuses anything outside the open interval (0, 1)."""
    check_positive(name, value)
    if not is_traced(value) and not np.all(np.asarray(value) < 1):
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")


def check_bools(**values) -> None:
    """Refuses a value, given by name, that is neither True nor False."""
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_targets(outputs, targets) -> None:
    """Refuses targets that are no array, or whose shape differs from the outputs' (broadcasting
    would hide the error)."""
    if not hasattr(targets, "shape"):
        raise ValueError(f"targets must be one array (N, ...), got {type(targets).__name__}")
    if np.shape(outputs) != np.shape(targets):
        raise ValueError(
            f"targets have shape {np.shape(targets)} but the network's outputs have shape "
            f"{np.shape(outputs)}: they must be equal"
        )


def check_same_shape(**arrays) -> None:
    """Refuses two arrays, given by name, of different shapes."""
    (first, a), (second, b) = ((name, np.shape(array)) for name, array in arrays.items())
    if a != b:
        raise ValueError(f"{first} and {second} must have one shape, got {a} and {b}")


def check_finite(name: str, tree) -> None:
    """Refuses a pytree with a number that is NaN or infinite, naming its leaf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_traced(leaf) and not np.all(np.isfinite(leaf)):
            raise ValueError(f"{name}{jax.tree_util.keystr(path)} must be finite, not NaN or inf")


class LabelError(ValueError):
    """A label is of none of the classes."""


def check_class_labels(name: str, values, classes: int) -> None:
    """Refuses integers outside [0, classes); values of another type are not looked at."""
    if is_traced(values) or not jnp.issubdtype(jnp.result_type(values), jnp.integer):
        return
    values = np.asarray(values)
    outside = values[(values < 0) | (values >= classes)]
    if outside.size:
        raise LabelError(
            f"{name} must be labels of {classes} classes, 0 to {classes - 1}: got {outside.min()}"
        )


def check_random_keys(name: str, values) -> None:
    """Refuses what is no array of several random keys."""
    try:
        check_random_key(name, jax.tree.map(itemgetter(0), values))
    except (IndexError, TypeError, ValueError):
        raise ValueError(
            f"{name} must be several random keys, as jax.random.split(key, 5): got "
            f"{describe(values)}"
        ) from None


def check_random_key(name: str, value) -> None:
    """Refuses what is no single random key of JAX, of the new kind or the old."""
    dtype, shape = getattr(value, "dtype", None), np.shape(value)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if len(shape) != (0 if typed else 1) or not (typed or dtype == np.uint32):
        raise ValueError(
            f"{name} must be a random key, as jax.random.key(0), got {describe(value)}"
        )


def check_one_of(name: str, value, allowed) -> None:
    """Refuses a value that is not among the allowed ones, and lists those."""
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}; allowed: {', '.join(sorted(allowed))}")


def check_same_tree(name: str, tree, model) -> None:
    """Refuses a pytree whose structure or shapes are not those of `model`."""
    structure, wanted = jax.tree.structure(tree), jax.tree.structure(model)
    if structure != wanted:
        raise ValueError(f"{name} must be a pytree of structure {wanted}, got {structure}")
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for (path, leaf), expected in zip(leaves, jax.tree.leaves(model), strict=True):
        if np.shape(leaf) != np.shape(expected):
            where = name + jax.tree_util.keystr(path)
            raise ValueError(f"{where} must have shape {np.shape(expected)}, got {np.shape(leaf)}")


def check_float32_or_wider(name: str, dtype) -> None:
    """Refuses a type narrower than those that matrices can be decomposed in."""
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 32:
        raise ValueError(
            f"{name} must be float32 or float64, in which matrices can be decomposed: got {dtype}"
        )


def check_signature(name: str, function, arguments: tuple[str, ...], remedy: str = "") -> None:
    """Refuses a function that says that it cannot be called with so many arguments; the remedy
    ends the message."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not every callable says
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(
            f"{name} is called as {name}({', '.join(arguments)}), but it takes {signature}{remedy}"
        ) from None


# Errors of JAX where Python asks for the value of what is traced.
VALUE_ASKED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def function_name(function) -> str:
    """The name of a function, as messages give it; that of the one within a partial."""
    function = getattr(function, "func", function)
    return getattr(function, "__name__", type(function).__name__)


def describe(value) -> str:
    """Arrays by type and shape, as float32[10, 3], also in a pytree; anything else as it prints,
    shortened."""

    def of_leaf(leaf):
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
            return f"{leaf.dtype}{list(leaf.shape)}"
        return reprlib.repr(leaf)

    if value is None or jax.tree_util.all_leaves([value]):
        return of_leaf(value)
    return str(jax.tree.map(of_leaf, value)).replace("'", "")


@contextmanager
def prefix_errors(what: str):
    """Begin the message of a TypeError or ValueError of a user's function, often one of JAX's about
    shapes, with what was called."""
    try:
        yield
    except (TypeError, ValueError) as error:
        first = textwrap.shorten(str(error).strip().partition("\n")[0], 200)
        if isinstance(error, VALUE_ASKED):
            first = "it needs a value in Python, but JAX traces it: write it with jax.numpy"
        raise ValueError(f"{what} fails: {first}") from error


def check_returns_bool(name: str, value, example: str) -> None:
    """Refuses the answer of a function unless it is one bool, of Python or (traced or not) JAX."""
    array = hasattr(value, "dtype") and hasattr(value, "shape")
    if not (isinstance(value, bool) or (array and value.dtype == np.bool_ and value.shape == ())):
        raise ValueError(f"{name} must return one bool, as `{example}` is: got {describe(value)}")


@contextmanager
def explain_tracer_errors(name: str, argument: str, example: str):
    """Turn JAX's error where a function asks Python for a value that is traced into one line."""
    try:
        yield
    except TypeError as error:
        looked_up = "unhashable type" in str(error) and "Tracer" in str(error)
        if not isinstance(error, VALUE_ASKED) and not looked_up:
            raise
        raise ValueError(
            f"{name} needs the value of its {argument} in Python, but JAX traces it: write it "
            f"with jax.numpy, as {example}"
        ) from None
