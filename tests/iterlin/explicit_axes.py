"""Calls on data that `jax.make_mesh` spreads over four devices: run by `test_explicit_axes`.

Prints for each call how far its result is from that on one device.
"""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
net = il.mlp((3, 6, 2), activation="tanh")
f, params = net.apply, net.init(jax.random.key(0))
rng = np.random.default_rng(0)
data = tuple(map(jnp.asarray, (rng.normal(size=(8, 3)), rng.normal(size=(8, 2)))))
labels = jnp.arange(8) % 2
GN = {"damping": 0.1, "max_steps": 3, "tolerance": 1e-6}
SQUARED, ENTROPY = il.losses.squared_error, il.losses.cross_entropy


def trained(p, x, y):
    sets = il.Watch({"seen": (x, y)}, {"loss": SQUARED})
    run = {"schedule": 5, "num_steps": 10, "engine": "closed_form", "watch": sets}
    state, history = il.train(il.Algorithm(f, SQUARED, 1e-3), p, (x, y), **run)
    return state.params, history["seen_loss"]


def posterior(p, x, y):
    found = il.laplace(f, p, x, y, loss=SQUARED, prior_precision=1.0)
    return found.variance(x), found.log_marginal_likelihood()


def predicted(p, x, y):
    kernel = il.empirical_ntk(f, p, x)
    return il.predict(kernel, y, kernel, damping=0.1)


CALLS = {
    "empirical_ntk": lambda p, x, y: il.empirical_ntk(f, p, x),
    "ntk_matrix": lambda p, x, y: il.ntk_matrix(f, p, x, memory_limit=3000),
    "cached_ntk": lambda p, x, y: il.cached_ntk(f, p, x).product(y),
    "ntk_product": lambda p, x, y: il.ntk_product(f, p, x)(y),
    "sharded_ntk": lambda p, x, y: il.sharded_ntk(f, p, x),
    "jacobian": lambda p, x, y: il.jacobian(f, p, x),
    "eigenmodes": lambda p, x, y: il.eigenmodes(f, p, x, y).flow(1.0),
    "gauss_newton": lambda p, x, y: il.gauss_newton(f, p, x, y, **GN).params,
    "truncated_gauss_newton": lambda p, x, y: (
        il.truncated_gauss_newton(
            f, p, x, jax.device_put(labels, y.sharding), **GN, beta=0.01, loss=ENTROPY
        ).params
    ),
    "gauss_newton of a period": lambda p, x, y: (
        il.gauss_newton(f, p, x, y, step_size=0.01, period=5, max_steps=3, tolerance=1e-6).params
    ),
    "ggn_product": lambda p, x, y: il.ggn_product(f, p, x, y, SQUARED)(p),
    "laplace": posterior,
    "predict": predicted,
    "engine closed_form": trained,
}
mesh = jax.make_mesh((4,), ("data",))
spread = jax.device_put(data, jax.NamedSharding(mesh, jax.P("data")))
copied = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
for name, call in CALLS.items():
    expected = jax.tree.leaves(call(params, *data))
    for given in (params, copied) if name in ("jacobian", "gauss_newton") else (params,):
        found = jax.tree.leaves(call(given, *spread))
        largest = max(
            float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())
            for a, b in zip(found, expected, strict=True)
        )
        print(name, largest)
