"""The library itself as a contestant."""

import math
from dataclasses import replace
from types import SimpleNamespace

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
from iterlin.linearise import costs
from iterlin.linearise.devices import find_mesh
from iterlin.networks.mlp import mlp
from iterlin.training import losses
from iterlin.training.algorithm import Algorithm
from iterlin.training.step import Step
from iterlin.training.watching import Watch
from jax.flatten_util import ravel_pytree

from bench import worker
from bench.peers import plain
from bench.worker import Prepared

# The study is imported where it is needed: a process that times a first result does without it.

LENET_IMAGE = (32, 32, 3)
ENTROPY = losses.mean(losses.cross_entropy)
# The quintic's network as on its page, with random biases.
QUINTIC = mlp([1, 50, 50, 50, 50, 50, 1], bias_scale=0.5)
# Examples on which a run of a sweep is evaluated at its end.
EVALUATED = 512


def network(settings, method="auto"):
    """Return what settings["network"] names: "lenet", "transformer", or the widths of an MLP."""
    if settings["network"] == "transformer":
        return SimpleNamespace(init=transformer_params, apply=plain.network(settings))
    if settings["network"] == "lenet":
        from iterlin_study.networks import convnets

        channels = settings.get("channels", 50)
        return convnets.lenet(LENET_IMAGE, channels=channels, method=method)
    return mlp(settings["network"])


def transformer_params(key, vocabulary=96, length=32, width=48, blocks=3):
    """Return 93,984 parameters for `plain.transformer`."""
    keys = iter(jax.random.split(key, 3 + 4 * blocks))

    def dense(inputs, outputs):
        return jax.random.normal(next(keys), (inputs, outputs)) / inputs**0.5

    def block():
        found = {"in": dense(width, 3 * width), "out": dense(width, width)}
        found |= {"up": dense(width, 4 * width), "down": dense(4 * width, width)}
        return found | dict.fromkeys(("scale1", "scale2"), jnp.ones(width))

    return {
        "embed": {"table": dense(vocabulary, width)},
        "places": {"table": dense(length, width)},
        "head": {"kernel": dense(width, vocabulary), "scale": jnp.ones(width)},
        **{f"block{number}": block() for number in range(blocks)},
    }


def batch(settings, key):
    """Return standard normal inputs and uniform labels of ten classes; or tokens and the next."""
    count = settings["examples"]
    if settings["network"] == "transformer":
        tokens = jax.random.randint(key, (count, 33), 0, 96)
        return tokens[:, :-1], tokens[:, 1:]
    shape = LENET_IMAGE if settings["network"] == "lenet" else (settings["network"][0],)
    x = jax.random.normal(key, (count, *shape))
    return x, jax.random.randint(jax.random.fold_in(key, 1), (count,), 0, 10)


def flat(tree) -> np.ndarray:
    """Return all numbers of a pytree, in the order of `ravel_pytree`."""
    return np.asarray(ravel_pytree(tree)[0])


# One step of training as runs take it, and the matrix product that sets the floor.


def step_inputs(settings):
    """Return a point of expansion, parameters one hundredth away from it, and a batch."""
    key = jax.random.key(0)
    anchor = network(settings).init(key)
    x, y = batch(settings, jax.random.fold_in(key, 1))
    noise = jax.random.fold_in(key, 2)
    params = jax.tree.map(
        lambda leaf: leaf + 0.01 * jnp.std(leaf) * jax.random.normal(noise, leaf.shape), anchor
    )
    return jax.device_get({"x": x, "y": y, "anchor": anchor, "params": params})


def step(settings, arrays):
    """A step of plain gradient descent at the anchor, or one of the linearised network.

    The batch is all the examples, shuffled as in a run and shared by all devices.
    settings["steps"] of them are a run, a compiled loop; the results are the first one's.
    """
    model, in_a_run = network(settings), settings["steps"]
    given = jax.device_put(arrays)
    anchor, data = given["anchor"], (given["x"], given["y"])
    if jax.device_count() > 1:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        data = jax.device_put(data, jax.NamedSharding(mesh, jax.P("data")))
    plain = settings["step"] == "plain"
    algorithm = Algorithm(model.apply, ENTROPY, optimizer=settings["step_size"])
    step = Step(algorithm, 1 if plain else np.inf, len(data[1]), mesh=find_mesh(data))
    state = step.start(anchor, data, jax.random.key(0))
    if not plain:
        state = state._replace(params=given["params"], step=jnp.asarray(1, jnp.int32))
    advance = jax.jit(step.advance)

    def run(steps=in_a_run):
        return jax.block_until_ready(advance(state, data, jnp.asarray(steps, jnp.int32)))

    # Operations are those of the convolutions as defined, not of shorter products.
    defined = replace(algorithm, f=network(settings, "patches").apply)
    program = jax.make_jaxpr(replace(step, algorithm=defined, mesh=None))(state, data)
    return Prepared(
        run=run,
        results=lambda _: {"displacement": flat(run(1).params) - flat(state.params)},
        units=in_a_run,
        facts={"operations": costs.count_flops(program.jaxpr)},
    )


def training(settings, arrays):
    """One linearisation of settings["steps"] steps, as a user calls for it."""
    anchor, x, y = (arrays[name] for name in ("anchor", "x", "y"))
    algorithm = Algorithm(network(settings).apply, ENTROPY, optimizer=settings["step_size"])
    run = {"schedule": math.inf, "num_steps": settings["steps"]}
    return Prepared(
        run=lambda: il.train(algorithm, anchor, (x, y), **run)[0].params,
        results=lambda params: {"displacement": flat(params) - flat(anchor)},
    )


def product(settings, arrays):
    """The gradient of the loss at the anchor, or the product of its GGN or Hessian with a step."""
    f, given = network(settings).apply, jax.device_put(arrays)
    anchor, params, x, y = (given[name] for name in ("anchor", "params", "x", "y"))
    vector = jax.tree.map(jnp.subtract, params, anchor)

    @jax.jit
    def compute(params, vector, x, y):
        if settings["product"] == "gradient":
            return jax.grad(lambda p: ENTROPY(f(p, x), y))(params)
        of = il.ggn_product if settings["product"] == "ggn" else il.hessian_product
        return of(f, params, x, y, ENTROPY)(vector)

    return Prepared(
        run=lambda: jax.block_until_ready(compute(anchor, vector, x, y)),
        results=lambda found: {"product": flat(found)},
    )


def posterior(settings, arrays):
    """The Laplace approximation of all parameters, and class probabilities at the inputs."""
    f, given = network(settings).apply, jax.device_put(arrays)
    params, x, y = (given[name] for name in ("anchor", "x", "y"))
    model = {"loss": losses.cross_entropy, "structure": settings["structure"]}

    def run():
        found = il.laplace(f, params, x, y, prior_precision=1.0, **model)
        return jax.block_until_ready((found.probabilities(x), found.log_marginal_likelihood()))

    return Prepared(
        run=run,
        results=lambda found: {"probabilities": flat(found[0]), "evidence": flat(found[1])},
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


# Many runs of Algorithm 3, and steps of one linearisation.


def sweep(settings, arrays):
    """Runs of Algorithm 3 from settings["seeds"] seeds, as one program."""
    from iterlin_study.runs.groups import Problem, Run, trainer

    model, examples = network(settings), batch(settings, jax.random.key(0))
    watch = Watch({"train": tuple(part[:EVALUATED] for part in examples)})
    algorithm, of_run = Algorithm(model.apply, ENTROPY), {"batch_size": settings["batch"]}
    ends = settings["step_size"], (settings["steps"],)
    runs = [Run(seed, settings["period"], *ends) for seed in range(settings["seeds"])]
    train = trainer(Problem(algorithm, model.init, examples, watch, **of_run), runs[0])

    def run():
        return train(runs, label="bench", folder=None, data_digest=None)[0]

    return Prepared(
        run, lambda found: {"loss": np.array([one.history["train_loss"][-1] for one in found])}
    )


# The empirical NTK.


def kernel(settings, arrays):
    """settings["form"]: full (N, N, O, O), trace (N, N), or diagonal (N, N, O).

    One compiled function, as neural-tangents' is.
    """
    model, form = network(settings), settings["form"]
    params, x = jax.device_put((arrays["params"], arrays["x"]))
    options = {} if form == "full" else {form: True}
    compute = jax.jit(lambda params, x: il.empirical_ntk(model.apply, params, x, **options))
    return Prepared(
        run=lambda: compute(params, x).block_until_ready(),
        results=lambda found: {"kernel": np.asarray(found)},
    )


# Damped Gauss-Newton on the quintic, from several initialisations, until a loss is reached.


def quintic_inputs(settings):
    from iterlin_study.data import toy

    jax.config.update("jax_enable_x64", True)
    train = toy.quintic(-4.0, 4.0).train
    params = jax.vmap(QUINTIC.init)(jax.random.split(jax.random.key(9), settings["seeds"]))
    return jax.device_get({"x": train.x, "y": train.y, "params": params})


def gauss_newton(settings, arrays):
    """All of them one after another in one compiled loop."""
    jax.config.update("jax_enable_x64", True)
    params, x, y = jax.device_put([arrays[name] for name in ("params", "x", "y")])
    options = {"solver": "cholesky", "tolerance": 0.0, "target_loss": settings["target"]}
    options |= {name: settings[name] for name in ("damping", "max_steps")}

    @jax.jit
    def solve(params, x, y):
        def one(start):
            solution = il.gauss_newton(QUINTIC.apply, start, x, y, **options)
            return solution.history["loss"][solution.num_steps]

        return jax.lax.map(one, params)

    return plain.prepared(solve, (params, x, y), settings["target"])


KINDS = {
    "step": step,
    "training": training,
    "product": product,
    "posterior": posterior,
    "matmul": matmul,
    "sweep": sweep,
    "ntk": kernel,
    "gauss_newton": gauss_newton,
}
INPUTS = dict.fromkeys(("step", "training", "product", "posterior", "ntk"), step_inputs)
INPUTS |= {"gauss_newton": quintic_inputs}

if __name__ == "__main__":
    worker.serve(
        KINDS,
        inputs=INPUTS,
        packages=("jax", "jaxlib", "numpy"),
        first=lambda: jax.device_put(np.ones(2)) + 1,
    )
