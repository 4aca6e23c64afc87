"""Convolution and pooling against NumPy windows; slices against the whole."""

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from iterlin.networks import convolution
from problems import bare

small = st.integers(1, 3)


SHAPES = drawn.shapes(
    [  # images N H W, their channels, kernel, its channels, stride, padding
        (1, 1, 1, 1, 1, 1, 1, 1, "VALID"),
        (2, 6, 5, 3, 3, 2, 2, 1, "VALID"),
        (3, 5, 6, 2, 4, 3, 1, 2, "SAME"),
        (1, 2, 3, 1, 3, 4, 3, 3, "SAME"),
        (2, 6, 6, 2, 2, 4, 2, 3, "VALID"),
    ],
    *(small, st.integers(1, 6), st.integers(1, 6), small),
    *(st.integers(1, 4), st.integers(1, 4), small),
    *(small, st.sampled_from(["SAME", "VALID"])),
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


@given(convolutions())
def test_both_methods_are_the_sum_over_windows(case):
    x, kernel, stride, padding = case
    expected = by_windows(x, kernel, stride, padding)
    for method in ("direct", "patches", "auto"):
        found = convolution.conv2d(
            jnp.asarray(x), jnp.asarray(kernel), stride=stride, padding=padding, method=method
        )
        np.testing.assert_allclose(found, expected, atol=1e-12)
    size = convolution.output_size(x.shape[1:3], kernel.shape[:2], stride, padding)
    assert size == expected.shape[1:3]
    assert convolution.output_size((5, 4), (3, 2)) == (3, 3)


@drawn.at_most(8)
@given(convolutions())
def test_derivatives_are_those_of_the_sum_over_windows(case):
    x, kernel, stride, padding = case
    rng = np.random.default_rng(0)
    dx, dkernel = rng.normal(size=x.shape), rng.normal(size=kernel.shape)
    value = by_windows(x, kernel, stride, padding)
    tangent = by_windows(dx, kernel, stride, padding) + by_windows(x, dkernel, stride, padding)
    cotangent = rng.normal(size=value.shape)
    found = {}
    for method in ("direct", "patches"):

        def conv(x, kernel, method=method):
            return convolution.conv2d(x, kernel, stride=stride, padding=padding, method=method)

        primals = (jnp.asarray(x), jnp.asarray(kernel))
        tangents = (jnp.asarray(dx), jnp.asarray(dkernel))

        @jax.jit
        def products(primals, tangents, cotangent, conv=conv):
            return jax.jvp(conv, primals, tangents)[1], jax.vjp(conv, *primals)[1](cotangent)

        pushed, found[method] = products(primals, tangents, jnp.asarray(cotangent))
        np.testing.assert_allclose(pushed, tangent, atol=1e-12)
        by_tangent = np.vdot(found[method][0], dx) + np.vdot(found[method][1], dkernel)
        assert by_tangent == pytest.approx(np.vdot(cotangent, tangent), rel=1e-10, abs=1e-10)
    for direct, patches in zip(found["direct"], found["patches"], strict=True):
        np.testing.assert_allclose(patches, direct, atol=1e-12)


def test_the_wider_of_two_types_is_kept():
    x, kernel = jnp.ones((1, 3, 3, 1), jnp.float32), jnp.ones((2, 2, 1, 1), jnp.float32)
    for method in ("direct", "patches"):
        assert convolution.conv2d(x, kernel, method=method).dtype == jnp.float32
        wide = convolution.conv2d(x, kernel.astype(jnp.float64), method=method)
        assert wide.dtype == jnp.float64


@pytest.mark.parametrize("method", ["direct", "patches"])
def test_kernels_of_several_runs_at_once(method):
    rng = np.random.default_rng(1)
    x, kernels = rng.normal(size=(2, 5, 4, 2)), rng.normal(size=(3, 3, 3, 2, 4))
    conv = jax.vmap(lambda k: convolution.conv2d(jnp.asarray(x), k, padding="SAME", method=method))
    expected = np.stack([by_windows(x, kernel, 1, "SAME") for kernel in kernels])
    np.testing.assert_allclose(conv(jnp.asarray(kernels)), expected, atol=1e-12)


@given(
    drawn.shapes(
        [(1, 2, 2, 1), (2, 5, 4, 3), (3, 4, 7, 2)],
        small,
        st.integers(2, 7),
        st.integers(2, 7),
        small,
    ),
    st.integers(0, 99),
)
def test_pooling_takes_the_largest_of_each_block(shape, seed):
    _, height, width, _ = shape
    x = np.random.default_rng(seed).normal(size=shape)
    cropped = x[:, : height // 2 * 2, : width // 2 * 2]
    corners = [cropped[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    np.testing.assert_array_equal(convolution.max_pool2(jnp.asarray(x)), np.max(corners, 0))

    def by_window(x):
        window = (1, 2, 2, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    @jax.jit
    def slopes(x):
        pools = (convolution.max_pool2, by_window)
        return [jax.grad(lambda x, pool=pool: jnp.sum(pool(x) ** 2))(x) for pool in pools]

    np.testing.assert_array_equal(*slopes(jnp.asarray(x)))


def test_ties_share_the_derivative():
    x = jnp.asarray([[1.0, 3.0], [3.0, 3.0]]).reshape(1, 2, 2, 1)
    slopes = jax.grad(lambda x: convolution.max_pool2(x).sum())(x)
    np.testing.assert_allclose(slopes[0, :, :, 0], [[0, 1 / 3], [1 / 3, 1 / 3]])


@given(convolutions())
def test_a_pooled_convolution_is_a_convolution_and_a_pool(case):
    x, kernel, _, padding = case
    expected = by_windows(x, kernel, 1, padding)
    assume(min(expected.shape[1:3]) > 1)
    expected = convolution.max_pool2(jnp.asarray(expected))
    for method in convolution.POOLED_METHODS:
        found = convolution.conv2d_max_pool2(
            jnp.asarray(x), jnp.asarray(kernel), padding=padding, method=method
        )
        np.testing.assert_allclose(found, expected, atol=1e-12)


@drawn.at_most(8)
@given(convolutions())
def test_derivatives_of_a_pooled_convolution_are_those_of_its_parts(case):
    x, kernel, _, padding = case
    size = convolution.output_size(x.shape[1:3], kernel.shape[:2], 1, padding)
    assume(min(size) > 1)
    rng = np.random.default_rng(1)
    # Whole numbers tie often: both ways must share the derivative alike.
    for at in ((x, kernel), (np.round(x), np.round(kernel))):
        primals = tuple(map(jnp.asarray, at))
        tangents = tuple(jnp.asarray(rng.normal(size=part.shape)) for part in primals)
        found = {}
        for method in ("direct", "patches", "blocks"):

            @jax.jit
            def products(primals, tangents, method=method):
                def pooled(x, kernel):
                    return convolution.conv2d_max_pool2(x, kernel, padding=padding, method=method)

                pushed = jax.jvp(pooled, primals, tangents)[1]
                return pushed, *jax.vjp(pooled, *primals)[1](pushed)

            found[method] = products(primals, tangents)
        for method in ("patches", "blocks"):
            for ours, theirs in zip(found[method], found["direct"], strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-11)


def test_a_pooled_convolution_goes_the_fastest_way_on_a_cpu():
    """Where no number of an unpooled convolution is made, it goes by blocks or by Winograd."""

    def way(images, inputs, outputs, size=3):
        x, kernel = jnp.ones((images, 7, 7, inputs)), jnp.ones((size, size, inputs, outputs))
        program = str(jax.make_jaxpr(convolution.conv2d_max_pool2)(x, kernel))
        if f"[{images},{8 - size},{8 - size},{outputs}]" in program:
            return "whole"
        return "winograd" if f"[{(size + 1) ** 2},{inputs},{outputs}]" in program else "blocks"

    narrow, wide = convolution.NARROW, convolution.WIDE
    if jax.default_backend() != "cpu":
        assert way(2, wide, wide) == way(2, wide, narrow) == "whole"
        return
    assert way(2, 3, narrow) == way(2, wide, narrow) == "blocks"
    assert way(2, wide, wide) == way(2, wide, wide, 5) == "winograd"
    assert {way(2, wide - 1, wide), way(2, 3, narrow + 1), way(2, wide, wide, 6)} == {"whole"}
    assert {way(2, wide, wide, 1), way(1, wide, wide), way(1, 3, narrow)} == {"whole"}


@pytest.mark.parametrize(
    ("images", "kernel", "settings", "message"),
    [
        ((4, 4, 1), (3, 3, 1, 2), {"padding": "FULL"}, "unknown padding 'FULL'; allowed: SAME, VA"),
        ((4, 4, 1), (3, 3, 1, 2), {"method": "fft"}, "unknown method 'fft'; allowed: auto, "),
        ((4, 4, 3), (3, 3, 1, 2), {}, "kernel is for 1 channels, images have 3"),
        ((4, 2, 1), (3, 3, 1, 2), {}, "a 3 x 3 kernel does not fit into a 4 x 2 image"),
        ((4, 3, 1), (3, 3, 1, 2), {}, "an image of 2 x 1 is too small for 2 x 2 pooling"),
    ],
)
def test_bad_pooled_convolutions_are_refused(images, kernel, settings, message):
    with pytest.raises(ValueError, match=message):
        bare(convolution.conv2d_max_pool2)(jnp.ones((2, *images)), jnp.ones(kernel), **settings)


@pytest.mark.parametrize(
    ("images", "kernel", "settings", "message"),
    [
        ((4, 4, 1), (3, 3, 1, 2), {"padding": "FULL"}, "unknown padding 'FULL'; allowed: SAME, VA"),
        ((4, 4, 1), (3, 3, 1, 2), {"method": "fft"}, "unknown method 'fft'; allowed: auto, direct"),
        ((4, 4, 1), (3, 3, 1, 2), {"stride": 0}, "stride must be a positive integer, got 0"),
        ((4, 4, 3), (3, 3, 1, 2), {}, "kernel is for 1 channels, images have 3"),
        ((4, 2, 1), (3, 3, 1, 2), {}, "a 3 x 3 kernel does not fit into a 4 x 2 image"),
    ],
)
def test_bad_convolutions_are_refused(images, kernel, settings, message):
    with pytest.raises(ValueError, match=message):
        bare(convolution.conv2d)(jnp.ones((2, *images)), jnp.ones(kernel), **settings)


def test_small_images_are_not_pooled():
    with pytest.raises(ValueError, match="an image of 1 x 4 is too small for 2 x 2 pooling"):
        convolution.max_pool2(jnp.ones((1, 1, 4, 1)))


@pytest.mark.parametrize("method", ["direct", "patches"])
def test_a_pooled_convolution_goes_the_way_that_it_is_told(method):
    """To the operation: a record's parameter file may say how its numbers were made."""
    x, kernel = jnp.ones((4, 6, 6, 2)), jnp.ones((3, 3, 2, 8))

    def told(x, kernel):
        return convolution.conv2d_max_pool2(x, kernel, padding="SAME", method=method)

    def by_parts(x, kernel):
        convolved = convolution.conv2d(x, kernel, padding="SAME", method=method)
        return convolution.max_pool2(convolved)

    programs = [str(jax.make_jaxpr(f)(x, kernel).jaxpr) for f in (told, by_parts)]
    assert programs[0] == programs[1]
    assert ("conv_general_dilated" in programs[0]) == (method == "direct")


@pytest.mark.parametrize(("backend", "direct"), [("cpu", False), ("gpu", True)])
def test_patches_are_for_a_cpu_and_a_gpu_has_its_own_convolution(monkeypatch, backend, direct):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    for function in (convolution.conv2d, convolution.conv2d_max_pool2):
        program = jax.make_jaxpr(lambda *a, f=function: f(*a))(
            jnp.ones((4, 6, 6, 2)), jnp.ones((3, 3, 2, 8))
        )
        assert ("conv_general_dilated" in str(program)) == direct
