from importlib.metadata import version

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from iterlin.networks import convolution, winograd


@pytest.mark.parametrize("size", range(1, winograd.LARGEST + 1))
def test_two_products_with_a_filter(size):
    """By their definition, and of as few multiplications as there can be."""
    rng = np.random.default_rng(size)
    d, g = rng.normal(size=size + 1), rng.normal(size=size)
    outputs, inputs, filters = winograd.transforms(size)
    assert (outputs.shape, inputs.shape) == ((2, size + 1), (size + 1, size + 1))
    np.testing.assert_allclose(
        outputs @ ((filters @ g) * (inputs @ d)), [d[:-1] @ g, d[1:] @ g], rtol=1e-12
    )
    assert (np.abs(inputs).max(1) >= 2**-0.5).all()
    assert (np.abs(inputs).max(1) <= 2**0.5).all()


@pytest.mark.parametrize("size", [0, winograd.LARGEST + 1])
def test_there_are_points_for_small_kernels_alone(size):
    with pytest.raises(ValueError, match=f"kernels of 1 to 5 rows and columns .*, got {size}"):
        winograd.transforms(size)


def test_large_kernels_are_refused_before_any_product():
    with pytest.raises(ValueError, match="kernels of 1 to 5 rows"):
        convolution.conv2d_max_pool2(
            jnp.ones((2, 9, 9, 3)), jnp.ones((5, 6, 3, 4)), method="winograd"
        )


def pooled(method, padding="SAME"):
    return lambda x, kernel: convolution.conv2d_max_pool2(x, kernel, padding=padding, method=method)


# The code generator of XLA that its users have, where tests choose another (`xla.QUICKER`).
TODAYS = {"xla_cpu_use_fusion_emitters": True}


def value_and_derivatives(method, image, size, padding, seed, options=None):
    rng = np.random.default_rng(seed)
    primals = tuple(jnp.asarray(rng.normal(size=s)) for s in ((2, *image, 3), (*size, 3, 4)))
    tangents = tuple(jnp.asarray(rng.normal(size=part.shape)) for part in primals)

    def both(primals, tangents):
        value, pushed = jax.jvp(pooled(method, padding), primals, tangents)
        return value, pushed, *jax.vjp(pooled(method, padding), *primals)[1](pushed)

    return jax.jit(both, compiler_options=options)(primals, tangents)


@pytest.mark.skipif(not version("jaxlib").startswith("0.10."), reason="another may not know it")
@pytest.mark.parametrize("size", [(3, 4), (3, 3), (5, 5)])
def test_the_largest_is_found_among_numbers_that_are_computed_once(size):
    """Each reader of a window that makes it anew may round it in its own way, so that the largest
    is none of its entries and has no derivative."""
    case = (2, 2), size, "SAME", 0
    ours = value_and_derivatives("winograd", *case, TODAYS)
    for found, expected in zip(ours, value_and_derivatives("direct", *case), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


@drawn.at_most(15)
@given(
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from(convolution.PADDINGS),
    st.integers(0, 99),
)
def test_values_and_both_derivatives_are_those_of_the_convolution(image, size, padding, seed):
    assume(padding == "SAME" or all(a > b for a, b in zip(image, size, strict=True)))
    case = image, size, padding, seed
    ours, theirs = (value_and_derivatives(method, *case) for method in ("winograd", "direct"))
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_single_precision_loses_a_digit_at_most():
    """Relative to the largest, beside what the same products in double precision are."""
    rng = np.random.default_rng(0)
    primals = rng.normal(size=(8, 14, 14, 16)), rng.normal(size=(5, 5, 16, 16)) / 20
    cotangent = rng.normal(size=(8, 7, 7, 16))

    def numbers(method, dtype):
        value, back = jax.vjp(pooled(method), *(jnp.asarray(part, dtype) for part in primals))
        return value, *back(jnp.asarray(cotangent, dtype))

    exact = numbers("patches", np.float64)
    for method, most in (("patches", 1.5e-6), ("winograd", 6e-6)):
        for found, wanted in zip(numbers(method, np.float32), exact, strict=True):
            assert found.dtype == np.float32
            assert np.abs(found - wanted).max() < most * np.abs(wanted).max()


def test_a_linearisation_of_several_runs_is_transposed():
    """As a step of a sweep does."""
    rng = np.random.default_rng(1)
    x, kernels = jnp.asarray(rng.normal(size=(3, 8, 8, 2))), rng.normal(size=(4, 3, 3, 2, 5))

    def step(method):
        def of_run(kernel):
            outputs, push = jax.linearize(lambda k: pooled(method)(x, k), kernel)
            return outputs, push(kernel), jax.linear_transpose(push, kernel)(outputs)[0]

        return jax.vmap(of_run)(jnp.asarray(kernels))

    for ours, theirs in zip(step("winograd"), step("direct"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-11)
