"""Which parameters are trained. The others stay as they are, beside them, and cost no derivative.

`partition` parts a pytree into two of its shape, with None in place of what is in the other one.
Where programs are compiled, the fixed part is one of their arguments and not a constant in them.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

# A function of a leaf's path such as "layers/0/weight", or a pytree of bools, a prefix of params.
Trainable = Callable[[str], bool] | PyTree | None


def partition(params: PyTree, trainable: Trainable = None) -> tuple[PyTree, PyTree]:
    """(moving, fixed): leaves that are trained and those that are not; `combine` undoes it.

    Only floating point leaves can be trained, and without `trainable` all of these are.

    Raises ValueError for a leaf that is no array or number, or a complex one that is to be trained,
    naming it; a mask that is not a prefix of params or holds anything but bools; or where nothing
    is left to train.
    """
    mask = trainable_mask(params, trainable)
    moving = jax.tree.map(lambda leaf, chosen: leaf if chosen else None, params, mask)
    fixed = jax.tree.map(lambda leaf, chosen: None if chosen else leaf, params, mask)
    return moving, fixed


def trainable_mask(params: PyTree, trainable: Trainable = None) -> PyTree:
    """A bool for each leaf of params: whether it is trained. Errors as of `partition`."""
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    types = [_type(name, leaf) for name, (_, leaf) in zip(names, paths, strict=True)]
    if trainable is None:
        asked = [True] * len(names)
    elif isinstance(trainable, str):
        raise ValueError(
            "trainable must be a function of a leaf's path, as lambda path: "
            f"path.startswith({trainable!r}), or a pytree of bools: got {trainable!r}"
        )
    elif callable(trainable) and jax.tree_util.all_leaves([trainable]):  # no Equinox module
        asked = [trainable(name) for name in names]
    else:
        try:
            asked = jax.tree.leaves(jax.tree.broadcast(trainable, params))
        except ValueError:
            raise ValueError(
                f"trainable, {trainable!r}, is not a prefix of params: {tree}"
            ) from None
    for name, chosen, dtype in zip(names, asked, types, strict=True):
        if not isinstance(chosen, bool | np.bool_):
            raise ValueError(f"trainable must be true or false of '{name}', got {chosen!r}")
        if chosen and jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(
                f"params hold {dtype} at '{name}', which cannot be trained: give real and "
                "imaginary part as two leaves"
            )
    chosen = [
        bool(a) and jnp.issubdtype(t, jnp.floating) for a, t in zip(asked, types, strict=True)
    ]
    if not any(chosen):
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ValueError(f"trainable leaves no floating point leaf to train, of {listed}")
    return jax.tree.unflatten(tree, chosen)


def combine(moving: PyTree, fixed: PyTree) -> PyTree:
    """The parameters that `partition` has parted."""
    if not jax.tree.leaves(fixed):
        return moving
    return jax.tree.map(
        lambda a, b: b if a is None else a, moving, fixed, is_leaf=lambda leaf: leaf is None
    )


def bind_fixed(f: Callable, fixed: PyTree) -> Callable:
    """f as a function of the moving parameters; f itself where all of them move.

    Fixed arrays of NumPy become JAX's, which can be indexed by what is traced.
    """
    if not jax.tree.leaves(fixed):
        return f
    fixed = jax.tree.map(lambda a: jnp.asarray(a) if isinstance(a, np.ndarray) else a, fixed)
    if hasattr(f, "bind_fixed"):  # a wrapper around a network, such as `slices.Sliced`
        return f.bind_fixed(fixed)
    return lambda moving, *rest, **named: f(combine(moving, fixed), *rest, **named)


def warn_about_batch_stats(params: PyTree) -> None:
    """Warns where params hold running statistics, which no gradient should move.

    Those are leaves in a collection "batch_stats" (Flax Linen) or in a variable of the kind
    `BatchStat` (Flax NNX).
    """
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_statistic):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if "batch_stats" in name.split("/") or (_is_statistic(leaf) and jax.tree.leaves(leaf)):
            found.append(name)
    if found:
        listed = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
        warnings.warn(
            f"params hold running statistics of batch normalisation ({listed}), and training moves "
            "them by gradient: take the module apart with `iterlin.from_linen` or "
            "`iterlin.from_nnx`, or leave them out by `trainable`",
            stacklevel=4,
        )


def _is_statistic(node: Any) -> bool:
    return any(kind.__name__ == "BatchStat" for kind in type(node).__mro__)


def _type(name: str, leaf: Any) -> Any:
    try:
        return jnp.result_type(leaf)
    except TypeError:
        raise ValueError(
            f"params hold {leaf!r} at '{name}', which is no array: take apart what f is made of, "
            "as `iterlin.from_equinox` or `iterlin.from_nnx` do"
        ) from None
