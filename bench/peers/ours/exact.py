"""A whole linearisation of K steps by the engines of `iterlin.exact.integrate`."""

from functools import cache

import jax
import jax.numpy as jnp
from iterlin import losses
from iterlin.exact.choice import ENGINES, default_memory
from iterlin.exact.task import Task
from iterlin.networks.mlp import mlp
from iterlin.study import data

from bench.peers.ours.common import flat, precision
from bench.worker import Prepared

MOST_DIGITS = 1000


def _examples(count):
    """Digits, or where there are not as many, normal inputs with uniform labels."""
    if count <= MOST_DIGITS:
        return tuple(data.digits(count).train)
    key = jax.random.key(1)
    x = jax.random.normal(key, (count, 64))
    return x, jax.random.randint(jax.random.fold_in(key, 1), (count,), 0, 10, jnp.int32)


@cache
def _engine(name, squared, examples, hidden, step_size):
    """An engine, whose programs serve every period, and the point of expansion."""
    x, y = _examples(examples)
    model = mlp([64, hidden, 10])
    loss = losses.mean(losses.squared_error if squared else losses.cross_entropy)
    task = Task(
        f=model.apply,
        data=(x, data.one_hot(y, 10) if squared else y),
        loss=loss,
        step_size=step_size,
        penalty=0.0,
        tolerance=1e-3,
        memory_limit=default_memory(),
        solved=None,
    )
    return ENGINES[name](task), model.init(jax.random.key(0))


def linearization(settings, arrays):
    """From theta_s to the parameters K steps later, the kernel (where there is one) included."""
    precision(settings)
    engine, anchor = _engine(
        settings["engine"],
        settings["squared"],
        settings["examples"],
        settings["hidden"],
        settings["step_size"],
    )
    period = settings["period"]

    def run():
        # New containers for the same numbers: an engine keeps the kernel of the anchor it knows.
        progress = engine.begin(jax.tree.map(lambda leaf: leaf, anchor))
        while progress.steps < period:
            progress = engine.forward(progress, period)
            if progress.failed:
                raise RuntimeError(f"stuck after {progress.steps} of {period} steps")
        return jax.block_until_ready(engine.parameters(progress)), progress

    spent = run()[1].evaluations
    return Prepared(
        run=run,
        results=lambda outcome: {"displacement": flat(outcome[0]) - flat(anchor)},
        facts={"products": spent},
    )
