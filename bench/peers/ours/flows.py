"""A whole linearisation of a convolutional network, with J J^T kept in one form or the other."""

import iterlin as il
import jax
import jax.numpy as jnp
from iterlin import losses
from iterlin.exact import flow, linear_model
from iterlin.exact.flow import Objective
from iterlin.kernels.kept import KeptKernel

from bench.peers.ours.common import batch, flat, network, precision
from bench.worker import Prepared

MOST_STEPS = 10_000


def keep(form, f, params, x) -> KeptKernel:
    """Factors by a limit that the matrix is beyond."""
    if form == "matrix":
        return KeptKernel(matrix=il.ntk_matrix(f, params, x))
    outputs = jax.eval_shape(f, params, x)
    return il.kept_ntk(f, params, x, memory_limit=4 * outputs.size**2 - 1)


def linearization(settings, arrays):
    """settings["form"]: factors or matrix, made and then used for a time settings["time"]."""
    precision(settings)
    model, (x, y) = network(settings), batch(settings, jax.random.key(1))
    params = model.init(jax.random.key(0))

    @jax.jit
    def flowed(kernel, params, x, y):
        linear = linear_model.from_kernel(model.apply, params, x, kernel.product)
        objective = Objective(linear, losses.mean(losses.cross_entropy), y)
        until = jnp.asarray(settings["time"], jnp.float32)
        start = flow.begin(objective)
        return flow.advance(objective, start, until, tolerance=1e-3, max_steps=MOST_STEPS)

    def run():
        return jax.block_until_ready(
            flowed(keep(settings["form"], model.apply, params, x), params, x, y)
        )

    return Prepared(
        run=run,
        results=lambda end: {"change of the outputs": flat(end.image)},
        facts={"products": int(run().evaluations)},
    )
