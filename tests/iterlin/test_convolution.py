"""Convolution and pooling against NumPy windows; slices against the whole."""

import functools
from importlib.metadata import version

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from iterlin.networks import convolution, winograd
from problems import bare

IMAGES, KERNEL = jnp.ones((2, 4, 4, 1)), jnp.ones((3, 3, 1, 2))
SHAPES = drawn.shapes(
    [  # images N H W, their channels, kernel, its channels, stride, padding
        (1, 2, 2, 1, 1, 1, 1, 1, "VALID"),
        (2, 6, 5, 3, 3, 2, 2, 1, "VALID"),
        (3, 5, 6, 2, 4, 3, 1, 2, "SAME"),
        (1, 2, 9, 1, 2, 5, 3, 3, "SAME"),
        (2, 6, 9, 2, 5, 5, 2, 3, "VALID"),
    ],
    *(3, 9, 9, 3, 5, 5, 3, 3, st.sampled_from(["SAME", "VALID"])),
)


@st.composite
def convolutions(draw):
    """Images, kernel, stride and padding that fit one another."""
    *sizes, stride, padding = draw(SHAPES)
    images, kernel = sizes[:4], (*sizes[4:6], sizes[3], sizes[6])
    assume(padding == "SAME" or (kernel[0] <= images[1] and kernel[1] <= images[2]))
    rng = np.random.default_rng(draw(st.integers(0, 100)))
    return rng.normal(size=images), rng.normal(size=kernel), stride, padding


def by_windows(x, kernel, stride, padding):
    """The sum over windows of zero-padded images, as convolution is defined."""
    if padding == "SAME":
        lacking = [
            max((-(-side // stride) - 1) * stride + size - side, 0)
            for side, size in zip(x.shape[1:3], kernel.shape[:2], strict=True)
        ]
        x = np.pad(x, ((0, 0), *[(n // 2, n - n // 2) for n in lacking], (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], (1, 2))
    return np.einsum("nhwckl,klco->nhwo", windows[:, ::stride, ::stride], kernel)


def arrays(*parts):
    return tuple(map(jnp.asarray, parts))


def value_and_derivatives(f, **options):
    """(primals, tangents) -> the value of f, what it makes of the tangents, its pullback."""

    def products(primals, tangents):
        value, pushed = jax.jvp(f, primals, tangents)
        return value, pushed, *jax.vjp(f, *primals)[1](pushed)

    return jax.jit(products, **options)


@functools.cache
def derivatives_of(function=convolution.conv2d_max_pool2, padding="SAME", **settings):
    return value_and_derivatives(functools.partial(function, padding=padding, **settings))


@given(convolutions())
def test_each_method_and_its_derivatives_are_those_of_the_sum_over_windows(case):
    x, kernel, *settings = case
    rng = np.random.default_rng(0)
    dx, dkernel = rng.normal(size=x.shape), rng.normal(size=kernel.shape)
    value = by_windows(x, kernel, *settings)
    # Linear in each argument: the pullback has the adjoint of each part.
    parts = by_windows(dx, kernel, *settings), by_windows(x, dkernel, *settings)
    stride, padding = settings
    size = convolution.output_size(x.shape[1:3], kernel.shape[:2], stride, padding)
    assert size == value.shape[1:3]
    for method in ("direct", "patches"):
        products = derivatives_of(convolution.conv2d, padding, stride=stride, method=method)
        found = products(arrays(x, kernel), arrays(dx, dkernel))
        np.testing.assert_allclose(found[0], value, atol=1e-12)
        np.testing.assert_allclose(found[1], sum(parts), atol=1e-12)
        for pulled, tangent, part in zip(found[2:], (dx, dkernel), parts, strict=True):
            assert np.vdot(pulled, tangent) == pytest.approx(np.vdot(sum(parts), part), abs=1e-9)


@given(
    drawn.shapes([(1, 2, 2, 1), (2, 5, 4, 3), (3, 4, 7, 2)], 3, (2, 7), (2, 7), 3),
    st.integers(0, 99),
)
def test_pooling_takes_the_largest_of_each_block(shape, seed):
    _, height, width, _ = shape
    x = np.random.default_rng(seed).normal(size=shape)
    cropped = x[:, : height // 2 * 2, : width // 2 * 2]
    corners = [cropped[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    np.testing.assert_array_equal(convolution.max_pool2(jnp.asarray(x)), np.max(corners, 0))
    np.testing.assert_array_equal(*slopes(jnp.asarray(x)))


@jax.jit
def slopes(x):
    """The gradient of the sum of squares of what `max_pool2`, and JAX, take from blocks."""

    def by_window(x):
        window = (1, 2, 2, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    pools = (convolution.max_pool2, by_window)
    return [jax.grad(lambda x, pool=pool: jnp.sum(pool(x) ** 2))(x) for pool in pools]


def test_ties_share_the_derivative():
    x = jnp.asarray([[1.0, 3.0], [3.0, 3.0]]).reshape(1, 2, 2, 1)
    slopes = jax.grad(lambda x: convolution.max_pool2(x).sum())(x)
    np.testing.assert_allclose(slopes[0, :, :, 0], [[0, 1 / 3], [1 / 3, 1 / 3]])


def close(found, expected, **tolerance):
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), found, expected)


def pooled(method):
    return functools.partial(convolution.conv2d_max_pool2, padding="SAME", method=method)


@drawn.at_most(8)
@given(convolutions())
def test_a_pooled_convolution_is_a_convolution_and_a_pool_with_their_derivatives(case):
    x, kernel, _, padding = case
    assume(min(by_windows(x, kernel, 1, padding).shape[1:3]) > 1)
    exact = ["direct", "patches", "blocks"]
    rng = np.random.default_rng(1)
    tangents = arrays(*(rng.normal(size=part.shape) for part in (x, kernel)))
    # Whole numbers tie often: all ways must share the derivative alike. Winograd's is not exact.
    short = ["winograd"] if min(kernel.shape[:2]) > 1 else []
    whole = arrays(np.round(x), np.round(kernel))
    for primals, methods in ((arrays(x, kernel), exact + short), (whole, exact)):
        ways = (derivatives_of(padding=padding, method=method) for method in methods)
        direct, *others = (way(primals, tangents) for way in ways)
        value = convolution.max_pool2(jnp.asarray(by_windows(*primals, 1, padding)))
        np.testing.assert_allclose(direct[0], value, atol=1e-12)
        for found in others:
            close(found, direct, atol=1e-11)


@pytest.mark.skipif(not version("jaxlib").startswith("0.10."), reason="another may not know it")
@pytest.mark.parametrize("size", [(3, 4), (5, 5)])
def test_winograd_finds_the_largest_among_numbers_that_are_computed_once(size):
    """A reader that makes a window anew may round it so that the largest is none of its entries.

    By the code generator of XLA that users have, where tests choose another (`xla.QUICKER`).
    """
    todays = {"compiler_options": {"xla_cpu_use_fusion_emitters": True}}
    rng = np.random.default_rng(0)
    shapes = (2, 2, 2, 3), (*size, 3, 4)
    given = [arrays(*(rng.normal(size=shape) for shape in shapes)) for _ in range(2)]
    found = value_and_derivatives(pooled("winograd"), **todays)(*given)
    close(found, derivatives_of(method="direct")(*given), atol=1e-10)


def test_winograd_loses_a_digit_of_single_precision_at_most():
    rng = np.random.default_rng(0)
    primals = rng.normal(size=(8, 14, 14, 16)), rng.normal(size=(5, 5, 16, 16)) / 20
    given = primals, rng.normal(size=(8, 7, 7, 16))

    def numbers(method, dtype):
        @jax.jit
        def value_and_pullback(primals, cotangent):
            value, back = jax.vjp(pooled(method), *primals)
            return value, *back(cotangent)

        return value_and_pullback(*jax.tree.map(lambda a: jnp.asarray(a, dtype), given))

    exact = numbers("patches", np.float64)
    for method, most in (("patches", 1.5e-6), ("winograd", 6e-6)):
        for found, wanted in zip(numbers(method, np.float32), exact, strict=True):
            assert found.dtype == np.float32
            assert np.abs(found - wanted).max() < most * np.abs(wanted).max()


def test_winograd_s_linearisation_of_several_runs_is_transposed():
    rng = np.random.default_rng(1)
    x, kernels = arrays(rng.normal(size=(3, 8, 8, 2)), rng.normal(size=(4, 3, 3, 2, 5)))

    def step(method):
        def of_run(kernel):
            outputs, push = jax.linearize(lambda k: pooled(method)(x, k), kernel)
            return outputs, push(kernel), jax.linear_transpose(push, kernel)(outputs)[0]

        return jax.jit(jax.vmap(of_run))(kernels)

    close(step("winograd"), step("direct"), atol=1e-11)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda conv: conv(IMAGES, KERNEL, padding="FULL"), "padding 'FULL'"),
        (lambda conv: conv(jnp.ones((2, 4, 4, 3)), KERNEL), "filters are for 1 channels"),
        (lambda conv: conv(IMAGES[:, :, :2], KERNEL), "does not fit into a 4 x 2 image"),
        (lambda _: bare(convolution.conv2d)(IMAGES, KERNEL, stride=0), "stride must"),
        (lambda _: convolution.conv2d_max_pool2(IMAGES[:, :, :3], KERNEL), "2 x 1 is too small"),
        (lambda _: winograd.transforms(6), "filters must have 2 to 5 rows and columns, got 6"),
        (lambda _: pooled("winograd")(IMAGES, KERNEL[:, :1]), "2 to 5 rows and columns, got 1"),
    ],
)
def test_bad_convolutions_are_refused(make, message):
    for function in (convolution.conv2d, convolution.conv2d_max_pool2):
        with pytest.raises(ValueError, match=message):
            make(bare(function))


@pytest.mark.parametrize("function", [convolution.conv2d, convolution.conv2d_max_pool2])
@pytest.mark.parametrize(("backend", "direct"), [("cpu", False), ("gpu", True)])
def test_a_gpu_has_its_own_convolution_unless_told_another(monkeypatch, function, backend, direct):
    """A record's parameter file may say how its numbers were made."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    x, kernel = jnp.ones((4, 6, 6, 2)), jnp.ones((3, 3, 2, 8))
    for method, own in (("auto", direct), ("direct", True), ("patches", False)):
        program = jax.make_jaxpr(lambda *a, m=method: function(*a, method=m))(x, kernel)
        assert ("conv_general_dilated" in str(program)) == own


def test_half_precision_is_as_accurate_by_itself_as_when_told():
    shapes = (2, 8, 8, 16), (5, 5, 16, 16)
    given = [jax.random.normal(jax.random.key(n), shape, "f2") for n, shape in enumerate(shapes)]
    exact = pooled("direct")(*(a.astype(float) for a in given))
    auto, direct = (jnp.abs(pooled(method)(*given) - exact).max() for method in ("auto", "direct"))
    assert auto < 3 * direct
