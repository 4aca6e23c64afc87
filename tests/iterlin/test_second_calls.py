"""A second call that computes the same compiles nothing, and nothing of its input is kept."""

import gc
import weakref
from collections import OrderedDict
from itertools import product

import iterlin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise import programs
from iterlin.linearise.programs import SharedJit
from iterlin.training import losses
from problems import compilations, flat, network

F, PARAMS, X, Y = network((3, 6, 2), examples=10)
SQUARED, ENTROPY = losses.mean(losses.squared_error), losses.mean(losses.cross_entropy)
LABELS = jnp.arange(10) % 2


def scaled(scale):
    """A network with an array in its closure."""
    return lambda params, x: F(params, x * scale)


def by_engine(engine, f, params, trainable=None, **settings):
    penalty = 0.1 if "minimum" in engine else 0.0
    algorithm = iterlin.Algorithm(f, SQUARED, 0.1, penalty=penalty, trainable=trainable)
    watch = iterlin.Watch({"all": (X, Y)}, at=[0, 5])
    run = {"schedule": 7, "num_steps": 20, "watch": watch, "target_loss": 1e-9, "progress": False}
    return iterlin.train(algorithm, params, (X, Y), engine=engine, **run, **settings)[0].params


def solved(f, params, _=None):
    settings = {"max_steps": 3, "tolerance": 1e-9, "damping": 0.1}
    return iterlin.gauss_newton(f, params, X, Y, **settings).params


def truncated(f, params, _=None):
    settings = {"max_steps": 3, "tolerance": 1e-9, "beta": 0.1, "loss": ENTROPY}
    damping = iterlin.LevenbergMarquardt()
    return iterlin.truncated_gauss_newton(f, params, X, LABELS, damping=damping, **settings).params


ENGINES = ["closed_form", "flow", "function_space_flow", "minimum", "kept_steps"]
SOLVERS = {"gauss_newton": solved, "truncated_gauss_newton": truncated}
CALLS = SOLVERS | {name: lambda *given, name=name: by_engine(name, *given) for name in ENGINES}


PARTS = [None, lambda path: path.startswith("1/")]


@pytest.mark.parametrize(("name", "part"), [*product(ENGINES, PARTS), *product(SOLVERS, [None])])
def test_a_second_call_compiles_nothing_and_sees_what_changed(name, part, monkeypatch):
    """Also with other numbers in its parameters, its frozen parameters and its closure."""
    changed = scaled(jnp.full((1, 3), 0.7)), jax.tree.map(lambda leaf: 1.1 * leaf, PARAMS), part
    with compilations() as found:
        first = CALLS[name](scaled(jnp.full((1, 3), 0.5)), PARAMS, part)
    assert found
    with compilations() as found:
        again = CALLS[name](scaled(jnp.full((1, 3), 0.5)), PARAMS, part)
        other = CALLS[name](*changed)
    assert not found
    np.testing.assert_array_equal(flat(again), flat(first))
    monkeypatch.setattr(programs, "_compiled", OrderedDict())
    np.testing.assert_array_equal(flat(other), flat(CALLS[name](*changed)))


class Owner:
    """A network that is a method."""

    def __init__(self, scale):
        self.scale = scale

    def apply(self, params, x):
        return jax.nn.relu(F(params, x * self.scale))


@pytest.mark.parametrize("name", ["flow", "closed_form", "gauss_newton"])
def test_nothing_is_kept_of_a_network_that_is_dropped(name):
    owner, params = Owner(jnp.full((1, 3), 0.5)), jax.tree.map(jnp.copy, PARAMS)
    CALLS[name](owner.apply, params)
    kept = [weakref.ref(node) for node in (owner, owner.scale, *jax.tree.leaves(params))]
    del owner, params
    gc.collect()
    assert not any(ref() is not None for ref in kept)


def test_functions_that_close_over_other_numbers_are_told_apart():
    def plus(value):
        array = jnp.full(3, value)
        return lambda x: value * x + array

    for wrapped in (lambda g: g, jax.jit):
        for value in (2.0, 3.0):
            inner = wrapped(plus(value))
            found = SharedJit(lambda x, g=inner: {"sum": g(x)})(jnp.ones(3))
            np.testing.assert_array_equal(found["sum"], np.full(3, 2 * value))


def test_a_function_under_a_transformation_is_called_as_it_is():
    def total(scale):
        return SharedJit(lambda x: jnp.sum(scale * x**2))(jnp.ones(3))

    np.testing.assert_array_equal(jax.vmap(total)(jnp.arange(2.0)), [0.0, 3.0])
    np.testing.assert_array_equal(jax.grad(lambda x: SharedJit(lambda y: y**2)(x))(3.0), 6.0)
