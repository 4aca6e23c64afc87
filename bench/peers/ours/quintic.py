"""Damped Gauss-Newton on the quintic, from several initialisations, until a loss is reached."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
from iterlin.networks.mlp import mlp
from iterlin.study import data

from bench.peers.ours.common import from_named, named, precision
from bench.worker import Prepared

# As on the quintic's page, with random biases.
MODEL = mlp([1, 50, 50, 50, 50, 50, 1], bias_scale=0.5)


def inputs(settings):
    precision(settings)
    train = data.quintic(-4.0, 4.0).train
    params = jax.vmap(MODEL.init)(jax.random.split(jax.random.key(9), settings["seeds"]))
    return {"x": np.asarray(train.x), "y": np.asarray(train.y), **named(params, "params")}


def gauss_newton(settings, arrays):
    """All of them one after another in one compiled loop."""
    precision(settings)
    shapes = jax.eval_shape(jax.vmap(MODEL.init), jax.random.split(jax.random.key(0), 1))
    params = from_named(arrays, "params", shapes)
    x, y = jnp.asarray(arrays["x"]), jnp.asarray(arrays["y"])

    @jax.jit
    def solve(params, x, y):
        def one(start):
            solution = il.gauss_newton(
                MODEL.apply,
                start,
                x,
                y,
                damping=settings["damping"],
                solver="cholesky",
                max_steps=settings["max_steps"],
                tolerance=0.0,
                target_loss=settings["target"],
            )
            return solution.history["loss"][solution.num_steps], solution.num_steps

        return jax.lax.map(one, params)

    _, counts = solve(params, x, y)
    return Prepared(
        run=lambda: jax.block_until_ready(solve(params, x, y)),
        results=lambda found: {"reached": 1.0 * (np.asarray(found[0]) <= settings["target"])},
        facts={"iterations": int(counts.sum())},
    )
