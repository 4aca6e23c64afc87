"""Compiled programs are used again for what they compute, and see what changed."""

import gc
import weakref
from functools import partial

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin import empirical_ntk, jacobian, losses
from iterlin.linearise import compiled
from iterlin.linearise.devices import to_array
from problems import compilations, flat, network, normal

F, PARAMS, X, Y = network((3, 6, 2), examples=10)
SQUARED, ENTROPY = losses.mean(losses.squared_error), losses.mean(losses.cross_entropy)
LABELS = jnp.arange(10) % 2


class Scaled:
    """A network that is a method and holds an array."""

    def __init__(self, scale):
        self.scale = jnp.full((1, 3), scale)

    def apply(self, params, x):
        return F(params, x * self.scale)


def by_engine(engine, f, params, trainable=None, *, size=0.1, penalty=0.1, period=7):
    algorithm = iterlin.Algorithm(f, SQUARED, size, penalty=penalty, trainable=trainable)
    metrics = {"far": lambda outputs, y: jnp.mean(jnp.abs(outputs - y))}  # another one each time
    watch = iterlin.Watch({"all": (X, Y)}, metrics, at=[0, 5])
    run = {"schedule": period, "num_steps": 20, "watch": watch, "target_loss": 1e-9}
    return iterlin.train(algorithm, params, (X, Y), engine=engine, progress=False, **run)[0].params


def swept(algorithm, params):
    settings = {"periods": [1, 2], "keys": jax.random.split(jax.random.key(0)), "num_steps": 3}
    return iterlin.train_sweep(algorithm, lambda key: params, (X, LABELS), **settings)[0].params


OF_HEAD = [{"weight": False, "bias": False}, {"weight": True, "bias": True}]
STEPS = {"damping": 0.1, "max_steps": 3, "tolerance": 1e-9}
CALLS = {
    "kernel": lambda f, params: empirical_ntk(f, params, X, trace=True),
    "steps": lambda f, params: by_engine("steps", f, params),
    "sweep": lambda f, params: swept(iterlin.Algorithm(f, ENTROPY, 0.1), params),
    "closed_form of a part": lambda f, params: by_engine("closed_form", f, params, OF_HEAD),
    "flow": lambda f, params: by_engine("flow", f, params),
    "gauss_newton": lambda f, params: iterlin.gauss_newton(f, params, X, Y, **STEPS).params,
    "truncated_gauss_newton": lambda f, params: (
        iterlin.truncated_gauss_newton(f, params, X, LABELS, loss=ENTROPY, beta=0.1, **STEPS).params
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_compiles_nothing_sees_what_changed_and_keeps_nothing(name, monkeypatch):
    """Also with other numbers in its parameters, its frozen parameters and its closure."""
    call, changed = CALLS[name], jax.tree.map(lambda leaf: 1.1 * leaf, PARAMS)
    first = call(Scaled(0.5).apply, PARAMS)
    with compilations() as found:
        again, other = call(Scaled(0.5).apply, PARAMS), call(Scaled(0.7).apply, changed)
    assert not found
    np.testing.assert_array_equal(flat(again), flat(first))
    monkeypatch.setattr(compiled, "_compiled", {})
    owner = Scaled(0.7)
    np.testing.assert_array_equal(flat(other), flat(call(owner.apply, changed)))
    kept = [weakref.ref(node) for node in (owner, owner.scale, *jax.tree.leaves(changed))]
    del owner, changed, other
    gc.collect()
    assert not any(ref() is not None for ref in kept)


@pytest.mark.parametrize("engine", ["steps", "kept_steps", "closed_form", "flow", "minimum"])
def test_another_step_size_penalty_or_period_compiles_nothing(engine):
    trained = partial(by_engine, engine, Scaled(0.5).apply, PARAMS)
    first = flat(trained())
    with compilations() as found:
        others = trained(size=0.2), trained(penalty=0.2), trained(period=8)
    assert not found
    changes = [np.abs(flat(other) - first).max() for other in others]
    told = changes[1:2] if engine == "minimum" else changes  # which has neither steps nor periods
    assert min(told) > 1e-6


def by_rule(fraction):
    """Training that re-linearises where a gradient has fallen to a fraction, looked at in turn."""
    rule = iterlin.schedules.Solved(int(2 / fraction), accuracy=None, gradient=fraction)
    settings = {"schedule": iterlin.when_solved(rule, max_period=20), "num_steps": 40}
    return iterlin.train(iterlin.Algorithm(F, SQUARED, 0.05), PARAMS, (X, Y), **settings)[0]


def injected(number):
    """Training by an optax transformation whose step size is a part of its state."""
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=number)
    settings = {"schedule": 2, "num_steps": 4, "progress": False}
    return iterlin.train(iterlin.Algorithm(F, SQUARED, optimizer), PARAMS, (X, Y), **settings)[0]


GAUSS_NEWTON = partial(iterlin.gauss_newton, F, PARAMS, X, Y, **STEPS)
TRUNCATED = partial(iterlin.truncated_gauss_newton, F, PARAMS, X, Y, **STEPS)
SETTINGS = {
    "rule": by_rule,
    "step size of optax": injected,
    "damping": lambda number: GAUSS_NEWTON(damping=number),
    "adaptive damping": lambda number: GAUSS_NEWTON(damping=iterlin.LevenbergMarquardt(number)),
    "beta": lambda number: TRUNCATED(damping=0.0, beta=number),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_another_setting_compiles_nothing(name):
    first = SETTINGS[name](0.1)
    with compilations() as found:
        other = SETTINGS[name](0.7)
    assert not found
    assert np.abs(flat(other.params) - flat(first.params)).max() > 1e-6


W, EXAMPLES = {"w": normal(3, 5), "v": normal(5, 2)}, normal(4, 3)


def assert_trace(f, known=None):
    rows = jacobian(known or f, W, EXAMPLES)
    expected = np.trace((rows @ rows.T).reshape(4, -1, 4, 2), axis1=1, axis2=3)
    found = empirical_ntk(f, W, EXAMPLES, trace=True)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def twice(factor):
    @jax.custom_jvp
    def twice(h):
        return 2 * h

    twice.defjvp(lambda p, t: (twice(*p), factor * t[0]))
    return twice


def straight(factor):
    sign = jax.custom_jvp(jnp.sign)
    sign.defjvps(lambda t, outputs, h: factor * t)
    return sign


@pytest.mark.parametrize("ruled", [twice, straight])
def test_functions_with_rules_of_their_own_share_no_program(ruled):
    """The operations of these are the same, also where they are JAX's, their derivatives not."""
    for factor in (2.0, 5.0):
        act = ruled(factor)
        assert_trace(lambda p, x, act=act: act(x @ p["w"]) @ p["v"])


def ruled_by(array):
    @jax.custom_vjp
    def act(h):
        return jnp.tanh(h)

    act.defvjp(lambda h: (act(h), h), lambda h, g: (g * array,))
    return act


@pytest.mark.parametrize(
    "hold",
    [
        ruled_by,
        lambda array: lambda h: jax.lax.map(jax.jit(lambda v: v * array[0]), h),
        lambda array: lambda h: jnp.tanh(h * array) * float(array[0, 0]),
    ],
)
def test_an_array_that_is_changed_in_place_is_seen(hold):
    def holding(array):
        act = hold(array)
        return lambda p, x: act(x @ p["w"]) @ p["v"]

    array = np.zeros((1, 5))
    f = holding(array)
    for value in (0.5, 1.0):
        array[:] = value
        assert_trace(f, known=holding(array.copy()))


def test_kernels_under_transformations():
    """Traced, and closing over what is traced: as for each value by itself."""

    @jax.jit
    def total(scale):
        def f(p, x):
            return jax.nn.relu(x @ p["w"] * scale) @ p["v"]

        return jnp.sum(empirical_ntk(f, W, EXAMPLES, trace=True))

    scales = jnp.asarray([1.0, 2.0])
    single = jnp.stack([total(scale) for scale in scales])
    np.testing.assert_allclose(jax.vmap(total)(scales), single, rtol=1e-12)
    _, scanned = jax.lax.scan(lambda c, s: (c, total(s)), 0.0, scales)
    np.testing.assert_allclose(scanned, single, rtol=1e-12)
    # Of degree two in the scale: through the derivatives of v and of w.
    slopes = jax.vmap(jax.grad(total))(scales)
    np.testing.assert_allclose(slopes, 2 * scales * single[0], rtol=1e-12)
    np.testing.assert_allclose(single, np.array([1, 4]) * total.__wrapped__(1.0), rtol=1e-11)


def test_functions_that_close_over_other_numbers_are_told_apart():
    def plus(value):
        array = jnp.full(3, value)
        return lambda x: value * x + array

    for wrapped in (lambda g: g, jax.jit):
        for value in (2.0, 3.0):
            inner = wrapped(plus(value))
            found = compiled.SharedJit(lambda x, g=inner: {"sum": g(x)})(jnp.ones(3))
            np.testing.assert_array_equal(found["sum"], np.full(3, 2 * value))
    for constant in (jnp.arange(3), jnp.arange(3.0)):  # alike in text but for their types
        doubled = compiled.SharedJit(lambda c=constant: c + c)()
        np.testing.assert_array_equal(doubled, 2 * constant)
        assert doubled.dtype == constant.dtype


def test_numbers_become_the_array_that_asarray_gives():
    values = 3, 0.1, True, np.float64(2), np.ones((2, 3)), jnp.ones(2, jnp.bfloat16)
    for given in (*((value, None) for value in values), (3, jnp.int32), ([1, 2], jnp.int32)):
        found, wanted = to_array(*given), jnp.asarray(*given)
        assert (found.dtype, found.weak_type) == (wanted.dtype, wanted.weak_type)
        np.testing.assert_array_equal(found, wanted)


def test_a_kernel_of_known_arrays_inside_a_trace():
    """It is computed, and examples that meet are still found."""
    f, params, x, _ = network((2, 3, 1), examples=4)

    def coupled(params, x):
        return f(params, x - x.mean(0, keepdims=True))

    kernel = jax.jit(lambda z: z * empirical_ntk(f, params, x))(1.0)
    np.testing.assert_allclose(kernel, empirical_ntk(f, params, x), rtol=1e-12)
    with pytest.raises(ValueError, match="couples its examples"):
        jax.jit(lambda z: z * empirical_ntk(coupled, params, x))(1.0)
