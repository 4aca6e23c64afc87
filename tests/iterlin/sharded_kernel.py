"""Kernels by four devices beside those of one, and where their rows lie: run by `test_sharded`."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np

assert jax.device_count() == 4
model = il.mlp((12, 10, 3), bias_scale=0.1)
params = model.init(jax.random.key(0))
x = jax.random.normal(jax.random.key(1), (16, 12))
WHOLE, PADDED = (16, None), (13, x[:5])
FORMS = {
    "full": ({}, [WHOLE]),
    "trace": ({"trace": True}, [PADDED]),
    "last": ({"trainable": lambda path: path.startswith("1/")}, [PADDED]),
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
