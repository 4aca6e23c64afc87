"""Functions of many examples, evaluated a few examples at a time.

On a CPU a slice's activations then stay in cache; on any device they are all the memory there is
need for. The functions must treat their examples independently.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from iterlin.linearization import Network, tree_add
from iterlin.validation import positive_integer


@dataclass(frozen=True)
class Sliced:
    """f(params, x) on `size` examples at a time, one slice after another (see `in_slices`)."""

    f: Network
    size: int

    def __call__(self, params: PyTree, x: Array) -> PyTree:
        whole = len(x) - len(x) % self.size
        if len(x) <= self.size:
            return self.f(params, x)
        parts = x[:whole].reshape(-1, self.size, *x.shape[1:])
        outputs = jax.lax.map(lambda part: self.f(params, part), parts)
        outputs = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), outputs)
        if whole == len(x):
            return outputs
        return jax.tree.map(lambda *a: jnp.concatenate(a), outputs, self.f(params, x[whole:]))


def in_slices(f: Network, size: int) -> Sliced:
    """The same function of (params, x), evaluated on `size` examples at a time, one after another.

    f must treat its examples independently: its outputs, an array or a pytree of arrays, lead with
    N. Linearisation and transposition go through, and keep the slices. The remainder of N / size
    is a smaller slice of its own; N <= size is f itself.

    Raises ValueError if size is not a positive integer.
    """
    positive_integer("size", size)
    return Sliced(f, size)


def sum_over_slices(term: Callable[..., PyTree], size: int, *arrays: Array) -> PyTree:
    """``term(*arrays)``, a pytree that sums over examples, as the sum of the terms of all slices.

    The arrays lead with N. Nothing outlives its slice but the sum.

    Raises ValueError if size is not a positive integer or the arrays differ in length.
    """
    positive_integer("size", size)
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(f"the arrays differ in length: {lengths}")
    count = lengths[0]
    whole = count - count % size
    if count <= size:
        return term(*arrays)
    parts = [a[:whole].reshape(-1, size, *a.shape[1:]) for a in arrays]
    shapes = jax.eval_shape(term, *[part[0] for part in parts])
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(lambda sum_, part: (tree_add(sum_, term(*part)), None), zero, parts)
    if whole < count:
        total = tree_add(total, term(*[a[whole:] for a in arrays]))
    return total
