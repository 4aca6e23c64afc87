"""What the two least-squares libraries share: the network in plain JAX, the loop, the answer."""

import jax
import jax.numpy as jnp
import numpy as np

from bench.worker import Prepared


def network(params, x):
    for index in range(len(params)):
        x = jax.nn.relu(x) if index else x
        x = x @ params[index]["weight"] + params[index]["bias"]
    return x


def problem(arrays):
    """Params, stacked over initialisations, and residual(params): half its square is the loss."""
    layers = sum(name.startswith("params/") for name in arrays) // 2
    params = [
        {kind: jnp.asarray(arrays[f"params/{i}/{kind}"]) for kind in ("weight", "bias")}
        for i in range(layers)
    ]
    x, y = jnp.asarray(arrays["x"]), jnp.asarray(arrays["y"])
    return params, lambda p: (network(p, x) - y).ravel()


def prepared(settings, params, residual, begin, step, current):
    """Repeat `step` from each of params until the target loss is reached, as the library does.

    begin(params) -> state, step(state) -> state, current(state) -> params.
    """

    def loss(state):
        return 0.5 * jnp.sum(residual(current(state)) ** 2)

    def one(start):
        def going(carry):
            _, lost, count = carry
            return (lost > settings["target"]) & (count < settings["max_steps"])

        def advance(carry):
            state = step(carry[0])
            return state, loss(state), carry[2] + 1

        state = begin(start)
        _, lost, count = jax.lax.while_loop(going, advance, (state, loss(state), 0))
        return lost, count

    solve = jax.jit(lambda params: jax.lax.map(one, params))
    ends, counts = solve(params)
    if short := int((ends > settings["target"]).sum()):
        raise ValueError(
            f"{short} of {len(ends)} runs have not reached a loss of {settings['target']:g} "
            f"after {settings['max_steps']} steps"
        )
    return Prepared(
        run=lambda: jax.block_until_ready(solve(params)),
        results=lambda found: {"reached": 1.0 * (np.asarray(found[0]) <= settings["target"])},
        facts={"iterations": int(counts.sum())},
    )
