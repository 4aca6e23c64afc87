"""Damped Gauss-Newton on the quintic, from several initialisations, until a loss is reached."""

import iterlin as il
import jax
import numpy as np
from iterlin.networks.mlp import mlp
from iterlin.study import data

from bench.peers.ours.common import precision
from bench.worker import Prepared

# As on the quintic's page, with random biases.
MODEL = mlp([1, 50, 50, 50, 50, 50, 1], bias_scale=0.5)


def inputs(settings):
    precision(settings)
    train = data.quintic(-4.0, 4.0).train
    params = jax.vmap(MODEL.init)(jax.random.split(jax.random.key(9), settings["seeds"]))
    return jax.device_get({"x": train.x, "y": train.y, "params": params})


def gauss_newton(settings, arrays):
    """All of them one after another in one compiled loop."""
    precision(settings)
    params, x, y = jax.device_put([arrays[name] for name in ("params", "x", "y")])
    options = {"solver": "cholesky", "tolerance": 0.0, "target_loss": settings["target"]}
    options |= {name: settings[name] for name in ("damping", "max_steps")}

    @jax.jit
    def solve(params, x, y):
        def one(start):
            solution = il.gauss_newton(MODEL.apply, start, x, y, **options)
            return solution.history["loss"][solution.num_steps], solution.num_steps

        return jax.lax.map(one, params)

    _, counts = solve(params, x, y)
    return Prepared(
        run=lambda: jax.block_until_ready(solve(params, x, y)),
        results=lambda found: {"reached": 1.0 * (np.asarray(found[0]) <= settings["target"])},
        facts={"iterations": int(counts.sum())},
    )
