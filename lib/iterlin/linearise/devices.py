"""Arrays on a mesh of several devices, and sums over examples that are sharded over them."""

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    get_abstract_mesh,
    get_mesh,
)
from jaxtyping import PyTree

from iterlin.linearise import examples
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import inside_trace, is_traced

Function = TypeVar("Function", bound=Callable)


def to_array(value: Any, dtype: Any = None) -> jax.Array:
    """Return numbers as a JAX array; `jnp.asarray` would compile a program for each new shape."""
    if isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    is_number = isinstance(value, bool | int | float) and dtype is None  # keeps its weak type
    return jax.device_put(value if is_number else np.asarray(value, dtype))


def to_auto_axes(tree: PyTree) -> PyTree:
    """Convert the leaves to arrays whose mesh axes are of type Auto, on the same devices.

    On Explicit axes, which `jax.make_mesh` gives, every gather and product must be told the
    sharding of its result. A network written for one device does not do so. On Auto axes the
    compiler chooses the shardings.
    """
    return jax.tree.map(lambda leaf: _to_auto_axes(to_array(leaf)), tree)


def with_auto_axes(function: Function) -> Function:
    """Decorate a function so that it receives its array arguments on Auto mesh axes.

    Under ``jax.set_mesh`` of a mesh with Explicit axes the function runs on that mesh with Auto
    axes, and its result is returned on the mesh that is set.
    """

    @wraps(function)
    def wrapped(*args, **settings):
        # A dataset may be an iterator of batches, which JAX does not take for a leaf unasked.
        leaves, structure = jax.tree.flatten((args, settings), lambda x: isinstance(x, Iterator))
        if any(map(_explicit_sharding, leaves)):
            args, settings = jax.tree.unflatten(structure, map(_to_auto_axes, leaves))
        if inside_trace() or AxisType.Explicit not in get_abstract_mesh().axis_types:
            return function(*args, **settings)
        mesh = get_mesh()
        with jax.set_mesh(_auto_mesh(mesh)):
            found = function(*args, **settings)
            return jax.tree.map(partial(_to_mesh, mesh), found)

    return cast(Function, wrapped)


def on_any_device(function: Function) -> Function:
    """Decorate a function: arguments on Auto mesh axes, products in full precision.

    See `with_auto_axes` and `precision.full_precision`.
    """
    return with_auto_axes(full_precision()(function))


def _to_mesh(mesh: Mesh, leaf: Any) -> Any:
    """Return an array on Auto axes of these devices as one on the mesh; anything else as it is."""
    sharding = None if is_traced(leaf) else getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.mesh == _auto_mesh(mesh):
        return jax.device_put(leaf, NamedSharding(mesh, sharding.spec))
    return leaf


def _explicit_sharding(leaf: Any) -> NamedSharding | None:
    """Return the sharding of a concrete array on a mesh with Explicit axes, otherwise None."""
    sharding = None if is_traced(leaf) else getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types:
        return sharding
    return None


def _to_auto_axes(leaf: Any) -> Any:
    sharding = _explicit_sharding(leaf)
    if sharding is None:
        return leaf
    return jax.device_put(leaf, NamedSharding(_auto_mesh(sharding.mesh), sharding.spec))


def _auto_mesh(mesh: Mesh | AbstractMesh) -> Mesh:
    names = mesh.axis_names
    return Mesh(np.asarray(mesh.devices), names, axis_types=(AxisType.Auto,) * len(names))


def find_mesh(tree: PyTree) -> Mesh | None:
    """Return the mesh of the first leaf that lies on several devices; None if no leaf does."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        if isinstance(mesh, Mesh) and mesh.size > 1:
            return mesh
    return None


def sum_over_devices(
    term: Callable[..., PyTree], mesh: Mesh, trees: tuple, shared: tuple = ()
) -> PyTree:
    """Compute a sum over examples with one part of the examples on each device.

    Without this function the compiler would let every device loop over all slices of a network
    that is evaluated in slices. If the D devices do not divide the N examples, every device also
    treats the N mod D examples that are left over.

    term(*trees, *shared) returns a pytree of sums over the examples, by which the arrays of the
    trees lead. Every device needs `shared` whole. If the term captured them instead, JAX could not
    index those that lie on the mesh. The sum is replicated on the devices.
    """
    count = examples.num_examples(trees, "arrays")
    divisible = count - count % mesh.size
    if divisible == 0:
        return term(*trees, *shared)
    axes = mesh.axis_names
    total = jax.shard_map(
        lambda part, shared: jax.lax.psum(term(*part, *shared), axes),
        mesh=_auto_mesh(mesh),
        in_specs=(PartitionSpec(axes), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,  # the program of one part is written for one device
    )(examples.take_slice(trees, 0, divisible), shared)
    if divisible == count:
        return total
    rest = examples.take_slice(trees, divisible)
    return jax.tree.map(jnp.add, total, term(*rest, *shared))
