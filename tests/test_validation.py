"""Each check refuses what it says, names the offender and what is allowed, and passes the rest."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import validation


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


@pytest.mark.parametrize("value", [0.5, 1, np.float32(2), jnp.asarray([0.1, 3.0]), [1.0, 2.0]])
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
    with pytest.raises(ValueError, match=r"must be float32 or float64, .*: got complex64"):
        validation.factorable("params", np.dtype("complex64"))


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


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -0.5])
def test_open_unit(value):
    validation.open_unit("beta", 0.5)
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
    validation.one_of("tier", "gpu", ("quick", "gpu"))
    with pytest.raises(ValueError, match="unknown tier 'cloud'; allowed: gpu, quick"):
        validation.one_of("tier", "cloud", ("quick", "gpu"))


def test_traced_values_pass():
    @jax.jit
    def function(value):
        assert validation.is_traced(value)
        validation.positive_integer("period", value)
        validation.positive("step_size", value)
        validation.open_unit("beta", value)
        return value

    assert int(function(-3)) == -3
    assert not validation.is_traced(3)
