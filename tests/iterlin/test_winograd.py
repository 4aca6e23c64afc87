import functools
from importlib.metadata import version

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from iterlin.networks import convolution


def pooled(method, padding="SAME"):
    return lambda x, kernel: convolution.conv2d_max_pool2(x, kernel, padding=padding, method=method)


# The code generator of XLA that its users have, where tests choose another (`xla.QUICKER`).
TODAYS = {"xla_cpu_use_fusion_emitters": True}


@functools.cache
def products(method, padding, todays):
    """(primals, tangents) -> the value, the pushforward of the tangents, the pullback of that."""

    def both(primals, tangents):
        value, pushed = jax.jvp(pooled(method, padding), primals, tangents)
        return value, pushed, *jax.vjp(pooled(method, padding), *primals)[1](pushed)

    return jax.jit(both, compiler_options=TODAYS if todays else None)


def value_and_derivatives(method, image, size, padding, seed, todays=False):
    rng = np.random.default_rng(seed)
    primals = tuple(jnp.asarray(rng.normal(size=s)) for s in ((2, *image, 3), (*size, 3, 4)))
    tangents = tuple(jnp.asarray(rng.normal(size=part.shape)) for part in primals)
    return products(method, padding, todays)(primals, tangents)


def require_alike(*case, todays=False):
    ours = value_and_derivatives("winograd", *case, todays)
    for found, expected in zip(ours, value_and_derivatives("direct", *case), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.skipif(not version("jaxlib").startswith("0.10."), reason="another may not know it")
@pytest.mark.parametrize("size", [(3, 4), (5, 5)])
def test_the_largest_is_found_among_numbers_that_are_computed_once(size):
    """A reader that makes a window anew may round it so that the largest is none of its entries."""
    require_alike((2, 2), size, "SAME", 0, todays=True)


CASES = drawn.shapes(
    [
        ((5, 8), (1, 3), "SAME"),
        ((2, 9), (2, 5), "SAME"),
        ((7, 4), (4, 3), "VALID"),
        ((6, 9), (5, 5), "VALID"),
    ],
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from(convolution.PADDINGS),
)


@given(CASES, st.integers(0, 99))
def test_values_and_both_derivatives_are_those_of_the_convolution(case, seed):
    image, size, padding = case
    assume(padding == "SAME" or all(a > b for a, b in zip(image, size, strict=True)))
    require_alike(image, size, padding, seed)


def test_single_precision_loses_a_digit_at_most():
    rng = np.random.default_rng(0)
    primals = rng.normal(size=(8, 14, 14, 16)), rng.normal(size=(5, 5, 16, 16)) / 20
    arrays = primals, rng.normal(size=(8, 7, 7, 16))

    def numbers(method, dtype):
        @jax.jit
        def value_and_pullback(primals, cotangent):
            value, back = jax.vjp(pooled(method), *primals)
            return value, *back(cotangent)

        return value_and_pullback(*jax.tree.map(lambda a: jnp.asarray(a, dtype), arrays))

    exact = numbers("patches", np.float64)
    for method, most in (("patches", 1.5e-6), ("winograd", 6e-6)):
        for found, wanted in zip(numbers(method, np.float32), exact, strict=True):
            assert found.dtype == np.float32
            assert np.abs(found - wanted).max() < most * np.abs(wanted).max()


def test_a_linearisation_of_several_runs_is_transposed():
    rng = np.random.default_rng(1)
    x, kernels = jnp.asarray(rng.normal(size=(3, 8, 8, 2))), rng.normal(size=(4, 3, 3, 2, 5))

    def step(method):
        def of_run(kernel):
            outputs, push = jax.linearize(lambda k: pooled(method)(x, k), kernel)
            return outputs, push(kernel), jax.linear_transpose(push, kernel)(outputs)[0]

        return jax.jit(jax.vmap(of_run))(jnp.asarray(kernels))

    for ours, theirs in zip(step("winograd"), step("direct"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-11)
