"""Calls on data that lie on four devices of this host: run by `test_four_devices`.

Prints for each call how far its result is from that on one device, and sizes: of the rows that a
device holds of a kernel, or of the batches that the network was traced with.
"""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
from iterlin import Step, in_slices, losses
from iterlin.training.steps import with_data_mesh
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from problems import by_factor, network, start

assert jax.device_count() == 4


def apart(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in pairs]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@jax.enable_x64(True)
def explicit_axes():
    """Calls on data that `jax.make_mesh` spreads, with Explicit axes."""
    f, params, *_ = network((3, 6, 2))
    rng = np.random.default_rng(0)
    data = tuple(map(jnp.asarray, (rng.normal(size=(8, 3)), rng.normal(size=(8, 2)))))
    newton = {"damping": 0.1, "max_steps": 3, "tolerance": 1e-6}
    squared = losses.squared_error
    bayes = {"loss": squared, "prior_precision": 1.0}
    bound = jax.device_put(jnp.ones(2), jax.devices()[0])  # the data lie elsewhere, too

    def trained(p, x, y, engine):
        sets = il.Watch({"seen": (x, y)}, {"loss": squared})
        run = {"schedule": 5, "num_steps": 10, "engine": engine, "watch": sets}
        algorithm = il.Algorithm(lambda p, x: f(p, x) * bound, squared, 1e-3)
        state, history = il.train(algorithm, p, (x, y), **run)
        return state.params, history["seen_loss"]

    def predicted(p, x, y):
        kernel = il.empirical_ntk(f, p, x)
        return il.predict(kernel, y, kernel, damping=0.1)

    def truncated(p, x, y):
        there = jax.device_put(jnp.arange(8) % 2, y.sharding)
        run = newton | {"beta": 0.01, "loss": losses.cross_entropy}
        return il.truncated_gauss_newton(f, p, x, there, **run).params

    calls = {
        "predict": predicted,
        "cached_ntk": lambda p, x, y: il.cached_ntk(f, p, x).product(y),
        "in_slices": lambda p, x, y: in_slices(f, 3)(p, x),
        "ntk_product": lambda p, x, y: il.ntk_product(f, p, x)(y),
        "sharded_ntk": lambda p, x, y: il.sharded_ntk(f, p, x),
        "jacobian": lambda p, x, y: il.jacobian(f, p, x),
        "relu_mlp_ntk": lambda p, x, y: il.relu_mlp_ntk(x, depth=2),
        "eigenmodes": lambda p, x, y: il.eigenmodes(f, p, x, y).flow(1.0),
        "gauss_newton": lambda p, x, y: il.gauss_newton(f, p, x, y, **newton).params,
        "truncated_gauss_newton": truncated,
        "ggn_product": lambda p, x, y: il.ggn_product(f, p, x, y, squared)(p),
        "laplace": lambda p, x, y: il.laplace(f, p, x, y, **bayes).variance(x),
        "closed_form": lambda p, x, y: trained(p, x, y, "closed_form"),
        "steps": lambda p, x, y: trained(p, x, y, "steps"),
    }
    mesh = jax.make_mesh((4,), ("data",))
    spread = jax.device_put(data, NamedSharding(mesh, jax.P("data")))
    for name, call in calls.items():
        expected = call(params, *data)
        print(f"explicit/{name}", apart(call(params, *spread), expected))
        if name in ("sharded_ntk", "ggn_product", "steps"):
            with jax.set_mesh(mesh):
                found = call(params, *spread)
                if name != "sharded_ntk":  # others lie on the mesh that is set
                    jax.tree.map(jnp.square, found)
            print(f"explicit/set/{name}", apart(found, expected))


def kernels():
    f, params, x, _ = network((12, 10, 3), examples=16)
    last = {"trainable": lambda path: path.startswith("1/")}
    for name, count, other, settings in (
        ("kernel", 16, None, {}),
        ("trace", 13, x[:5], {"trace": True}),
        ("of_last", 13, x[:5], last),
    ):
        expected = il.empirical_ntk(f, params, x[:count], other, **settings)
        found = il.sharded_ntk(f, params, x[:count], other, **settings)
        rows = min(shard.data.shape[0] for shard in found.addressable_shards)
        print(name, apart(found, expected), rows)
    two = il.sharded_ntk(f, params, x, devices=jax.devices()[:2], trace=True)
    print("two", len(two.sharding.device_set), two.addressable_shards[0].data.shape[0])


model = il.mlp((5, 16, 3))
params = start(model.init)
x, y = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32), np.arange(64) % 3
ENTROPY = losses.mean(losses.cross_entropy)
traced = set()


def noted(params, x):
    traced.add(len(x))
    return model.apply(params, x)


def keyed(params, x, key):
    outputs = noted(params, x)
    return outputs if key is None else outputs * (1 + jax.random.normal(key, outputs.shape))


def total(outputs, targets):
    """A loss that is not known to be a sum."""
    return losses.cross_entropy(outputs, targets)


def algorithm(f=noted, loss=ENTROPY, keyed=False):
    return il.Algorithm(f, loss, 0.1, keyed=keyed)


def run(data, **settings):
    settings |= {"schedule": 3, "num_steps": 7, "key": jax.random.key(1), "watch": il.Watch()}
    return il.train(algorithm(), params, data, **settings)[0].params


def iterated(data, mesh=None):
    """Three batches of the data, however they lie, and parameters with them."""
    start, place, f = params, data[1].sharding, in_slices(noted, 7)
    batches = [jax.device_put((x[i : i + 16], y[i : i + 16]), place) for i in (0, 16, 32)]
    if isinstance(place, NamedSharding):
        start = jax.device_put(params, NamedSharding(place.mesh, PartitionSpec()))
    return il.train(algorithm(f), start, iter(batches), schedule=3, num_steps=3)[0].params


def looked_up(data, mesh=None):
    """A network that looks up rows of a table, on labels as tokens."""
    tokens, start = data[1], {"table": jnp.eye(3, 4), "head": jnp.ones((4, 3))}

    def f(p, tokens):
        traced.add(len(tokens))
        return jnp.tanh(p["table"][tokens]) @ p["head"]

    run = {"schedule": 3, "num_steps": 7, "mesh": mesh}
    return il.train(algorithm(f), start, (tokens, tokens), **run)[0].params


def sweep(data, **settings):
    settings |= {"periods": [1, 3, jnp.inf], "keys": jax.random.split(jax.random.key(2), 2)}
    return il.train_sweep(algorithm(), by_factor(params), data, num_steps=7, **settings)[0].params


def training():
    axes, kinds = ("rows", "columns"), (AxisType.Auto, AxisType.Explicit)
    auto, explicit = (jax.make_mesh((2, 2), axes, axis_types=(kind,) * 2) for kind in kinds)
    parts, here = PartitionSpec(axes), (jnp.asarray(x), jnp.asarray(y))
    for train, place, settings in (
        (run, NamedSharding(auto, parts), {"mesh": explicit, "batch_size": 18}),
        (iterated, NamedSharding(explicit, parts), {}),
        (looked_up, NamedSharding(explicit, parts), {"mesh": explicit}),
        (sweep, NamedSharding(auto, PartitionSpec()), {"mesh": auto, "batch_size": 16}),
    ):
        expected = train(here, **settings | {"mesh": None})
        traced.clear()
        found = train(jax.device_put((x, y), place), **settings)
        print(train.__name__, apart(found, expected), *sorted(traced))
    # What a step is made of; compiling it takes a second, and says no more.
    spread = jax.device_put((x, y), NamedSharding(auto, parts))
    for name, settings, of_run in (
        ("full", {}, {"mesh": auto}),
        ("batches", {}, {"mesh": auto, "batch_size": 16}),
        ("slices", {"f": in_slices(noted, 7)}, {"mesh": auto, "batch_size": 32}),
        ("keyed", {"f": keyed, "keyed": True}, {"mesh": auto, "batch_size": 16}),
        ("loss", {"loss": total}, {"mesh": auto, "batch_size": 16}),
        ("unsaid", {}, {"batch_size": 16}),
    ):
        step = with_data_mesh(Step(algorithm(**settings), 3, **of_run), spread)
        state = step.start(params, spread, jax.random.key(1))
        traced.clear()
        jax.eval_shape(step, state, spread)
        print(name, 0.0, *sorted(traced))


explicit_axes()
kernels()
training()
