"""Trains on data spread over four devices and prints what came out: run by `test_own_networks`."""

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
from iterlin import losses
from jax.sharding import AxisType, NamedSharding, PartitionSpec

model = iterlin.mlp((5, 16, 3))
params = model.init(jax.random.key(0))
x, y = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32), np.arange(64) % 3


def trained(data, batch_size):
    algorithm = iterlin.Algorithm(
        model.apply, losses.mean(losses.cross_entropy), 0.1, batch_size=batch_size
    )
    state, _ = iterlin.train(
        algorithm,
        params,
        data,
        schedule=3,
        num_steps=7,
        key=jax.random.key(1),
        watch=iterlin.Watch({"train": data}),
    )
    return np.concatenate([a.ravel() for a in jax.tree.leaves(state.params)])


for batch_size in (None, 16):
    expected = trained((jnp.asarray(x), jnp.asarray(y)), batch_size)
    for kind, axis_type in {"auto": AxisType.Auto, "explicit": AxisType.Explicit}.items():
        mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
        spread = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
        print(f"{kind}/{batch_size}", np.abs(trained(spread, batch_size) - expected).max())
