"""One step of training as runs take it: `algorithm.Algorithm` in a compiled loop."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from iterlin import losses, schedules
from iterlin.algorithm import Algorithm
from iterlin.exact.engines import Steps
from iterlin.exact.task import Task
from iterlin.networks.mlp import parameter_count
from iterlin.runtime import costs
from iterlin.runtime.devices import mesh_of

from bench.peers.ours.common import batch, flat, from_named, named, network, precision, spread
from bench.worker import Prepared

ENTROPY = losses.mean(losses.cross_entropy)


def inputs(settings):
    """A point of expansion, parameters one hundredth away from it, and a batch."""
    precision(settings)
    key = jax.random.key(0)
    anchor = network(settings).init(key)
    x, y = batch(settings, jax.random.fold_in(key, 1))
    noise = jax.random.fold_in(key, 2)
    leaves, tree = jax.tree.flatten(anchor)
    moved = [
        leaf + 0.01 * jnp.std(leaf) * jax.random.normal(jax.random.fold_in(noise, i), leaf.shape)
        for i, leaf in enumerate(leaves)
    ]
    params = jax.tree.unflatten(tree, moved)
    arrays = {"x": np.asarray(x), "y": np.asarray(y)}
    return arrays | named(anchor, "anchor") | named(params, "params")


def step(settings, arrays):
    """A step of plain gradient descent at the anchor, or one of the linearised network.

    The batch is all the examples there are, drawn and shuffled as in a run, and dealt out to all
    devices; settings["steps"] of them a run, as a compiled loop. The result is the first one's
    displacement.
    """
    precision(settings)
    arrays = arrays or inputs(settings)
    if settings.get("double"):
        arrays = {n: a.astype(float) if a.dtype.kind == "f" else a for n, a in arrays.items()}
    model = network(settings)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    anchor = from_named(arrays, "anchor", shapes)
    data = spread((jnp.asarray(arrays["x"]), jnp.asarray(arrays["y"])))
    plain = settings["step"] == "plain"
    algorithm = Algorithm(
        f=model.apply,
        loss=ENTROPY,
        optimizer=settings["step_size"],
        batch_size=len(data[1]),
        mesh=mesh_of(data),
    )
    schedule = schedules.every(1) if plain else schedules.never()
    state = algorithm.start(anchor, data, jax.random.key(0))
    if not plain:
        params = from_named(arrays, "params", shapes)
        state = state._replace(params=params, step=jnp.asarray(1, jnp.int32))
    advance = jax.jit(lambda state, data, count: algorithm.advance(state, data, count, schedule))

    in_a_run = settings.get("steps", 1)

    def run(steps=in_a_run):
        return jax.block_until_ready(advance(state, data, jnp.asarray(steps, jnp.int32)))

    return Prepared(
        run=run,
        results=lambda _: {"displacement": flat(run(1).params) - flat(state.params)},
        units=in_a_run,
        facts={
            # Of the convolutions as they are defined, however few there are in ours.
            "operations": costs.operations(
                lambda state, data: replace(
                    algorithm, f=network(settings, "patches").apply, mesh=None
                ).step(state, data, schedule),
                state,
                data,
            ),
            "parameters": parameter_count(anchor),
        },
    )


def kept(settings, arrays):
    """Steps of one linearisation with its activations kept, settings["period"] of them a run."""
    precision(settings)
    model, period = network(settings), settings["period"]
    anchor = from_named(arrays, "anchor", jax.eval_shape(model.init, jax.random.key(0)))
    data = jnp.asarray(arrays["x"]), jnp.asarray(arrays["y"])
    task = Task(
        f=model.apply,
        data=data,
        loss=ENTROPY,
        step_size=settings["step_size"],
        penalty=0.0,
        tolerance=1e-3,
        memory_limit=2**31,
        solved=None,
    )
    engine = Steps(task)

    def run(steps=period):
        reached = engine.forward(engine.begin(anchor), steps)
        return jax.block_until_ready(engine.parameters(reached))

    # The first of them is the plain step, which the others are compared with.
    return Prepared(
        run=run,
        results=lambda _: {"displacement": flat(run(1)) - flat(anchor)},
        units=period,
        facts={"bytes": costs.kept_bytes(model.apply, anchor, data[0])},
    )


def matmul(settings, arrays):
    """A square matrix product: the rate that the floor is drawn with."""
    precision(settings)
    size = settings["matmul"]
    a, b = jax.random.normal(jax.random.key(3), (2, size, size), jnp.float32)
    multiply = jax.jit(jnp.dot)
    return Prepared(
        run=lambda: multiply(a, b).block_until_ready(),
        results=lambda product: {},
        facts={"operations": 2 * size**3},
    )
