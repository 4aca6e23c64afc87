"""A network that couples its examples is refused wherever rows of J are taken one by one."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin.linearise.linearization import require_independent
from iterlin_study.networks.convnets import lenet
from problems import normal, single, start
from refusals import fails


@pytest.fixture(autouse=True)
def _axes_are_added_in_front():
    with jax.numpy_rank_promotion("allow"):
        yield


X = normal(7, 6)
P = {"w": normal(6, 5) / 2, "u": normal(5, 5) / 2, "v": normal(5, 2), "a": jnp.zeros(())}
ZERO_HEAD = P | {"v": jnp.zeros((5, 2))}


def hidden(p, x):
    return jnp.tanh(x @ p["w"])


def batch_normalised(p, x):
    h = hidden(p, x)
    return (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5) @ p["v"]


def recurrent(p, x):
    def step(h, xt):
        h = jnp.tanh(h @ p["u"] + xt @ p["w"])
        return h, h

    return jax.lax.scan(step, jnp.zeros(5, x.dtype), x)[1]


def mean_from_the_fourth(p, x):
    h = hidden(p, x)
    return jnp.concatenate([h[:3], h[3:] - h[:4].mean(0)]) if len(x) > 3 else h


def straight_through(p, x):
    """The mean of the batch has no value here, but a derivative."""
    mean = hidden(p, x).mean(0)
    return hidden(p, x) + mean - jax.lax.stop_gradient(mean)


@jax.custom_vjp
def of_mean_gradient(h):
    return h


of_mean_gradient.defvjp(lambda h: (h, None), lambda _, g: (g - g.mean(0),))

BOTH = il.centred(batch_normalised, ZERO_HEAD)
COUPLED = {
    "a scan over the examples": (recurrent, P),
    "batch normalisation, zero head": (batch_normalised, ZERO_HEAD),
    "both": (BOTH, ZERO_HEAD),
    "two examples in float32": (BOTH, *single((ZERO_HEAD, X[:2]))),
    "sorted examples": (BOTH, ZERO_HEAD, jnp.repeat(X, 8, 0)),
    "a squared gate at zero": (lambda p, x: (h := hidden(p, x)) + p["a"] ** 2 * h.mean(0), P),
    "places from zero": (lambda p, x: jnp.arange(len(x))[:, None] * hidden(p, x), P),
    "a coupling from the fourth on": (mean_from_the_fourth, P),
    "the size of the batch": (lambda p, x: hidden(p, x) / len(x), P),
    "a derivative of the mean": (straight_through, P),
    "a reverse rule": (lambda p, x: of_mean_gradient(hidden(p, x)) @ p["v"], P),
    "a NaN in one output": (lambda p, x: jnp.cumsum(hidden(p, x), 0).at[:, 0].set(jnp.nan), P),
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_coupling_is_refused_whatever_the_parameters_and_examples(name):
    f, params, *x = COUPLED[name]
    fails("couples its examples", require_independent, f, params, *(x or [X]))


Y = normal(7, 5)
GN = {"max_steps": 2, "tolerance": 0.0}
DOORS = {
    "empirical_ntk": lambda f: il.empirical_ntk(f, P, X),
    "sharded_ntk": lambda f: il.sharded_ntk(f, P, X),
    "empirical_ntk with one example": lambda f: il.empirical_ntk(f, P, X[:1], X),
    "ntk_matrix": lambda f: il.ntk_matrix(f, P, X, X[:1]),
    "cached_ntk": lambda f: il.cached_ntk(f, P, X),
    "jacobian": lambda f: il.jacobian(f, P, X),
    "eigenmodes": lambda f: il.eigenmodes(f, P, X, Y),
    "gauss_newton": lambda f: il.gauss_newton(f, P, X, Y, **GN),
    "laplace": lambda f: il.laplace(f, P, X, Y, loss=il.losses.squared_error, prior_precision=1.0),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses(door):
    fails("couples its examples.*independent=False", DOORS[door], recurrent)


def test_of_one_example_nothing_is_coupled():
    f, params = COUPLED["the size of the batch"]
    rows = il.jacobian(f, params, X[:1], independent=False)
    np.testing.assert_allclose(il.ntk_matrix(f, params, X[:1]), rows @ rows.T, rtol=1e-10)
    require_independent(batch_normalised, P, X[:1])


def images(net, *shape):
    """Parameters and inputs, with margins of zeros as digits have."""
    x = normal(6, *shape).at[:, :2].set(0)
    return net.apply, start(net.init), x


def scaled_words(p, x):
    return p[x["ids"]].sum(1) * x["scale"][:, None]


def noisy(p, x):
    drawn = jax.vmap(lambda key: jax.random.normal(key, (6,), x["x"].dtype))(x["key"])
    return hidden(p, x["x"] + drawn)


KEY = jax.random.key(3)
TREE = {"ids": jnp.arange(24).reshape(6, 4) % 5, "scale": normal(6)}


def one_by_one(p, x):
    """Written for one example, and given a batch of any size by a loop."""
    return jnp.stack([jax.nn.relu(x[i] @ p["w"]) for i in range(len(x))]) @ p["v"]


INDEPENDENT = {
    "mlp": lambda: images(il.mlp((6, 32, 3)), 6),
    "lenet": lambda: images(lenet((12, 12, 1), kernel_size=3, channels=4), 12, 12, 1),
    "a tree of inputs": lambda: (scaled_words, normal(5, 3), TREE),
    "a loop over the examples": lambda: (one_by_one, P, X),
    "centred": lambda: (il.centred(hidden, single(P)), P, X),
    "a network that is NaN": lambda: (lambda p, x: jnp.log(-jnp.exp(hidden(p, x))), P, X),
    "parameters that must be positive": lambda: (
        lambda p, x: jnp.log(p["s"]) * x @ jnp.sqrt(p["s"])[:, None],
        {"s": jnp.asarray([1e-3, 0.1, 1.0, 5.0, 1e3, 1e-8])},
        X,
    ),
    "a key in each example": lambda: (noisy, P, {"x": X, "key": jax.random.split(KEY, len(X))}),
    "a reverse rule": lambda: (lambda p, x: doubled_gradient(hidden(p, x)), P, X),
}


@jax.custom_vjp
def doubled_gradient(h):
    return h


doubled_gradient.defvjp(lambda h: (h, None), lambda _, g: (2 * g,))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_networks_that_treat_examples_one_by_one_are_not_refused(name):
    """In float32, whose rounding depends on the size of a batch."""
    f, *given = INDEPENDENT[name]()
    require_independent(f, *single(given))


def test_half_precision_is_rounded_more():
    net = il.mlp((6, 64, 64, 3))
    given = optax.tree.cast((net.init(jax.random.key(0)), X), jnp.bfloat16)
    require_independent(net.apply, *given)
    coupled = lambda p, x: jnp.cumsum(net.apply(p, x), 0)  # noqa: E731
    fails("couples its examples", require_independent, coupled, *given)
