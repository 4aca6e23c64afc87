"""Checks of arguments before any computation; each error names the argument and what is allowed.

A check takes the argument's name and value and raises ValueError if the value is not allowed. A
traced value, which has no concrete value to check, passes.
"""

import contextlib
import inspect
import math
import os
import reprlib
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from operator import itemgetter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def is_traced(value) -> bool:
    """Return whether JAX is tracing the value."""
    return isinstance(value, Tracer)


def inside_trace() -> bool:
    """Return whether JAX is tracing the calling function."""
    return is_traced(jax.device_put(0.0))


def as_python(value):
    """Convert a scalar of NumPy or JAX to a Python number; return anything else unchanged."""
    one = isinstance(value, (np.generic, np.ndarray, jax.Array)) and np.ndim(value) == 0
    return value.item() if one and not is_traced(value) else value


def check_positive_integer(
    name: str, value, *, infinity: bool = False, below: float = math.inf
) -> None:
    """Require an integer of at least 1 and below a limit, or infinity if that is allowed."""
    scalar = as_python(value)
    if infinity and isinstance(scalar, float) and scalar == math.inf:
        return
    allowed = "a positive integer or infinity" if infinity else "a positive integer"
    _check_integer(name, value, 1, allowed, below)


def check_positive_integers(name: str, values) -> None:
    """Require a sequence of integers of at least 1."""
    try:
        for index in range(len(values)):
            check_positive_integer(name, values[index])
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be a sequence of positive integers, got {values!r}"
        ) from None


def check_non_negative_integer(name: str, value, *, below: float = math.inf) -> None:
    """Require an integer of at least 0 and below a limit (exclusive)."""
    _check_integer(name, value, 0, "a non-negative integer", below)


def _check_integer(name, value, least, allowed, below) -> None:
    if is_traced(value):
        return
    scalar = as_python(value)
    if isinstance(scalar, bool) or not isinstance(scalar, Integral) or int(scalar) < least:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    if int(scalar) >= below:
        raise ValueError(f"{name} must be below {below}")


def check_non_negative(name: str, value, *, scalar: bool = False, infinity: bool = False) -> None:
    """Require a real number >= 0, or an array of them if it need not be a scalar.

    Infinity must be allowed explicitly.
    """
    _check_real(name, value, scalar, infinity, "non-negative", lambda v: v >= 0)


def check_positive(name: str, value, *, scalar: bool = False) -> None:
    """Require a finite real number > 0, or an array of them if it need not be a scalar."""
    _check_real(name, value, scalar, False, "positive", lambda v: v > 0)


def _check_real(name, value, scalar, infinity, sign, holds) -> None:
    if scalar and np.ndim(value) > 0:
        raise ValueError(f"{name} must be one number, got an array of shape {np.shape(value)}")
    if is_traced(value):
        return
    array = None if isinstance(value, bool) else np.asarray(value)
    untyped = isinstance(value, Real) and array is not None and array.dtype == object
    if untyped and not infinity:
        # JAX has no dtype for a fraction or for an integer of more than 64 bits.
        raise ValueError(f"{name} must be a number that a float holds, as float(...) gives it")
    kinds = jnp.floating, jnp.integer  # NumPy's kinds do not include bfloat16
    if array is None or not (
        isinstance(value, Real) or any(jnp.issubdtype(array.dtype, kind) for kind in kinds)
    ):
        raise ValueError(f"{name} must be a {sign} real number, got {value!r}")
    in_range = holds(array) & (True if infinity else np.isfinite(array))
    if not np.all(in_range):
        finite = "" if infinity else "finite and "
        raise ValueError(f"{name} must be {finite}{sign}, got {value!r}")


def check_open_unit_interval(name: str, value, *, scalar: bool = False) -> None:
    """Require a number in the open interval (0, 1), or an array of them unless it is a scalar."""
    check_positive(name, value, scalar=scalar)
    if not is_traced(value) and not np.all(np.asarray(value) < 1):
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")


def check_bools(**values) -> None:
    """Require True or False of each argument, given by name."""
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_targets(outputs, targets) -> None:
    """Require targets to be one array of the shape of the outputs.

    Broadcasting would hide a difference of shapes.
    """
    if not hasattr(targets, "shape"):
        raise ValueError(f"targets must be one array (N, ...), got {type(targets).__name__}")
    if np.shape(outputs) != np.shape(targets):
        raise ValueError(
            f"targets have shape {np.shape(targets)} but the network's outputs have shape "
            f"{np.shape(outputs)}: they must be equal"
        )


def check_finite(name: str, tree) -> None:
    """Require all numbers of a pytree to be finite; the error names the leaf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_traced(leaf) and not np.all(np.isfinite(leaf)):
            raise ValueError(f"{name}{jax.tree_util.keystr(path)} must be finite, not NaN or inf")


class LabelError(ValueError):
    """A label lies outside the range of the classes."""


def check_class_labels(name: str, values, classes: int) -> None:
    """Require integers to lie in [0, classes), or raise LabelError; other dtypes pass."""
    if is_traced(values) or not jnp.issubdtype(jnp.result_type(values), jnp.integer):
        return
    values = np.asarray(values)
    outside = values[(values < 0) | (values >= classes)]
    if outside.size:
        wanted = f"labels of {classes} classes, 0 to {classes - 1}"
        remedy = "; ignore= leaves out the labels of padding" if outside.min() < 0 else ""
        raise LabelError(f"{name} must be {wanted}: got {outside.min()}{remedy}")


def is_typed_key(leaf) -> bool:
    """Return whether a leaf is an array of typed PRNG keys."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def check_random_keys(name: str, values) -> None:
    """Require an array of PRNG keys (typed or raw uint32)."""
    try:
        check_random_key(name, jax.tree.map(itemgetter(0), values))
    except (IndexError, TypeError, ValueError):
        raise ValueError(
            f"{name} must be several random keys, as jax.random.split(key, 5): got "
            f"{describe(values)}"
        ) from None


def check_random_key(name: str, value) -> None:
    """Require a scalar PRNG key (typed or raw uint32)."""
    dtype, shape = getattr(value, "dtype", None), np.shape(value)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if len(shape) != (0 if typed else 1) or not (typed or dtype == np.uint32):
        raise ValueError(
            f"{name} must be a random key, as jax.random.key(0), got {describe(value)}"
        )


def check_one_of(name: str, value, allowed) -> None:
    """Require one of the allowed names; the error lists them."""
    if value not in list(allowed):
        raise ValueError(f"unknown {name} {value!r}; allowed: {', '.join(sorted(allowed))}")


def check_same_tree(name: str, tree, model) -> None:
    """Require a pytree of the structure and shapes of another; the error names the leaf."""
    structure, wanted = jax.tree.structure(tree), jax.tree.structure(model)
    if structure != wanted:
        raise ValueError(f"{name} must be a pytree of structure {wanted}, got {structure}")
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for (path, leaf), expected in zip(leaves, jax.tree.leaves(model), strict=True):
        if np.shape(leaf) != np.shape(expected):
            where = name + jax.tree_util.keystr(path)
            raise ValueError(f"{where} must have shape {np.shape(expected)}, got {np.shape(leaf)}")


def check_float32_or_wider(name: str, dtype) -> None:
    """Require float32 or float64, in which LAPACK decomposes matrices."""
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 32:
        raise ValueError(
            f"{name} must be float32 or float64, in which matrices can be decomposed: got {dtype}"
        )


def check_signature(name: str, function, arguments: tuple[str, ...], remedy: str = "") -> None:
    """Require a function that can be called with these positional arguments.

    A callable without a signature passes. remedy: text to append to the error message.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in may have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(
            f"{name} is called as {name}({', '.join(arguments)}), but it takes {signature}{remedy}"
        ) from None


# Frames of the library, and of the context managers that wrap its functions.
_OWN_FRAMES = (f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__)


def warn_user(message: str) -> None:
    """Give a UserWarning that points at the line outside the library which led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith(_OWN_FRAMES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


# Errors of JAX when Python needs the concrete value of a tracer.
TRACER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def function_name(function) -> str:
    """Return the name of a function, or of the function in a partial, for error messages."""
    function = getattr(function, "func", function)
    return getattr(function, "__name__", type(function).__name__)


def describe(value) -> str:
    """Describe a value for error messages: arrays by dtype and shape, such as float32[10, 3].

    Functions are described by their names, other objects by their `repr`, shortened.
    """

    def describe_leaf(leaf):
        if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
            return f"{leaf.dtype}{list(leaf.shape)}"
        return function_name(leaf) if callable(leaf) else reprlib.repr(leaf)

    if value is None or jax.tree_util.all_leaves([value]):
        return describe_leaf(value)
    return str(jax.tree.map(describe_leaf, value)).replace("'", "")


# The adapters of modules, by the package that defines the module's class.
_ADAPTERS = {"flax.nnx": "from_nnx", "flax.linen": "from_linen", "equinox": "from_equinox"}


def instead_of_module(f) -> str:
    """Return what an error message adds where f is a module, or an adapted one, else ""."""
    if callable(getattr(f, "f", None)) and not callable(f):
        return "; of an adapted module give .f, and .params as its parameters"
    if hasattr(f, "__wrapped__"):  # a function, as equinox.filter_jit wraps it in a module
        return ""
    packages = [kind.__module__ for kind in type(f).__mro__]
    for package, adapter in _ADAPTERS.items():
        if any(name.startswith(package) for name in packages):
            return f"; il.{adapter} gives f(params, x) and the parameters of a module"
    return ""


@contextmanager
def prefix_errors(call: str, remedy: str = "") -> Iterator[None]:
    """Turn an error of a user's function into a ValueError that names the call.

    Its message is "<call> fails: ", the first line of the original message, and the remedy.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, AttributeError | TypeError | ValueError)
        if not (known or remedy):  # modules raise errors of their own kinds
            raise
        first = textwrap.shorten(str(error).strip().partition("\n")[0], 200)
        if isinstance(error, TRACER_ERRORS):
            first = "it needs a value in Python, but JAX traces it: write it with jax.numpy"
        raise ValueError(f"{call} fails: {first}{remedy}") from error


def check_returns_bool(name: str, value, example: str) -> None:
    """Require the value that a user's function returned to be one bool, of Python or JAX.

    example: an expression that returns a bool, for the error message.
    """
    array = hasattr(value, "dtype") and hasattr(value, "shape")
    if not (isinstance(value, bool) or (array and value.dtype == np.bool_ and value.shape == ())):
        raise ValueError(f"{name} must return one bool, as `{example}` is: got {describe(value)}")


@contextmanager
def explain_tracer_errors(name: str, argument: str, example: str) -> Iterator[None]:
    """Turn JAX's error about a concrete value of a tracer into a ValueError of one line.

    name, argument: the user's function and its argument that is traced. example: an expression in
    jax.numpy that works, for the message.
    """
    try:
        yield
    except TypeError as error:
        unhashable = "unhashable type" in str(error) and "Tracer" in str(error)
        if not isinstance(error, TRACER_ERRORS) and not unhashable:
            raise
        raise ValueError(
            f"{name} needs the value of its {argument} in Python, but JAX traces it: write it "
            f"with jax.numpy, as {example}"
        ) from None
