"""A kernel is of the network as it is now; a second one compiles nothing, and nothing is kept."""

import gc
import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import empirical_ntk
from iterlin.linearise.linearization import jacobian
from problems import compilations, normal

X, W = normal(4, 3), {"w": normal(3, 5), "v": normal(5, 2)}
NEGATIVE = jax.tree.map(jnp.negative, W)
GLOBAL = SimpleNamespace(array=normal(3), number=2.0)


def of_globals(p, x):
    return jnp.tanh((x * GLOBAL.array[None]) @ p["w"] * GLOBAL.number) @ p["v"]


def expected(f, params, x):
    rows = jacobian(f, params, x)
    return np.trace((rows @ rows.T).reshape(len(x), -1, len(x), 2), axis1=1, axis2=3)


def assert_trace(f, params=W, x=X):
    found = empirical_ntk(f, params, x, trace=True)
    np.testing.assert_allclose(found, expected(f, params, x), rtol=1e-11)


def test_changed_globals_are_seen(monkeypatch):
    assert_trace(of_globals)
    monkeypatch.setattr(GLOBAL, "number", 3.0)
    assert_trace(of_globals)
    monkeypatch.setattr(GLOBAL, "array", normal(4)[1:])
    assert_trace(of_globals)


class Module:
    def __init__(self, scale):
        self.scale = scale

    def apply(self, p, x):
        return jax.nn.relu(x @ p["w"] * self.scale) @ p["v"]


def test_a_second_kernel_compiles_nothing_whatever_the_network_closes_over():
    """Of a function that was made anew and holds another array."""
    with compilations() as found:
        empirical_ntk(Module(normal(5)[None]).apply, W, X, trace=True)
        jax.jit(lambda x: x + 1)(1.0)
    assert found
    other = Module(2 * normal(5)[None]).apply
    with compilations() as found:
        kernel = empirical_ntk(other, NEGATIVE, X, trace=True)
    assert not found
    np.testing.assert_allclose(kernel, expected(other, NEGATIVE, X), rtol=1e-11)


def test_functions_with_rules_of_their_own_share_no_program():
    """The operations of these are the same, their derivatives are not."""

    def ruled(factor):
        @jax.custom_jvp
        def twice(h):
            return 2 * h

        twice.defjvp(lambda p, t: (twice(*p), factor * t[0]))
        return lambda p, x: twice(x @ p["w"]) @ p["v"]

    for factor in (2.0, 5.0):
        assert_trace(ruled(factor))


def ruled_by(array):
    @jax.custom_vjp
    def act(h):
        return jnp.tanh(h)

    act.defvjp(lambda h: (act(h), h), lambda h, g: (g * array,))
    return act


# Activations that close over an array (1, 5), each in its own way.
HOLDING = {
    "in jit in a loop": lambda array: lambda h: jax.lax.map(jax.jit(lambda v: v * array[0]), h),
    "in a reverse rule": ruled_by,
}


@pytest.mark.parametrize("kind", HOLDING)
def test_an_array_that_is_changed_in_place_is_seen(kind):
    """By the function that closes over it, and by another one that is made alike."""

    def network(array):
        act = HOLDING[kind](array)
        return lambda p, x: act(x @ p["w"]) @ p["v"]

    array = np.zeros((1, 5))
    f = network(array)
    for value in (0.5, 1.0):
        array[:] = value
        fresh = network(array.copy())  # nothing is known of it yet
        found = empirical_ntk(f, W, X, trace=True)
        np.testing.assert_allclose(found, expected(fresh, W, X), rtol=1e-11)
        np.testing.assert_allclose(empirical_ntk(fresh, W, X, trace=True), found, rtol=1e-11)


@pytest.mark.parametrize("kind", ["method", "own rule"])
def test_nothing_is_kept_of_a_function_that_is_dropped(kind):
    scale = normal(5)[None] + 1
    owner = Module(scale) if kind == "method" else ruled_by(scale)
    f = owner.apply if kind == "method" else lambda p, x, act=owner: act(x @ p["w"]) @ p["v"]
    empirical_ntk(f, W, X, trace=True)
    array, function = weakref.ref(scale), weakref.ref(owner)
    del scale, owner, f
    gc.collect()
    assert array() is None
    assert function() is None


def test_under_transformations():
    """Traced, and closing over what is traced: as for each value by itself."""

    def total(params, scale):
        def f(p, x):
            return jax.nn.relu(x @ p["w"] * scale) @ p["v"]

        return jnp.sum(empirical_ntk(f, params, X, trace=True))

    scales = jnp.asarray([1.0, 2.0])
    single = jnp.stack([jax.jit(total)(W, scale) for scale in scales])
    np.testing.assert_allclose(jax.vmap(total, (None, 0))(W, scales), single, rtol=1e-12)
    _, scanned = jax.lax.scan(lambda c, s: (c, total(W, s)), 0.0, scales)
    np.testing.assert_allclose(scanned, single, rtol=1e-12)
    slope = jax.jit(jax.grad(total, 1))
    # Of degree two in the scale: through the derivatives of v and of w.
    np.testing.assert_allclose(slope(W, scales[1]), 2 * slope(W, scales[0]), rtol=1e-12)
    np.testing.assert_allclose(single[1], 4 * single[0], rtol=1e-12)
