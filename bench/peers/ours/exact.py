"""One linearisation of K steps by the engines of `iterlin.exact`, kernels included."""

from functools import cache

import iterlin as il
import jax
import jax.numpy as jnp
from iterlin import losses
from iterlin.exact import flow, linear_model
from iterlin.exact.choice import ENGINES, default_memory
from iterlin.exact.task import Task
from iterlin.kernels.kept import KeptKernel
from iterlin.networks.mlp import mlp
from iterlin.runtime import costs
from iterlin.study import data

from bench.peers.ours.common import ENTROPY, batch, flat, network, precision
from bench.worker import Prepared


def _engine(name, f, examples, step_size, loss=ENTROPY):
    task = Task(f, examples, loss, step_size, 0.0, 1e-3, default_memory(), None)
    return ENGINES[name](task)


@cache
def _on_digits(name, squared, count, hidden, step_size):
    """An engine, whose programs serve every period, and the point of expansion."""
    x, y = data.digits(count).train
    model = mlp([64, hidden, 10])
    if squared:
        loss, examples = losses.mean(losses.squared_error), (x, data.one_hot(y, 10))
        return _engine(name, model.apply, examples, step_size, loss), model.init(jax.random.key(0))
    return _engine(name, model.apply, (x, y), step_size), model.init(jax.random.key(0))


def linearization(settings, arrays):
    """From theta_s to the parameters settings["period"] steps later."""
    precision(settings)
    names = ("engine", "squared", "examples", "hidden", "step_size")
    engine, anchor = _on_digits(*[settings[name] for name in names])
    period = settings["period"]

    def run():
        # New containers for the same numbers: an engine keeps the kernel of the anchor it knows.
        progress = engine.begin(jax.tree.map(lambda leaf: leaf, anchor))
        while progress.steps < period:
            progress = engine.forward(progress, period)
            if progress.failed:
                raise RuntimeError(f"stuck after {progress.steps} of {period} steps")
        return jax.block_until_ready(engine.parameters(progress)), progress

    return Prepared(
        run=run,
        results=lambda outcome: {"displacement": flat(outcome[0]) - flat(anchor)},
        facts={"products": run()[1].evaluations},
    )


def kept(settings, arrays):
    """Steps of one linearisation with its activations kept, settings["period"] of them a run."""
    precision(settings)
    model, period = network(settings), settings["period"]
    anchor, *examples = jax.device_put([arrays[name] for name in ("anchor", "x", "y")])
    engine = _engine("kept_steps", model.apply, examples, settings["step_size"])

    def run(steps=period):
        reached = engine.forward(engine.begin(anchor), steps)
        return jax.block_until_ready(engine.parameters(reached))

    # The first of them is the plain step, with which the results are compared.
    return Prepared(
        run=run,
        results=lambda _: {"displacement": flat(run(1)) - flat(anchor)},
        units=period,
        facts={"bytes": costs.kept_bytes(model.apply, anchor, examples[0])},
    )


def flow_of_time(settings, arrays):
    """A flow for settings["time"], with J J^T kept in settings["form"]: "matrix" or "factors"."""
    precision(settings)
    model, (x, y) = network(settings), batch(settings, jax.random.key(1))
    params = model.init(jax.random.key(0))

    def kernel():
        if settings["form"] == "matrix":
            return KeptKernel(matrix=il.ntk_matrix(model.apply, params, x))
        beyond_the_matrix = 4 * jax.eval_shape(model.apply, params, x).size ** 2 - 1
        return il.kept_ntk(model.apply, params, x, memory_limit=beyond_the_matrix)

    @jax.jit
    def flowed(kernel, params, x, y):
        linear = linear_model.from_kernel(model.apply, params, x, kernel.product)
        objective = flow.Objective(linear, ENTROPY, y)
        until, start = jnp.asarray(settings["time"], jnp.float32), flow.begin(objective)
        return flow.advance(objective, start, until, tolerance=1e-3, max_steps=10_000)

    def run():
        return jax.block_until_ready(flowed(kernel(), params, x, y))

    return Prepared(
        run=run,
        results=lambda end: {"change of the outputs": flat(end.image)},
        facts={"products": int(run().evaluations)},
    )
