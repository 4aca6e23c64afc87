"""What the library's cases have in common."""

import jax
import numpy as np
from iterlin.networks import convnets
from iterlin.networks.mlp import mlp
from jax.flatten_util import ravel_pytree

LENET_IMAGE = (32, 32, 3)


def network(settings, method="auto"):
    """The model that settings["network"] names: "lenet", or the widths of an MLP."""
    if settings["network"] == "lenet":
        channels = settings.get("channels", 50)
        return convnets.lenet(LENET_IMAGE, channels=channels, method=method)
    return mlp(settings["network"])


def batch(settings, key):
    """Standard normal inputs and, where settings name classes, uniform labels."""
    count = settings["examples"]
    shape = LENET_IMAGE if settings["network"] == "lenet" else (settings["network"][0],)
    x = jax.random.normal(key, (count, *shape))
    y = jax.random.randint(jax.random.fold_in(key, 1), (count,), 0, settings.get("classes", 10))
    return x, y


def spread(arrays):
    """Arrays that lead with the examples, spread over all devices where there are several."""
    if jax.device_count() == 1:
        return arrays
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    return jax.device_put(arrays, jax.NamedSharding(mesh, jax.P("data")))


def flat(tree) -> np.ndarray:
    """All numbers of a pytree, in the order of `ravel_pytree`."""
    return np.asarray(ravel_pytree(tree)[0])


def named(tree, prefix) -> dict[str, np.ndarray]:
    """Leaves by name, such as anchor/conv1/kernel, for peers that know no pytrees."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        "/".join([prefix, *[str(getattr(k, "key", getattr(k, "idx", k))) for k in path]]): np.array(
            leaf
        )
        for path, leaf in leaves
    }


def from_named(arrays, prefix, like):
    """The pytree that `named` took apart, shaped as `like`."""
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    names = named(jax.tree_util.tree_unflatten(tree, [leaf for _, leaf in paths]), prefix)
    # Not by asarray, which compiles a program for each shape.
    return jax.tree_util.tree_unflatten(tree, [jax.device_put(arrays[name]) for name in names])


def precision(settings) -> None:
    jax.config.update("jax_enable_x64", bool(settings.get("double", False)))
