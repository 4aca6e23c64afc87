"""Each check refuses what it says, names the offender and what is allowed, and passes the rest."""

import math
from fractions import Fraction

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import validation
from problems import bare


@pytest.mark.parametrize("value", [1, 7, np.int32(3), np.array(3), jnp.asarray(2), 10**30])
def test_positive_integers_pass(value):
    validation.positive_integer("period", value)


@pytest.mark.parametrize(
    "value",
    [0, -1, 2.5, 3.0, True, "3", None, math.inf, math.nan, [3], np.array([3]), np.array(2.0), 1j],
)
def test_others_are_refused(value):
    with pytest.raises(ValueError, match="period must be a positive integer, got") as error:
        validation.positive_integer("period", value)
    assert repr(value) in str(error.value)


def test_infinity_passes_only_where_it_has_a_meaning():
    validation.positive_integer("period", math.inf, infinity=True)
    with pytest.raises(ValueError, match="a positive integer or infinity, got -inf"):
        validation.positive_integer("period", -math.inf, infinity=True)
    validation.non_negative("time", math.inf, infinity=True)
    with pytest.raises(ValueError, match="time must be finite and non-negative, got inf"):
        validation.non_negative("time", math.inf)
    validation.positive("time", math.inf, infinity=True)
    validation.positive("time", 10**30, infinity=True)  # which no type of NumPy holds
    with pytest.raises(ValueError, match=r"^time must be positive, got 0$"):
        validation.positive("time", 0, infinity=True)


@pytest.mark.parametrize(
    "value",
    [0.5, 1, np.float32(2), jnp.asarray([0.1, 3.0]), [1.0, 2.0]],
)
def test_positive_numbers_pass(value):
    validation.positive("step_size", value)
    validation.non_negative("damping", value)


@pytest.mark.parametrize(
    "value", [-1.0, math.nan, math.inf, -math.inf, jnp.asarray([1.0, -1.0]), [1.0, math.nan]]
)
def test_negative_and_undefined_numbers_are_refused(value):
    with pytest.raises(ValueError, match="step_size must be finite and positive, got"):
        validation.positive("step_size", value)
    with pytest.raises(ValueError, match="damping must be finite and non-negative, got"):
        validation.non_negative("damping", value)


@pytest.mark.parametrize("value", [True, "1", None, np.array([True]), object()])
def test_other_types_are_refused(value):
    with pytest.raises(ValueError, match="damping must be a non-negative real number, got"):
        validation.non_negative("damping", value)


def test_numbers_of_bfloat16_pass_and_complex_ones_do_not():
    validation.positive("step_size", jnp.bfloat16(0.5))
    with pytest.raises(ValueError, match="step_size must be a positive real number, got"):
        validation.positive("step_size", 1j)
    validation.factorable("params", np.dtype("float32"))
    for narrow in ("complex64", "float16"):
        with pytest.raises(ValueError, match=rf"must be float32 or float64, .*: got {narrow}"):
            validation.factorable("params", np.dtype(narrow))


@pytest.mark.parametrize("value", [(), (3,), [1, 2], np.array([4, 5])])
def test_sequences_of_positive_integers_pass(value):
    validation.positive_integers("widths", value)


@pytest.mark.parametrize("value", [5, None, (3, 0), [2.5], "12", {1, 2}, iter((1, 2))])
def test_other_sequences_are_refused(value):
    with pytest.raises(ValueError, match="widths must be a sequence of positive integers, got"):
        validation.positive_integers("widths", value)


def test_one_number():
    for value in (1, 0.5, np.float32(2), jnp.asarray(3.0)):
        validation.one_number("damping", value)
    for value in (np.ones(1), jnp.ones((2, 3)), [1.0]):
        with pytest.raises(ValueError, match=r"damping must be one number, .* of shape \("):
            validation.one_number("damping", value)
    jax.jit(lambda value: validation.one_number("damping", value))(jnp.ones(3))


def test_zero_is_not_negative_and_not_positive():
    validation.non_negative("damping", 0)
    with pytest.raises(ValueError, match="damping must be finite and positive, got 0"):
        validation.positive("damping", 0)


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -0.5, [0.5, 1.5], [0.5, -0.5]])
def test_open_unit(value):
    validation.open_unit("beta", 0.5)
    validation.open_unit("beta", [0.5, 0.7])
    with pytest.raises(ValueError, match=r"beta must .*got"):
        validation.open_unit("beta", value)


def test_same_shape_and_one_of():
    validation.same_shape(np.zeros((2, 3)), jnp.zeros((2, 3)))
    with pytest.raises(
        ValueError, match=r"targets have shape \(2,\).*outputs have shape\s\(2, 1\)"
    ):
        validation.same_shape(np.zeros((2, 1)), np.zeros(2))
    with pytest.raises(ValueError, match=r"targets must be one array \(N, ...\), got list"):
        validation.same_shape(np.zeros(2), [1.0, 3.0])
    validation.one_shape(k0=np.zeros(2), k1=jnp.ones(2))
    with pytest.raises(ValueError, match=r"k0 and k1 must have one shape, got \(2,\) and \(1, 2\)"):
        validation.one_shape(k0=np.zeros(2), k1=np.zeros((1, 2)))
    validation.one_of("tier", "gpu", ("quick", "gpu"))
    with pytest.raises(ValueError, match="unknown tier 'cloud'; allowed: gpu, quick"):
        validation.one_of("tier", "cloud", ("quick", "gpu"))


def test_traced_values_pass():
    @jax.jit
    def function(value):
        assert validation.is_traced(value)
        assert validation.as_python(value) is value
        validation.positive_integer("period", value)
        validation.positive("step_size", value)
        validation.open_unit("beta", value)
        validation.whole_number("depth", value)
        validation.finite("params", {"w": value})
        validation.labels("y", value, 1)
        return value

    assert int(function(-3)) == -3
    assert not validation.is_traced(3)


@pytest.mark.parametrize("value", [math.inf, np.float32("inf"), jnp.asarray(jnp.inf), 7])
def test_infinity_of_any_type_passes(value):
    validation.positive_integer("period", value, infinity=True)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (10**30, "must be a number that a float holds"),
        (Fraction(1, 3), "must be a number that a float holds"),
        (10**400, "must be a number that a float holds"),
        (object(), "must be a positive real number"),
    ],
)
def test_numbers_that_numpy_has_no_type_for_are_refused_by_name(value, problem):
    with pytest.raises(ValueError, match=f"step_size {problem}"):
        validation.positive("step_size", value)


def test_integers_beyond_a_limit_are_refused():
    for check in (validation.positive_integer, validation.whole_number):
        check("num_steps", 2**31 - 1, below=2**31)
        for value in (2**31, 10**400):
            with pytest.raises(ValueError, match=r"^num_steps must be below 2147483648$"):
                check("num_steps", value, below=2**31)


@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None, np.float64(2)])
def test_what_is_no_whole_number_is_refused(value):
    for allowed in (0, 3, np.int32(3), jnp.asarray(0)):
        validation.whole_number("depth", allowed)
    with pytest.raises(ValueError, match="depth must be a non-negative integer, got"):
        validation.whole_number("depth", value)


def test_leaves_that_are_not_finite_are_named():
    validation.finite("params", {"w": jnp.ones(2), "n": jnp.asarray([3]), "e": np.zeros(0)})
    for bad in (jnp.nan, -jnp.inf):
        with pytest.raises(ValueError, match=r"^params\['w'\]\[1\] must be finite, not NaN or inf"):
            validation.finite("params", {"w": [jnp.ones(2), jnp.asarray([0.0, bad])]})


def test_labels_outside_the_classes_are_refused():
    validation.labels("y", np.array([[0], [2]]), 3)
    validation.labels("y", np.array([7.5]), 3)
    for values, smallest in (([3, 0, 9, 5], 3), ([2, -2, -1], -2)):
        message = f"^y must be labels of 3 classes, 0 to 2: got {smallest}$"
        with pytest.raises(ValueError, match=message):
            validation.labels("y", jnp.asarray(values), 3)


def test_keys():
    validation.random_key("key", jax.random.key(0))
    validation.random_key("key", jax.random.PRNGKey(0))
    jax.vmap(lambda key: validation.random_key("key", key))(jax.random.split(jax.random.key(0)))
    several = [jax.random.split(key) for key in (jax.random.key(0), jax.random.PRNGKey(0))]
    for value in (3, None, np.uint32(3), np.array([1.0, 2.0]), *several):
        with pytest.raises(ValueError, match=r"key must be a random key, as jax.random.key"):
            validation.random_key("key", value)


def test_a_leaf_of_another_shape_is_told_by_its_place():
    model = {"w": [jnp.ones((2, 3)), jnp.ones(3)]}
    validation.like("prior_mean", {"w": [np.zeros((2, 3)), np.zeros(3)]}, model)
    with pytest.raises(ValueError, match="prior_mean must be a pytree of structure"):
        validation.like("prior_mean", {"w": [np.zeros((2, 3))]}, model)
    message = r"^prior_mean\['w'\]\[1\] must have shape \(3,\), got \(2,\)$"
    with pytest.raises(ValueError, match=message):
        validation.like("prior_mean", {"w": [np.zeros((2, 3)), np.zeros(2)]}, model)


def test_a_function_of_other_arguments_is_refused():
    for fits in (lambda params, x: 0, lambda params, x, key=None: 0, lambda *both: 0, dict):
        validation.accepts("f", fits, ("params", "x"))
    message = r"^f is called as f\(params, x\), but it takes \(x\); see there$"
    with pytest.raises(ValueError, match=message):
        validation.accepts("f", lambda x: 0, ("params", "x"), "; see there")
    message = r"^f is called as f\(params, x, key\), but it takes \(params, x\)$"
    with pytest.raises(ValueError, match=message):
        validation.accepts("f", lambda params, x: 0, ("params", "x", "key"))


PARAMS = jnp.ones((3, 2))
X, Y = jnp.ones((5, 3)) * jnp.arange(5.0)[:, None], jnp.zeros((5, 2))


def network(params, x):
    return jnp.tanh(x @ params)


SETTINGS = {"schedule": 5, "num_steps": 10, "engine": "closed_form"}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: il.empirical_ntk(network, PARAMS, X[0]), "f must return an array that leads"),
        (
            lambda: bare(il.empirical_ntk)(network, PARAMS, X, diagonal="no"),
            "diagonal must be True",
        ),
        (
            lambda: bare(il.jacobian)(network, PARAMS, X, independent="no"),
            "independent must be True",
        ),
        (lambda: il.predict(jnp.eye(5).at[0, 1].set(1), Y, jnp.eye(5)), "kernel_dd must be sym"),
        (lambda: il.predict(-jnp.eye(5), Y, jnp.eye(5)), "kernel_dd must be J J"),
        (
            lambda: il.laplace(
                network,
                PARAMS,
                X,
                Y,
                loss=il.losses.squared_error,
                prior_precision=1.0,
                noise_variance=jnp.ones(2),
            ),
            "noise_variance must be one number",
        ),
        (
            lambda: il.integrate(
                il.Algorithm(network, il.losses.squared_error, 1e-3),
                PARAMS,
                (X, Y.at[0, 0].set(jnp.nan)),
                **SETTINGS,
            ),
            "targets must be finite",
        ),
    ],
)
def test_a_mistake_in_a_call_is_told_in_one_line(call, named):
    with pytest.raises(ValueError, match=named) as error:
        call()
    assert "\n" not in str(error.value)
