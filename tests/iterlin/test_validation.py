"""Each check refuses what it says, names the offender and what is allowed, and passes the rest."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise import validation
from problems import bare
from refusals import fails, refused

BIG = 10**30  # which no type of NumPy holds
THREE, KEYS = np.array([3]), jax.random.split(jax.random.PRNGKey(0))
FRACTIONS = [0.5, 1, np.float32(2), [1.0, 2.0]]
ONE, NOT_ONE = [1, 0.5, np.float32(2), jnp.asarray(3.0)], [np.ones(1), jnp.ones((2, 3)), [1.0]]
INFINITE = [math.inf, np.float32("inf"), jnp.asarray(jnp.inf), 7, BIG]
# The check, values that pass, and by what is allowed values that do not.
CHECKS = {
    "check_positive_integer": (
        [1, np.int32(3), np.array(3), jnp.asarray(2), BIG],
        {"a positive integer, got": [0, -1, 3.0, True, "3", None, math.inf, [3], THREE, 1j]},
    ),
    "check_non_negative_integer": (
        [0, 3, np.int32(3), jnp.asarray(0)],
        {"a non-negative integer, got": [-1, 1.5, True, "3", None]},
    ),
    "check_positive": (
        [*FRACTIONS, jnp.asarray([0.1, 3.0]), jnp.bfloat16(0.5)],
        {
            "finite and positive, got": [0, -1.0, math.nan, math.inf, jnp.asarray([1.0, -1.0])],
            "a positive real number, got": [1j, object()],
            "a number that a float holds": [BIG, Fraction(1, 3), 10**400],
        },
    ),
    "check_non_negative": (
        [0, *FRACTIONS],
        {
            "finite and non-negative, got": [-1.0, math.inf, [1, math.nan]],
            "a non-negative real number, got": [True, "1", None, np.array([True])],
        },
    ),
    "check_random_key": (
        [jax.random.key(0), jax.random.PRNGKey(0)],
        {r"a random key, as jax.random.key\(0\), got": [3, None, np.uint32(3), np.ones(2), KEYS]},
    ),
}

LIMIT = {"below 2147483648$": [2**31, 10**400]}
LIMITED = [
    ("check_positive", {"scalar": True}, ONE, {r"one number, .* of shape \(": NOT_ONE}),
    ("check_non_negative", {"scalar": True}, ONE, {r"one number, .* of shape \(": NOT_ONE}),
    ("check_positive_integer", {"infinity": True}, INFINITE, {".*, got -inf": [-math.inf]}),
    ("check_non_negative", {"infinity": True}, INFINITE, {".*, got -inf": [-math.inf]}),
    ("check_positive_integer", {"below": 2**31}, [2**31 - 1], LIMIT),
    ("check_non_negative_integer", {"below": 2**31}, [2**31 - 1], LIMIT),
]


@pytest.mark.parametrize(
    ("name", "settings", "passing", "refused"),
    [*((name, {}, *values) for name, values in CHECKS.items()), *LIMITED],
)
def test_a_check_names_the_offender_and_what_is_allowed(name, settings, passing, refused):
    check = partial(bare(getattr(validation, name)), **settings)
    for value in passing:
        check("setting", value)
    for allowed, values in refused.items():
        for value in values:
            fails(f"^setting must be {allowed}", check, "setting", value)


def test_leaves_that_are_not_finite_are_named():
    validation.check_finite("params", {"w": jnp.ones(2), "n": jnp.asarray([3]), "e": np.zeros(0)})
    for bad in (jnp.nan, -jnp.inf):
        with pytest.raises(ValueError, match=r"^params\['w'\]\[1\] must be finite, not NaN or inf"):
            validation.check_finite("params", {"w": [jnp.ones(2), jnp.asarray([0.0, bad])]})


PARAMS = jnp.ones((3, 2))
X, Y = jnp.ones((5, 3)) * jnp.arange(5.0)[:, None], jnp.zeros((5, 2))
BROKEN = X.at[2, 1].set(jnp.nan)


def network(params, x):
    return jnp.tanh(x @ params)


NETWORK = network, PARAMS, X
NEWTON = {"max_steps": 1, "tolerance": 0.0}
HALF = [array.astype(jnp.bfloat16) for array in (PARAMS, X, Y)]
SQUARED = il.losses.squared_error
ALGORITHM = il.Algorithm(network, SQUARED, 1e-3)
SETTINGS = {"schedule": 5, "num_steps": 10, "engine": "closed_form"}
COUNTED = il.when_solved(il.schedules.Solved(check_every=5))
SWEEP = {"periods": [1, 5], "keys": jax.random.split(jax.random.key(0)), "num_steps": 10}
TRAINED = partial(il.train, ALGORITHM, PARAMS, num_steps=10)
PAIR = jnp.ones(2)
SWEPT = partial(il.train_sweep, ALGORITHM, lambda key: PARAMS, **SWEEP)
LAPLACE = {"loss": SQUARED, "prior_precision": 1.0}

test_a_mistake_in_a_call_is_told_in_one_line = refused(
    lambda call: call(),
    (lambda: il.empirical_ntk(network, PARAMS, X[0]), "f must return an array that leads"),
    (lambda: bare(il.jacobian)(*NETWORK, independent="no"), "independent must be True"),
    (lambda: il.eigenmodes(network, *HALF), "must be float32 or float64, .*: got bfloat16"),
    (lambda: il.predict(jnp.eye(5, dtype=HALF[0].dtype), Y, jnp.eye(5)), "float32 or float64"),
    (lambda: il.laplace(*NETWORK, Y, **LAPLACE, noise_variance=PAIR), "noise_variance must be"),
    (lambda: il.train(ALGORITHM, PARAMS, (X, Y / 0), **SETTINGS), "targets must be finite"),
    *(
        (call, "1 of 5 examples hold NaN or inf: the first is number 2")
        for call in (
            lambda: TRAINED((BROKEN, Y), schedule=5),
            lambda: il.train(ALGORITHM, PARAMS, (BROKEN, Y), **SETTINGS),
            lambda: il.gauss_newton(network, PARAMS, BROKEN, Y, damping=0.1, **NEWTON),
            lambda: il.laplace(network, PARAMS, BROKEN, Y, **LAPLACE),
            lambda: il.empirical_ntk(network, PARAMS, X, BROKEN),
            lambda: SWEPT((BROKEN, Y)),
            lambda: SWEPT(lambda key: (jnp.where(key == SWEEP["keys"][1], BROKEN, X), Y)),
        )
    ),
    (lambda: il.LevenbergMarquardt(0.0), "damping must be"),
    (lambda: il.centred(network, PARAMS, 0.0), "scale must be"),
    (lambda: il.linearized_gradient_flow(*NETWORK, Y, time=PAIR), "time must be one number"),
    (lambda: il.eigenmodes(*NETWORK, Y).descent(0.1, [1, 50]), "num_steps must"),
    (lambda: replace(ALGORITHM, penalty=PAIR), "penalty must be one number"),
    (lambda: il.ggn_product(lambda p, x: (x, x), PARAMS, X, Y, SQUARED), "one array"),
    (lambda: TRAINED((X, Y), schedule=5, progress="yes"), "progress must be True or False"),
    (lambda: SWEPT((X, Y), progress="no"), "progress must be True or False"),
    (lambda: replace(ALGORITHM, reset_optimizer="no"), "reset_optimizer must be True or False"),
    (lambda: il.schedules.Solved(check_every=2**31), "check_every must be below"),
    (lambda: TRAINED((X, Y), schedule=COUNTED), "rule `Solved` counts right labels"),
    (lambda: SWEPT((X, Y), schedule=lambda period: COUNTED), "rule `Solved` counts right"),
    (lambda: il.ntk_product(*NETWORK)(X), r"v must have shape \(5, 2\), got \(5, 3\)"),
)


def test_a_network_may_replace_nan_in_its_inputs():
    def filled(params, x):
        return network(params, jnp.nan_to_num(x))

    state, _ = il.train(replace(ALGORITHM, f=filled), PARAMS, (BROKEN, Y), schedule=5, num_steps=5)
    assert state.diverged_at == -1
