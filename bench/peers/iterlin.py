"""The library itself as a contestant."""

from dataclasses import replace
from functools import cache

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
from iterlin.exact import flow, linear_model
from iterlin.exact.choice import ENGINES, default_memory
from iterlin.exact.task import Task
from iterlin.kernels.cached import CachedKernel
from iterlin.linearise import costs
from iterlin.linearise.devices import find_mesh
from iterlin.networks.mlp import mlp, parameter_count
from iterlin.training import losses
from iterlin.training.algorithm import Algorithm
from iterlin.training.step import Step
from iterlin.training.watching import Watch
from iterlin_study.data import toy
from iterlin_study.networks import convnets
from iterlin_study.runs.groups import Problem, Run, trainer
from jax.flatten_util import ravel_pytree

from bench import worker
from bench.worker import Prepared

LENET_IMAGE = (32, 32, 3)
ENTROPY = losses.mean(losses.cross_entropy)
# The quintic's network as on its page, with random biases.
QUINTIC = mlp([1, 50, 50, 50, 50, 50, 1], bias_scale=0.5)
# Examples on which a run of a sweep is evaluated at its end.
EVALUATED = 512


def network(settings, method="auto"):
    """Return the model that settings["network"] names: "lenet", or the widths of an MLP."""
    if settings["network"] == "lenet":
        channels = settings.get("channels", 50)
        return convnets.lenet(LENET_IMAGE, channels=channels, method=method)
    return mlp(settings["network"])


def batch(settings, key):
    """Return standard normal inputs and uniform labels of ten classes."""
    count = settings["examples"]
    shape = LENET_IMAGE if settings["network"] == "lenet" else (settings["network"][0],)
    x = jax.random.normal(key, (count, *shape))
    return x, jax.random.randint(jax.random.fold_in(key, 1), (count,), 0, 10)


def flat(tree) -> np.ndarray:
    """Return all numbers of a pytree, in the order of `ravel_pytree`."""
    return np.asarray(ravel_pytree(tree)[0])


def precision(settings) -> None:
    jax.config.update("jax_enable_x64", bool(settings.get("double", False)))


# One step of training as runs take it, and the matrix product that sets the floor.


def step_inputs(settings):
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
    given = jax.device_put(arrays or step_inputs(settings))
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
    operations = costs.count_flops(replace(step, algorithm=defined, mesh=None), state, data)
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


# Many runs of Algorithm 3: together, and one after another.


def sweep(settings, arrays):
    """settings["periods"] times settings["seeds"] runs as one program, or each by itself."""
    precision(settings)
    if settings.get("network") == "lenet":
        model, examples = network(settings), batch(settings, jax.random.key(0))
    else:
        model = mlp([64, settings["hidden"], 10])
        examples = tuple(toy.digits(settings["examples"]).train)
    watch = Watch({"train": tuple(part[:EVALUATED] for part in examples)})
    algorithm, of_run = Algorithm(model.apply, ENTROPY), {"batch_size": settings["batch"]}
    runs = [
        Run(seed, period, settings["step_size"], (settings["steps"],))
        for period in settings["periods"]
        for seed in range(settings["seeds"])
    ]
    train = trainer(Problem(algorithm, model.init, examples, watch, **of_run), runs[0])
    groups = [runs] if settings["together"] else [[run] for run in runs]

    def run():
        outcomes = [train(group, label="bench", folder=None, data_digest=None) for group in groups]
        jax.block_until_ready([outcome.state.params for outcome in outcomes])
        return outcomes

    def losses_at_the_end(outcomes):
        ends = [np.ravel(outcome.history["train_loss"][..., -1]) for outcome in outcomes]
        return {"loss": np.concatenate(ends)}

    return Prepared(run=run, results=losses_at_the_end)


def periods(settings, arrays):
    """One run of a fixed number of steps at a period."""
    one = {"seeds": 1, "periods": [settings["period"]], "together": True}
    return sweep(settings | one, arrays)


# One linearisation of K steps by the engines of `iterlin.exact`, kernels included.


def _engine(name, f, examples, step_size, loss=ENTROPY):
    task = Task(f, examples, loss, step_size, 0.0, 1e-3, default_memory(), None)
    return ENGINES[name](task)


@cache
def _on_digits(name, squared, count, hidden, step_size):
    """An engine, whose programs serve every period, and the point of expansion."""
    x, y = toy.digits(count).train
    model = mlp([64, hidden, 10])
    if squared:
        loss = losses.mean(losses.squared_error, over="examples")
        examples = (x, toy.one_hot(y, 10))
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
        facts={"bytes": costs.vjp_residual_bytes(model.apply, anchor, examples[0])},
    )


def flow_of_time(settings, arrays):
    """A flow for settings["time"], with J J^T kept in settings["form"]: "matrix" or "factors"."""
    precision(settings)
    model, (x, y) = network(settings), batch(settings, jax.random.key(1))
    params = model.init(jax.random.key(0))

    def kernel():
        if settings["form"] == "matrix":
            return CachedKernel(matrix=il.ntk_matrix(model.apply, params, x))
        beyond_the_matrix = 4 * jax.eval_shape(model.apply, params, x).size ** 2 - 1
        return il.cached_ntk(model.apply, params, x, memory_limit=beyond_the_matrix)

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


# The empirical NTK.


def kernel_inputs(settings):
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


# Damped Gauss-Newton on the quintic, from several initialisations, until a loss is reached.


def quintic_inputs(settings):
    precision(settings)
    train = toy.quintic(-4.0, 4.0).train
    params = jax.vmap(QUINTIC.init)(jax.random.split(jax.random.key(9), settings["seeds"]))
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
            solution = il.gauss_newton(QUINTIC.apply, start, x, y, **options)
            return solution.history["loss"][solution.num_steps], solution.num_steps

        return jax.lax.map(one, params)

    _, counts = solve(params, x, y)
    return Prepared(
        run=lambda: jax.block_until_ready(solve(params, x, y)),
        results=lambda found: {"reached": 1.0 * (np.asarray(found[0]) <= settings["target"])},
        facts={"iterations": int(counts.sum())},
    )


KINDS = {
    "step": step,
    "matmul": matmul,
    "kept": kept,
    "periods": periods,
    "sweep": sweep,
    "ntk": kernel,
    "exact": linearization,
    "flow": flow_of_time,
    "gauss_newton": gauss_newton,
}
INPUTS = {"step": step_inputs, "ntk": kernel_inputs, "gauss_newton": quintic_inputs}

if __name__ == "__main__":
    worker.serve(
        KINDS,
        inputs=INPUTS,
        packages=("jax", "jaxlib", "numpy"),
        first=lambda: jax.device_put(np.ones(2)) + 1,
    )
