"""Trains on data spread over four devices and prints what came out: run by `test_own_networks`."""

import sys

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
from iterlin import losses
from jax.sharding import AxisType, NamedSharding, PartitionSpec

kind = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[sys.argv[1]]
mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
model = iterlin.mlp((5, 16, 3))
params = model.init(jax.random.key(0))
x, y = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32), np.arange(64) % 3
spread = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
found = {}
for name, data in {"one": (jnp.asarray(x), jnp.asarray(y)), "four": spread}.items():
    for batch_size in (None, 16):
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
        found[name, batch_size] = np.concatenate([a.ravel() for a in jax.tree.leaves(state.params)])
for batch_size in (None, 16):
    print(np.abs(found["one", batch_size] - found["four", batch_size]).max())
