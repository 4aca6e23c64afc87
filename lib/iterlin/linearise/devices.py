"""Arrays that lie on several devices, and sums over examples that are dealt out to these."""

from collections.abc import Callable, Iterator
from functools import wraps

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from iterlin.linearise import examples
from iterlin.linearise.validation import is_traced


def to_auto_axes(tree: PyTree) -> PyTree:
    """The leaves as arrays on their devices; the compiler is left to spread what is made of them.

    A mesh with Explicit axes, as `jax.make_mesh` gives them, wants every gather and product to be
    told where its result lies, which a network written for one device does not: axes become Auto.
    """
    return jax.tree.map(_automatic, tree)


def with_auto_axes(function: Callable) -> Callable:
    """The function, given the arrays among its arguments as `to_auto_axes` gives them.

    Arguments that hold no array on Explicit axes are passed on as they are.
    """

    @wraps(function)
    def called(*args, **settings):
        # Batches of data come as an iterator, too, which JAX would not take for a leaf unasked.
        leaves, structure = jax.tree.flatten((args, settings), lambda x: isinstance(x, Iterator))
        if any(map(_is_explicit, leaves)):
            leaves = [_automatic(leaf) if _is_explicit(leaf) else leaf for leaf in leaves]
            args, settings = jax.tree.unflatten(structure, leaves)
        return function(*args, **settings)

    return called


def _is_explicit(leaf) -> bool:
    sharding = None if is_traced(leaf) else getattr(leaf, "sharding", None)
    return isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types


def _automatic(leaf):
    leaf = jnp.asarray(leaf)
    if not _is_explicit(leaf):
        return leaf
    mesh = _automatic_mesh(leaf.sharding.mesh)
    return jax.device_put(leaf, NamedSharding(mesh, leaf.sharding.spec))


def _automatic_mesh(mesh: Mesh) -> Mesh:
    names = mesh.axis_names
    return Mesh(mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))


def find_mesh(tree: PyTree) -> Mesh | None:
    """The devices of a mesh that a leaf lies on, spread over them or copied to each; None where
    there are not several."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return sharding.mesh
    return None


def sum_over_devices(term: Callable[..., PyTree], mesh: Mesh, *trees: PyTree) -> PyTree:
    """``term(*trees)``, a pytree that sums over examples, as the sum of the terms of all devices.

    The leaves of the trees lead with N. Left to itself the compiler has every device go through
    all slices of a sliced network. The N mod D examples that D devices cannot share are treated by
    each of them.
    """
    count = examples.num_examples(trees, "arrays")
    whole = count - count % mesh.size
    if whole == 0:
        return term(*trees)
    axes = mesh.axis_names
    summed = jax.shard_map(
        lambda *part: jax.lax.psum(term(*part), axes),
        mesh=_automatic_mesh(mesh),
        in_specs=PartitionSpec(axes),
        out_specs=PartitionSpec(),
        check_vma=False,  # a part's program is one device's, and not written for many
    )(*examples.take_slice(trees, 0, whole))
    if whole == count:
        return summed
    return jax.tree.map(jnp.add, summed, term(*examples.take_slice(trees, whole)))
