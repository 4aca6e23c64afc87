"""Partition parameters into those that are trained and those that stay fixed.

Fixed parameters cost no derivative. Where a program is compiled, they are one of its arguments and
not constants in it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iterlin.linearise.validation import warn_user

# A predicate on the path of a leaf, such as "layers/0/weight", or a pytree of bools whose structure
# is a prefix of that of params. None trains every floating point leaf.
Trainable = Callable[[str], bool] | PyTree | None


def partition(params: PyTree, trainable: Trainable = None) -> tuple[PyTree, PyTree]:
    """Partition params into the trained and the fixed leaves, as `equinox.partition` does.

    Only floating point leaves can be trained. `combine` is the inverse.

    Args:
        params: A pytree of arrays.
        trainable: A predicate on the path of a leaf, such as "layers/0/weight", or a mask: a pytree
            of bools that is a prefix of params. None trains every floating point leaf.

    Returns:
        Two pytrees shaped as params: the trained leaves and the fixed ones, each with None in the
        place of the leaves of the other.

    Raises:
        ValueError: If a leaf is not an array or number, or is complex and to be trained; the mask
            is not a prefix of params or holds anything but bools; or no leaf is left to train.
    """
    mask = trainable_mask(params, trainable)
    trained = jax.tree.map(lambda leaf, chosen: leaf if chosen else None, params, mask)
    fixed = jax.tree.map(lambda leaf, chosen: None if chosen else leaf, params, mask)
    return trained, fixed


def trainable_mask(params: PyTree, trainable: Trainable = None) -> PyTree:
    """Return which leaves of params are trained: a pytree of bools. Arguments as of `partition`."""
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    types = [_dtype(name, leaf) for name, (_, leaf) in zip(names, paths, strict=True)]
    if trainable is None:
        wanted = [True] * len(names)
    elif isinstance(trainable, str):
        raise ValueError(
            "trainable must be a function of a leaf's path, as lambda path: "
            f"path.startswith({trainable!r}), or a pytree of bools: got {trainable!r}"
        )
    # An Equinox module of bools is callable, but it is not a leaf.
    elif callable(trainable) and jax.tree_util.all_leaves([trainable]):
        wanted = [trainable(name) for name in names]
    else:
        try:
            wanted = jax.tree.leaves(jax.tree.broadcast(trainable, params))
        except ValueError:
            raise ValueError(
                f"trainable, {trainable!r}, is not a prefix of params: {tree}"
            ) from None
    for name, chosen, dtype in zip(names, wanted, types, strict=True):
        if not isinstance(chosen, bool | np.bool_):
            raise ValueError(f"trainable must be true or false of '{name}', got {chosen!r}")
        if chosen and jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(
                f"params hold {dtype} at '{name}', which cannot be trained: give real and "
                "imaginary part as two leaves"
            )
    mask = [bool(a) and jnp.issubdtype(t, jnp.floating) for a, t in zip(wanted, types, strict=True)]
    if not any(mask):
        held = [f"{name or 'params'} ({dtype})" for name, dtype in zip(names, types, strict=True)]
        listed = ", ".join(held[:8]) + (", ..." if len(held) > 8 else "")
        who = "params hold" if trainable is None else "trainable leaves"
        raise ValueError(f"{who} no floating point leaf to train, of {listed or 'no leaf at all'}")
    return jax.tree.unflatten(tree, mask)


def combine(trained: PyTree, fixed: PyTree) -> PyTree:
    """Combine the two pytrees of `partition`, as `equinox.combine` does.

    Args:
        trained: The trained leaves, with None in the place of fixed ones.
        fixed: The fixed leaves, with None in the place of trained ones.

    Returns:
        The full parameters.
    """
    if not jax.tree.leaves(fixed):
        return trained
    return jax.tree.map(
        lambda a, b: b if a is None else a, trained, fixed, is_leaf=lambda leaf: leaf is None
    )


def bind_fixed(f: Callable, fixed: PyTree) -> Callable:
    """Bind the fixed parameters of a function, so that it takes the trained ones alone.

    f is a function whose first argument is params, or an object with a method `bind_fixed`, such as
    `slices.Sliced`. It is returned as it is if no leaf is fixed.
    """
    if not jax.tree.leaves(fixed):
        return f
    # A traced value can index an array of JAX but not one of NumPy.
    fixed = jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, fixed)
    if hasattr(f, "bind_fixed"):
        return f.bind_fixed(fixed)
    return lambda trained, *rest, **named: f(combine(trained, fixed), *rest, **named)


def warn_about_batch_stats(params: PyTree) -> None:
    """Warn if params hold running statistics of batch normalisation, which gradients would move.

    Running statistics are leaves in a collection "batch_stats" (Flax Linen) or in a variable of
    type `BatchStat` (Flax NNX).
    """
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_batch_stat):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if "batch_stats" in name.split("/") or (_is_batch_stat(leaf) and jax.tree.leaves(leaf)):
            found.append(name)
    if found:
        listed = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        warn_user(
            f"params hold running statistics of batch normalisation ({listed}), and training moves "
            "them by gradient: take the module apart with `iterlin.from_linen` or "
            "`iterlin.from_nnx`, or leave them out by `trainable`"
        )


def _is_batch_stat(node: Any) -> bool:
    return any(kind.__name__ == "BatchStat" for kind in type(node).__mro__)


def _dtype(name: str, leaf: Any) -> Any:
    try:
        return jnp.result_type(leaf)
    except TypeError:
        apart = "take apart what f is made of, as `iterlin.from_equinox` or `iterlin.from_nnx` do"
        remedy = apart if name else "params come after f"
        raise ValueError(f"params hold {leaf!r} at '{name}', which is no array: {remedy}") from None
