"""Functions of many examples, evaluated a few examples at a time.

On a CPU a slice's activations then stay in cache; on any device they are all the memory there is
need for. The functions must treat their examples independently.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from iterlin.linearise import examples
from iterlin.linearise.linearization import Network, tree_add
from iterlin.linearise.parameters import bind_fixed
from iterlin.linearise.validation import check_positive_integer


@dataclass(frozen=True)
class Sliced:
    """f(params, x) on `size` examples at a time, one slice after another (see `in_slices`)."""

    f: Network
    size: int

    def __call__(self, params: PyTree, x: PyTree, *key: Array | None) -> PyTree:
        count, size = examples.num_examples(x), self.size
        if count <= size:
            return self.f(params, x, *key)
        whole = count - count % size
        # Where f draws, each slice has a key of its own; where its key is None, none has.
        keys = jax.tree.map(lambda k: jax.random.split(k, whole // size + 1), key)
        inputs = _parts(x, whole, size), jax.tree.map(lambda k: k[:-1], keys)
        outputs = jax.lax.map(lambda part: self.f(params, part[0], *part[1]), inputs)
        outputs = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), outputs)
        if whole == count:
            return outputs
        last = jax.tree.map(lambda k: k[-1], keys)
        rest = self.f(params, examples.take_slice(x, whole), *last)
        return jax.tree.map(lambda *a: jnp.concatenate(a), outputs, rest)

    def bind_fixed(self, fixed: PyTree) -> "Sliced":
        """The same of the moving parameters (`parameters.bind_fixed`)."""
        return replace(self, f=bind_fixed(self.f, fixed))


def in_slices(f: Network, size: int) -> Sliced:
    """The same function of (params, x), evaluated on `size` examples at a time, one after another.

    f must treat its examples independently: inputs and outputs are arrays or pytrees that lead with
    N. Linearisation and transposition go through, and keep the slices. The remainder of N / size
    is a smaller slice of its own; N <= size is f itself.

    Raises ValueError if size is not a positive integer.

    >>> net = il.mlp((2, 16, 3))
    >>> f = il.in_slices(net.apply, 100)
    >>> f(net.init(jax.random.key(0)), jnp.ones((250, 2))).shape
    (250, 3)
    """
    check_positive_integer("size", size)
    return Sliced(f, size)


def sum_over_slices(term: Callable[..., PyTree], size: int, *trees: PyTree) -> PyTree:
    """``term(*trees)``, a pytree that sums over examples, as the sum of the terms of all slices.

    The leaves of the trees lead with N. Nothing outlives its slice but the sum.

    Raises ValueError if size is not a positive integer or the trees differ in length.
    """
    check_positive_integer("size", size)
    if examples.num_examples(trees, "arrays") <= size:
        return term(*trees)
    shapes = jax.eval_shape(term, *examples.take_slice(trees, 0, size))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return fold_slices(lambda total, *part: tree_add(total, term(*part)), zero, size, *trees)


def fold_slices(step: Callable[..., PyTree], start: PyTree, size: int, *trees: PyTree) -> PyTree:
    """``step(carry, *part)`` of one slice of the trees after another, the first from `start`."""
    count = examples.num_examples(trees, "arrays")
    whole = count - count % size
    carry = start
    if whole:
        parts = _parts(trees, whole, size)
        carry, _ = jax.lax.scan(lambda carry, part: (step(carry, *part), None), carry, parts)
    return step(carry, *examples.take_slice(trees, whole)) if whole < count else carry


def _parts(tree: PyTree, whole: int, size: int) -> PyTree:
    """The first `whole` examples, by slices: (whole / size, size, ...)."""
    return jax.tree.map(lambda a: a[:whole].reshape(-1, size, *a.shape[1:]), tree)
