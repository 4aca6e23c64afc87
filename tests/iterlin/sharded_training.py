"""Trains on data that lie on four devices: run by `test_sharded_training`.

Prints for each case how far the parameters are from those of one device, and the numbers of
examples that the network was traced with.
"""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
from iterlin.linearise.slices import in_slices
from iterlin.training import losses
from iterlin.training.step import Step
from iterlin.training.steps import with_data_mesh
from jax.sharding import AxisType, NamedSharding, PartitionSpec

assert jax.device_count() == 4
model = il.mlp((5, 16, 3))
params = model.init(jax.random.key(0))
x, y = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32), np.arange(64) % 3
ENTROPY = losses.mean(losses.cross_entropy)
traced = set()


def network(params, x):
    traced.add(len(x))
    return model.apply(params, x)


def keyed(params, x, key):
    outputs = network(params, x)
    return outputs if key is None else outputs * (1 + jax.random.normal(key, outputs.shape))


def total(outputs, targets):
    """A loss that is not known to be a sum."""
    return losses.cross_entropy(outputs, targets)


def flat(params):
    return np.concatenate([a.ravel() for a in jax.tree.leaves(params)])


def algorithm(f=network, loss=ENTROPY, keyed=False):
    return il.Algorithm(f, loss, 0.1, keyed=keyed)


def run(data, f=network, **settings):
    watch = il.Watch({"train": data} if f is not network else {})
    settings |= {"schedule": 3, "num_steps": 7, "key": jax.random.key(1)}
    state, _ = il.train(algorithm(f), params, data, watch=watch, **settings)
    return flat(state.params)


def iterated(data, f, mesh=None):
    """Three batches of the data, however they lie, and parameters with them."""
    start, place = params, data[1].sharding
    batches = [jax.device_put((x[i : i + 16], y[i : i + 16]), place) for i in (0, 16, 32)]
    if isinstance(place, NamedSharding):
        start = jax.device_put(params, NamedSharding(place.mesh, PartitionSpec()))
    state, _ = il.train(algorithm(f), start, iter(batches), schedule=3, num_steps=3)
    return flat(state.params)


def sweep(data, **settings):
    grid = {"periods": [1, 3, jnp.inf], "keys": jax.random.split(jax.random.key(2), 2)}
    settings |= grid
    states, _ = il.train_sweep(algorithm(), model.init, data, num_steps=7, **settings)
    return flat(states.params)


AXES = ("rows", "columns")
AUTO, EXPLICIT = (
    jax.make_mesh((2, 2), AXES, axis_types=(kind,) * 2)
    for kind in (AxisType.Auto, AxisType.Explicit)
)
SPREAD, SPREAD_EXPLICIT = (NamedSharding(mesh, PartitionSpec(AXES)) for mesh in (AUTO, EXPLICIT))
TRAINED = {
    "remainder": (run, {"mesh": EXPLICIT, "batch_size": 18}),
    "iterable": (iterated, {"f": in_slices(network, 7)}),
    "sweep": (sweep, {"mesh": AUTO, "batch_size": 16}),
}
# What a step is made of; compiling it takes a second, and says no more.
TRACED = {
    "full": {"mesh": AUTO},
    "batches": {"mesh": AUTO, "batch_size": 16},
    "slices": {"mesh": AUTO, "f": in_slices(network, 7), "batch_size": 32},
    "keyed": {"mesh": AUTO, "f": keyed, "keyed": True, "batch_size": 16},
    "loss": {"mesh": AUTO, "loss": total, "batch_size": 16},
    "unsaid": {"batch_size": 16},
}
COPIED = NamedSharding(AUTO, PartitionSpec())
PLACES = {"remainder": [SPREAD], "iterable": [SPREAD_EXPLICIT], "sweep": [COPIED]}
here = jnp.asarray(x), jnp.asarray(y)
for name, (train, settings) in TRAINED.items():
    expected = train(here, **settings | {"mesh": None})
    for place in PLACES[name]:
        traced.clear()
        found = train(jax.device_put((x, y), place), **settings)
        print(name, np.abs(found - expected).max(), *sorted(traced))
spread = jax.device_put((x, y), SPREAD)
for name, settings in TRACED.items():
    of_run = {n: settings.pop(n) for n in ("mesh", "batch_size") if n in settings}
    step = with_data_mesh(Step(algorithm(**settings), 3, **of_run), spread)
    state = step.start(params, spread, jax.random.key(1))
    traced.clear()
    jax.eval_shape(step, state, spread)
    print(name, "-", *sorted(traced))
    if name == "full":
        program = jax.jit(step).lower(state, spread).compile().as_text()
        print("exchanges", "-", *[0] * ("num_partitions=4" in program and "all-reduce(" in program))
