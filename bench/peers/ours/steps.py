"""One step of training as runs take it, and the matrix product that sets the floor."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from iterlin import schedules
from iterlin.algorithm import Algorithm
from iterlin.networks.mlp import parameter_count
from iterlin.runtime import costs
from iterlin.runtime.devices import mesh_of

from bench.peers.ours.common import ENTROPY, batch, flat, network, precision
from bench.worker import Prepared


def inputs(settings):
    """Return a point of expansion, parameters one hundredth away from it, and a batch."""
    precision(settings)
    key = jax.random.key(0)
    anchor = network(settings).init(key)
    x, y = batch(settings, jax.random.fold_in(key, 1))
    leaves, tree = jax.tree.flatten(anchor)
    keys = jax.random.split(jax.random.fold_in(key, 2), len(leaves))
    moved = [
        leaf + 0.01 * jnp.std(leaf) * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    params = jax.tree.unflatten(tree, moved)
    return jax.device_get({"x": x, "y": y, "anchor": anchor, "params": params})


def step(settings, arrays):
    """A step of plain gradient descent at the anchor, or one of the linearised network.

    The batch is all the examples, shuffled as in a run and shared by all devices.
    settings["steps"] of them are a run, a compiled loop; the results are the first one's.
    """
    precision(settings)
    model, in_a_run = network(settings), settings["steps"]
    given = jax.device_put(arrays or inputs(settings))
    anchor, data = given["anchor"], (given["x"], given["y"])
    if jax.device_count() > 1:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        data = jax.device_put(data, jax.NamedSharding(mesh, jax.P("data")))
    algorithm = Algorithm(
        f=model.apply,
        loss=ENTROPY,
        optimizer=settings["step_size"],
        batch_size=len(data[1]),
        mesh=mesh_of(data),
    )
    plain = settings["step"] == "plain"
    schedule = schedules.every(1) if plain else schedules.never()
    state = algorithm.start(anchor, data, jax.random.key(0))
    if not plain:
        state = state._replace(params=given["params"], step=jnp.asarray(1, jnp.int32))
    advance = jax.jit(lambda state, data, count: algorithm.advance(state, data, count, schedule))

    def run(steps=in_a_run):
        return jax.block_until_ready(advance(state, data, jnp.asarray(steps, jnp.int32)))

    # Operations are those of the convolutions as defined, not of shorter products.
    defined = replace(algorithm, f=network(settings, "patches").apply, mesh=None)
    operations = costs.operations(
        lambda state, data: defined.step(state, data, schedule), state, data
    )
    return Prepared(
        run=run,
        results=lambda _: {"displacement": flat(run(1).params) - flat(state.params)},
        units=in_a_run,
        facts={"operations": operations, "parameters": parameter_count(anchor)},
    )


def matmul(settings, arrays):
    """A square matrix product."""
    size = settings["matmul"]
    a, b = jax.random.normal(jax.random.key(3), (2, size, size), jnp.float32)
    multiply = jax.jit(jnp.dot)
    return Prepared(
        run=lambda: multiply(a, b).block_until_ready(),
        results=lambda product: {},
        facts={"operations": 2 * size**3},
    )
