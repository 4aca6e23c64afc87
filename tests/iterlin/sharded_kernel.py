"""Kernels by four devices beside those of one, and where their rows lie: run by `test_sharded`."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
from iterlin_study.networks.convnets import lenet

assert jax.device_count() == 4
model = lenet((12, 12, 2), channels=3, kernel_size=3, hidden=(10,), classes=3)
params = model.init(jax.random.key(0))
x = jax.random.normal(jax.random.key(1), (16, 12, 12, 2))
WHOLE, PADDED = (16, None), (13, x[:5])
FORMS = {
    "full": ({}, [WHOLE]),
    "trace": ({"trace": True}, [PADDED]),
    "dense": ({"trainable": lambda path: path.startswith("dense")}, [PADDED]),
}
for name, (settings, sizes) in FORMS.items():
    for count, other in sizes:
        expected = il.empirical_ntk(model.apply, params, x[:count], other, **settings)
        found = il.sharded_ntk(model.apply, params, x[:count], other, **settings)
        assert found.shape == expected.shape
        largest = float(jnp.abs(np.asarray(found) - expected).max() / jnp.abs(expected).max())
        rows = {shard.data.shape[0] for shard in found.addressable_shards}
        print(f"{name}/{count}/{0 if other is None else len(other)}", largest, min(rows))
two = il.sharded_ntk(model.apply, params, x, devices=jax.devices()[:2], trace=True)
print("two", len(two.sharding.device_set), two.addressable_shards[0].data.shape[0])
