"""Evaluate functions of many examples on a few examples at a time.

On a CPU the activations of a slice stay in cache. On any device they are all that is kept in
memory. The functions must treat their examples independently.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from iterlin.linearise import examples
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.linearization import Network
from iterlin.linearise.parameters import bind_fixed
from iterlin.linearise.precision import widened
from iterlin.linearise.validation import check_positive_integer


@dataclass(frozen=True)
class Sliced:
    """A network evaluated slice by slice; `in_slices` makes it.

    Args:
        f: The network, f(params, x) or f(params, x, key).
        size: The number of examples in a slice.
    """

    f: Network
    size: int

    @with_auto_axes
    def __call__(self, params: PyTree, x: PyTree, *key: Array | None) -> PyTree:
        """Evaluate f on all N examples.

        *key: at most one PRNG key, which is split into one for each slice; None is passed on.
        """
        count, size = examples.num_examples(x), self.size
        if count <= size:
            return self.f(params, x, *key)
        divisible = count - count % size
        keys = jax.tree.map(lambda k: jax.random.split(k, divisible // size + 1), key)
        inputs = _split_into_slices(x, divisible, size), jax.tree.map(lambda k: k[:-1], keys)
        wide = jax.tree.map(widened, params)  # so that a gradient adds up slices in float32

        def of_slice(part):
            narrow = jax.tree.map(_in_type_of, wide, params)
            found = self.f(narrow, part[0], *part[1])
            examples.num_examples(found, "outputs of a network in slices")
            return found

        outputs = jax.lax.map(of_slice, inputs)
        outputs = jax.tree.map(lambda a: a.reshape(divisible, *a.shape[2:]), outputs)
        if divisible == count:
            return outputs
        last_key = jax.tree.map(lambda k: k[-1], keys)
        remainder = self.f(params, examples.take_slice(x, divisible), *last_key)
        return jax.tree.map(lambda *a: jnp.concatenate(a), outputs, remainder)

    def bind_fixed(self, fixed: PyTree) -> "Sliced":
        """Return the sliced network as a function of the trained parameters alone."""
        return replace(self, f=bind_fixed(self.f, fixed))


def in_slices(f: Network, size: int) -> Sliced:
    """Evaluate a network on `size` examples at a time, one slice after another.

    Linearisation and transposition keep the slices. If size does not divide N, the last slice is
    smaller.

    Args:
        f: A network that treats its examples independently. Inputs and outputs are arrays, or
            pytrees of arrays, that lead with N.
        size: The number of examples in a slice.

    Returns:
        A network with the signature and the values of f.

    Raises:
        ValueError: If size is not a positive integer.

    >>> net = il.mlp((2, 16, 3))
    >>> f = il.in_slices(net.apply, 100)
    >>> f(net.init(jax.random.key(0)), jnp.ones((250, 2))).shape
    (250, 3)
    """
    check_positive_integer("size", size)
    return Sliced(f, size)


def sum_over_slices(term: Callable[..., PyTree], size: int, *trees: PyTree) -> PyTree:
    """Compute a sum over examples slice by slice, keeping nothing of a slice but its sum.

    The slices are added in float32 or wider.

    Args:
        term: ``term(*trees)`` returns a pytree of sums over the examples.
        size: The number of examples in a slice.
        *trees: Pytrees of arrays that lead with N.

    Returns:
        The value of ``term(*trees)``.

    Raises:
        ValueError: If size is not a positive integer or the trees differ in length.
    """
    check_positive_integer("size", size)
    if examples.num_examples(trees, "arrays") <= size:
        return term(*trees)
    shapes = jax.eval_shape(term, *examples.take_slice(trees, 0, size))
    zero = jax.tree.map(lambda leaf: widened(jnp.zeros(leaf.shape, leaf.dtype)), shapes)
    total = fold_slices(lambda total, *part: optax.tree.add(total, term(*part)), zero, size, *trees)
    return jax.tree.map(_in_type_of, total, shapes)


def _in_type_of(leaf, like):
    """Return a leaf that `widened` has changed, in the type that it had before."""
    return leaf if leaf is like else leaf.astype(like.dtype)


def fold_slices(step: Callable[..., PyTree], start: PyTree, size: int, *trees: PyTree) -> PyTree:
    """Fold ``step(carry, *slice_of_trees)`` over slices of examples, from the first to the last.

    size: the number of examples in a slice; the last slice may be smaller.
    """
    count = examples.num_examples(trees, "arrays")
    divisible = count - count % size
    carry = start
    if divisible:
        parts = _split_into_slices(trees, divisible, size)
        carry, _ = jax.lax.scan(lambda carry, part: (step(carry, *part), None), carry, parts)
    if divisible == count:
        return carry
    return step(carry, *examples.take_slice(trees, divisible))


def _split_into_slices(tree: PyTree, count: int, size: int) -> PyTree:
    """Reshape the first `count` examples, a multiple of size, to (count / size, size, ...)."""
    return jax.tree.map(lambda a: a[:count].reshape(-1, size, *a.shape[1:]), tree)
