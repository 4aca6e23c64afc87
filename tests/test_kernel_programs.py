"""A kernel is of the network as it is now; a second one compiles nothing, and nothing is kept."""

import gc
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import empirical_ntk, programs
from iterlin.linearization import jacobian


def normal(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape)


X, W = normal(4, 3), {"w": normal(3, 5), "v": normal(5, 2)}
NEGATIVE = jax.tree.map(jnp.negative, W)
GLOBAL = SimpleNamespace(array=normal(3), number=2.0)


@contextmanager
def compilations():
    """Names of the functions that are compiled within the block."""
    found, counting = [], True

    def listen(event, duration, **details):
        if counting and event == "/jax/core/compile/backend_compile_duration":
            found.append(details["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        counting = False


def of_globals(p, x):
    return jnp.tanh((x * GLOBAL.array[None]) @ p["w"] * GLOBAL.number) @ p["v"]


def with_a_rule(p, x):
    return jax.nn.relu(x @ p["w"] + 0.1) @ p["v"] * GLOBAL.number


def expected(f, params, x):
    rows = jacobian(f, params, x)
    return np.trace((rows @ rows.T).reshape(len(x), -1, len(x), 2), axis1=1, axis2=3)


def assert_trace(f, params=W, x=X):
    found = empirical_ntk(f, params, x, trace=True)
    np.testing.assert_allclose(found, expected(f, params, x), rtol=1e-11)


@pytest.mark.parametrize("f", [of_globals, with_a_rule])
def test_changed_globals_are_seen(monkeypatch, f):
    assert_trace(f)
    monkeypatch.setattr(GLOBAL, "number", 3.0)
    assert_trace(f)
    monkeypatch.setattr(GLOBAL, "array", normal(4)[1:])
    assert_trace(f)


class Module:
    def __init__(self, scale):
        self.scale = scale

    def apply(self, p, x):
        return jax.nn.relu(x @ p["w"] * self.scale) @ p["v"]


class Ruled(Module):
    """Its derivative rule holds the module."""

    def apply(self, p, x):
        @jax.custom_vjp
        def act(h):
            return jnp.tanh(h)

        act.defvjp(lambda h: (act(h), h), lambda h, g: (g * self.scale,))
        return act(x @ p["w"]) @ p["v"]


def closure(scale):
    return lambda p, x: jnp.tanh(x @ p["w"] * scale) @ p["v"]


@pytest.mark.parametrize("kind", ["function", "method", "closures"])
def test_a_second_kernel_compiles_nothing_whatever_the_network_closes_over(monkeypatch, kind):
    """Also of a method, which is another object at each look, or of a function made anew."""
    module = Module(normal(5)[None])
    look = {
        "function": lambda: with_a_rule,
        "method": lambda: module.apply,
        "closures": lambda: closure(normal(5)[None]),
    }[kind]
    with compilations() as found:
        empirical_ntk(look(), W, X, trace=True)
        jax.jit(lambda x: x + 1)(1.0)
    assert found
    monkeypatch.setattr(module, "scale", 2 * module.scale)
    other = look()
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


def tangent_by(array):
    @jax.custom_jvp
    def act(h):
        return jnp.tanh(h)

    act.defjvp(lambda p, t: (act(*p), t[0] * array))
    return act


def called_back(array):
    def act(h):
        shape = jax.ShapeDtypeStruct(array.shape, array.dtype)
        return h * jax.pure_callback(lambda: array.copy(), shape)

    return act


# Activations that close over an array (1, 5), each in its own way.
HOLDING = {
    "plainly": lambda array: lambda h: jnp.tanh(h * array),
    "in jit": lambda array: jax.jit(lambda h: jnp.tanh(h * array)),
    "in a loop": lambda array: lambda h: jax.lax.scan(lambda c, v: (c, v * array[0]), 0.0, h)[1],
    "in jit in a loop": lambda array: lambda h: jax.lax.map(jax.jit(lambda v: v * array[0]), h),
    "in a branch": lambda array: (
        lambda h: jax.lax.cond(h[0, 0] > 9, jnp.sin, jax.jit(lambda h: h * array), h)
    ),
    "remembered less": lambda array: jax.checkpoint(lambda h: jnp.tanh(h * array)),
    "in a reverse rule": ruled_by,
    "in a tangent rule": tangent_by,
    "in a custom gradient": lambda array: jax.custom_gradient(
        lambda h: (jnp.tanh(h), lambda g: g * array)
    ),
    "in a callback": called_back,
}


@pytest.mark.parametrize("kind", HOLDING)
def test_an_array_that_is_changed_in_place_is_seen(kind):
    """By the function that closes over it, and by another one that is made alike."""

    def network(array):
        act = HOLDING[kind](array)
        return lambda p, x: act(x @ p["w"]) @ p["v"]

    array = np.full((1, 5), 0.5)
    f = network(array)
    for value in (1.0, 2.0):
        assert_trace_like(f, network(array.copy()))
        array[:] = value
        assert_trace_like(f, network(array.copy()))


def assert_trace_like(f, fresh):
    """The kernel of f is that of a function that is new."""
    np.testing.assert_allclose(
        empirical_ntk(f, W, X, trace=True), expected(fresh, W, X), rtol=1e-11
    )


def test_numbers_that_differ_in_the_last_digit_are_two_programs():
    x = jnp.ones(1)
    same, other = (
        empirical_ntk(lambda p, x, n=number: p * x - p * x / n, jnp.ones(()), x)
        for number in (1.0, np.nextafter(1.0, 2))
    )
    assert same.item() == 0
    assert other.item() > 0


@pytest.mark.parametrize("kind", ["closure", "rule", "method", "own rule"])
def test_nothing_is_kept_of_a_function_that_is_dropped(kind):
    scale = normal(5)[None] + 1
    if kind in ("method", "own rule"):
        owner = Module(scale) if kind == "method" else Ruled(scale)
        f = owner.apply
    else:
        act = jax.nn.relu if kind == "rule" else jnp.tanh
        f = owner = lambda p, x: act(x @ p["w"] * scale) @ p["v"]
    empirical_ntk(f, W, X, trace=True)
    array, function = weakref.ref(scale), weakref.ref(owner)
    del scale, owner, f
    gc.collect()
    assert array() is None
    assert function() is None


def test_no_more_programs_than_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(programs, "MOST", 3)
    for power in range(2, 8):
        empirical_ntk(lambda p, x, n=power: (x @ p["w"]) ** n @ p["v"], W, X)
    assert len(programs._compiled) <= 3


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


def test_under_jit_with_nothing_traced():
    run = jax.jit(lambda: empirical_ntk(with_a_rule, W, X, trace=True))
    np.testing.assert_allclose(run(), expected(with_a_rule, W, X), rtol=1e-11)
