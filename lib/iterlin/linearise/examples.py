"""Inputs or targets of N examples: an array that leads with N, or a pytree of such arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def num_examples(tree: PyTree, name: str = "inputs") -> int:
    """N. Raises ValueError, by `name`, for no array at all, one without axes or examples,
    one of objects or text, or unequal lengths."""
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = name + jax.tree_util.keystr(path)
        if np.ndim(leaf) == 0:
            raise ValueError(f"{where} must lead with the examples, got a single {leaf!r}")
        sizes[where] = np.shape(leaf)[0]
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSUmM":
            raise ValueError(f"{where} must be numbers, got an array of dtype {leaf.dtype}")
        if sizes[where] == 0:
            raise ValueError(
                f"{where} must hold an example, got empty data of shape {np.shape(leaf)}"
            )
    if not sizes:
        raise ValueError(f"{name} must hold an array that leads with the examples, got {tree!r}")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{where}: {size}" for where, size in sizes.items())
        raise ValueError(f"{name} differ in their numbers of examples ({listed})")
    return next(iter(sizes.values()))


def take(tree: PyTree, chosen: Any) -> PyTree:
    """The examples at the indices `chosen`, which may be traced."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, chosen, 0), tree)


def take_slice(tree: PyTree, start: int | None, stop: int | None = None) -> PyTree:
    """Examples start to stop, as of a slice; ``part(tree, 1)`` is all but the first."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def batch_shapes(tree: PyTree, number: int) -> PyTree:
    """Shapes and types of the first examples, as many as there are of `number`; nothing runs."""
    return jax.eval_shape(lambda tree: take_slice(tree, 0, number), tree)


def add_batch_axis(tree: PyTree) -> PyTree:
    """One example, without an axis for it, as a batch of one."""
    return jax.tree.map(lambda leaf: leaf[None], tree)
