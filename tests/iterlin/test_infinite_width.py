"""The analytic kernel against quadrature of its expectations and against wide networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import empirical_ntk, mlp, relu_mlp_ntk
from problems import bare, normal
from refusals import refused


def expectations(covariance):
    """E[relu(u) relu(v)] and P(u > 0, v > 0) of a Gaussian pair (u, v) = L (r cos a, r sin a).

    The radius integrates to 2 and 1, the angle is left to quadrature.
    """
    (variance, cross), (_, other) = covariance
    a = np.sqrt(variance)
    b, c = cross / a, np.sqrt(max(other - cross**2 / variance, 0))
    angles = (np.arange(400_000) + 0.5) * 2 * np.pi / 400_000 - np.pi
    u, v = a * np.cos(angles), b * np.cos(angles) + c * np.sin(angles)
    both = (u > 0) & (v > 0)
    return np.mean(np.where(both, 2 * u * v, 0)), np.mean(both)


def by_quadrature(x1, x2, depth, bias):
    covariance = np.array([[x1 @ x1, x1 @ x2], [x1 @ x2, x2 @ x2]]) / len(x1)
    kernel = covariance[0, 1] + bias
    for _ in range(depth):
        cross, derivative = expectations(covariance)
        covariance = np.array([[covariance[0, 0] / 2, cross], [cross, covariance[1, 1] / 2]])
        kernel = cross + bias + derivative * kernel
    return kernel


@pytest.mark.parametrize(("depth", "bias"), [(0, True), (1, False), (2, True), (4, False)])
def test_recursion_equals_quadrature(depth, bias):
    x1 = np.array([[0.3, -1.2, 0.7], [1.0, 0.5, -0.4]])
    x2 = np.array([[0.8, 0.1, 2.0], [-0.3, 1.2, -0.7], [0.6, -2.4, 1.4]])
    found = relu_mlp_ntk(jnp.asarray(x1), jnp.asarray(x2), depth=depth, bias=bias)
    expected = [[by_quadrature(a, b, depth, bias) for b in x2] for a in x1]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_deep_networks_and_small_inputs_do_not_underflow():
    x = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    deep, single = (relu_mlp_ntk(x.astype(t), depth=100) for t in (jnp.float64, jnp.float32))
    np.testing.assert_allclose(single, deep, rtol=1e-2)
    small, large = (relu_mlp_ntk(jnp.float32(s) * x, depth=1, bias=False) for s in (1e-10, 1))
    np.testing.assert_allclose(small * 1e20, large, rtol=1e-5)


def test_the_kernel_is_symmetric_and_has_an_exact_diagonal_and_a_gradient():
    x = normal(4, 3).at[1].set(0)
    # On the diagonal S = s/2 and S' = 1/2: Theta_d = (d + 1) s / 2^d + bias (2 - 2^-d).
    expected = 4 * np.sum(np.asarray(x) ** 2, 1) / 3 / 8 + 2 - 1 / 8
    expected[1] = 1  # of an input at zero
    for dtype, tolerance in ((jnp.float64, 1e-12), (jnp.float32, 1e-6)):
        kernel = np.asarray(relu_mlp_ntk(x.astype(dtype), depth=3))
        np.testing.assert_allclose(np.diag(kernel), expected, rtol=tolerance)
        np.testing.assert_allclose(kernel, kernel.T, rtol=tolerance)
        assert np.linalg.eigvalsh(kernel)[0] > 0

    def of_pair(x):
        return relu_mlp_ntk(x, x, depth=3)[0, 0]

    # That of 4 s / 8 for s = |x|^2 / 3.
    expected = jnp.zeros_like(x).at[0].set(x[0] / 3)
    np.testing.assert_allclose(jax.jit(jax.grad(of_pair))(x), expected, rtol=1e-6)
    slope = jax.jit(jax.grad(lambda x, sign: relu_mlp_ntk(x, sign * x, depth=3).sum()))
    for sign in (1, -1):
        assert jnp.isfinite(slope(x, sign)).all()


def test_mean_over_wide_networks_agrees_within_its_error():
    x = jnp.asarray([[1.0, 0.3], [-0.4, 0.9], [0.0, 0.0]])
    analytic = np.asarray(relu_mlp_ntk(x, depth=2))
    assert analytic[2, 2] == 1  # of an input at zero
    model = mlp([2, 256, 256, 1], parameterization="ntk")

    def kernel(key):
        return empirical_ntk(model.apply, model.init(key), x, trace=True)

    kernels = np.asarray(jax.lax.map(jax.jit(kernel), jax.random.split(jax.random.key(0), 60)))
    error = kernels.std(0, ddof=1) / np.sqrt(len(kernels))
    # The mean at finite width is off by O(1/width): allow for it beside the sampling error.
    assert np.all(np.abs(kernels.mean(0) - analytic) <= 4 * error + 2 / 256 * np.abs(analytic))
    assert np.linalg.norm(kernels.mean(0) - analytic) < 0.03 * np.linalg.norm(analytic)


def test_images_of_small_integers_do_not_overflow():
    x = np.random.default_rng(0).integers(0, 256, (3, 8)).astype(np.uint8)
    expected = relu_mlp_ntk(jnp.asarray(x, float), depth=1)
    np.testing.assert_allclose(bare(relu_mlp_ntk)(x, depth=1), expected)


test_bad_input_is_refused = refused(
    lambda arguments: bare(relu_mlp_ntk)(**{"x1": jnp.ones((2, 3)), "depth": 1} | arguments),
    ({"depth": -1}, "depth must .* got -1"),
    ({"x2": jnp.ones((2, 4))}, "differ in width: 3 and 4"),
    ({"x1": jnp.ones(3)}, r"x1 must .* got shape \(3,\)"),
    ({"x2": jnp.ones((0, 3))}, r"x2 must .* empty data"),
)
