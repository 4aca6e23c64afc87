"""The empirical NTK."""

import inspect

import iterlin as il
import jax
import numpy as np
from iterlin.networks.mlp import parameter_count

from bench.peers.ours.common import batch, from_named, named, network, precision
from bench.worker import Prepared

# What the library's function may call a form.
ARGUMENTS = ({"form": "diagonal"}, {"diagonal": True})


def inputs(settings):
    precision(settings)
    key = jax.random.key(0)
    x, _ = batch(settings, jax.random.fold_in(key, 1))
    return {"x": np.asarray(x), **named(network(settings).init(key), "params")}


def kernel(settings, arrays):
    """settings["form"]: full (N, N, O, O), trace (N, N), or diagonal (N, N, O)."""
    precision(settings)
    model = network(settings)
    params = from_named(arrays, "params", jax.eval_shape(lambda: model.init(jax.random.key(0))))
    x = jax.device_put(arrays["x"])
    arguments = _arguments(settings["form"])
    return Prepared(
        run=lambda: il.empirical_ntk(model.apply, params, x, **arguments).block_until_ready(),
        results=lambda found: {"kernel": np.asarray(found)},
        facts={"parameters": parameter_count(params)},
    )


def _arguments(form):
    if form != "diagonal":
        return {"trace": form == "trace"}
    known = inspect.signature(il.empirical_ntk).parameters
    for arguments in ARGUMENTS:
        if set(arguments) <= set(known):
            return arguments
    raise ValueError("the library has no diagonal form of the kernel")
