"""Datasets of N examples: an array whose first axis is N, or a pytree of such arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def num_examples(tree: PyTree, name: str = "inputs") -> int:
    """Return the number of examples N, the common length of all leaves.

    Raises ValueError, which calls the tree by its name, if there is no array, a leaf has no axis,
    no examples, or holds objects or text, or the leaves differ in length.
    """
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where = name + jax.tree_util.keystr(path)
        if np.ndim(leaf) == 0:
            remedy = ": give one array in place of a list" if isinstance(tree, list) else ""
            raise ValueError(f"{where} must lead with the examples, got a single {leaf!r}{remedy}")
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


def take(tree: PyTree, indices: Any) -> PyTree:
    """Gather examples by index: leaves lead with the axes of `indices` in place of N."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, indices, 0), tree)


def take_slice(tree: PyTree, start: int | None, stop: int | None = None) -> PyTree:
    """Return the pytree of ``leaf[start:stop]``."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def batch_shapes(tree: PyTree, size: int) -> PyTree:
    """Return shapes and dtypes of a batch of the first min(size, N) examples."""
    return jax.eval_shape(lambda tree: take_slice(tree, 0, size), tree)


def add_batch_axis(example: PyTree) -> PyTree:
    """Turn one example into a batch of size one."""
    return jax.tree.map(lambda leaf: leaf[None], example)
