"""The empirical NTK."""

import iterlin as il
import jax
import numpy as np
from iterlin.networks.mlp import parameter_count

from bench.peers.ours.common import batch, network, precision
from bench.worker import Prepared


def inputs(settings):
    precision(settings)
    key = jax.random.key(0)
    x, _ = batch(settings, jax.random.fold_in(key, 1))
    return jax.device_get({"x": x, "params": network(settings).init(key)})


def kernel(settings, arrays):
    """settings["form"]: full (N, N, O, O), trace (N, N), or diagonal (N, N, O)."""
    precision(settings)
    model, form = network(settings), settings["form"]
    params, x = jax.device_put((arrays["params"], arrays["x"]))
    options = {} if form == "full" else {form: True}
    return Prepared(
        run=lambda: il.empirical_ntk(model.apply, params, x, **options).block_until_ready(),
        results=lambda found: {"kernel": np.asarray(found)},
        facts={"parameters": parameter_count(params)},
    )
