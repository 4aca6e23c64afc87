"""What the library's cases share: networks, inputs and precision."""

import jax
import numpy as np
from iterlin import losses
from iterlin.networks import convnets
from iterlin.networks.mlp import mlp
from jax.flatten_util import ravel_pytree

LENET_IMAGE = (32, 32, 3)
ENTROPY = losses.mean(losses.cross_entropy)


def network(settings, method="auto"):
    """Return the model that settings["network"] names: "lenet", or the widths of an MLP."""
    if settings["network"] == "lenet":
        channels = settings.get("channels", 50)
        return convnets.lenet(LENET_IMAGE, channels=channels, method=method)
    return mlp(settings["network"])


def batch(settings, key):
    """Return standard normal inputs and uniform labels of ten classes."""
    count = settings["examples"]
    shape = LENET_IMAGE if settings["network"] == "lenet" else (settings["network"][0],)
    x = jax.random.normal(key, (count, *shape))
    return x, jax.random.randint(jax.random.fold_in(key, 1), (count,), 0, 10)


def flat(tree) -> np.ndarray:
    """Return all numbers of a pytree, in the order of `ravel_pytree`."""
    return np.asarray(ravel_pytree(tree)[0])


def precision(settings) -> None:
    jax.config.update("jax_enable_x64", bool(settings.get("double", False)))
