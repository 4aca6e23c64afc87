"""Arrays that are spread over several devices."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jaxtyping import PyTree


def on_device(tree: PyTree) -> PyTree:
    """The leaves as arrays on their devices; the compiler is left to spread what is made of them.

    A mesh with Explicit axes, as `jax.make_mesh` gives them, wants every gather and product to be
    told where its result lies, which a network written for one device does not: axes become Auto.
    """
    return jax.tree.map(_automatic, tree)


def _automatic(leaf):
    leaf = jnp.asarray(leaf)
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return leaf
    mesh = jax.sharding.Mesh(
        sharding.mesh.devices,
        sharding.mesh.axis_names,
        axis_types=(AxisType.Auto,) * len(sharding.mesh.axis_names),
    )
    return jax.device_put(leaf, NamedSharding(mesh, sharding.spec))
