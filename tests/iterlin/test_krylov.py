"""Conjugate gradients and power iteration against dense linear algebra."""

import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise.krylov import conjugate_gradients, power_iteration
from problems import bare


def symmetric(eigenvalues, seed=0):
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(len(eigenvalues), len(eigenvalues))))[0]
    return jnp.asarray(q * np.asarray(eigenvalues) @ q.T)


def solve(matrix, b, *, squares=False, tolerance=1e-13, max_steps=100):
    """A s = b for a symmetric A; or the least squares of any A."""
    return conjugate_gradients(
        b,
        image=lambda d: matrix @ d,
        gradient=lambda r: matrix.T @ r if squares else r,
        curvature=lambda d, moved: moved @ moved if squares else d @ moved,
        inner=lambda a, b: a @ b,
        tolerance=tolerance,
        max_steps=max_steps,
    )


def test_stops_at_the_tolerance_and_no_sooner():
    matrix, b = symmetric(np.geomspace(1, 1e3, 30)), jnp.ones(30)
    found, steps = solve(matrix, b, tolerance=1e-3)
    left = np.linalg.norm(b - matrix @ found) / np.linalg.norm(b)
    assert left <= 1e-3
    before, _ = solve(matrix, b, tolerance=1e-3, max_steps=int(steps) - 1)
    assert np.linalg.norm(b - matrix @ before) / np.linalg.norm(b) > 1e-3


def test_steps_are_as_many_as_differing_eigenvalues_or_as_allowed():
    found, steps = solve(symmetric([1.0, 2.0]), jnp.zeros(2))
    assert int(steps) == 0
    assert not found.any()
    matrix = symmetric([2.0, 2.0, 7.0, 7.0, 7.0])
    assert int(solve(matrix, jnp.arange(1.0, 6.0), tolerance=1e-10)[1]) == 2
    assert int(solve(symmetric(np.geomspace(1, 1e6, 20)), jnp.ones(20), max_steps=3)[1]) == 3


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_power_iteration_finds_the_largest_eigenvalue_from_below(shape):
    size = int(np.prod(shape))
    matrix = symmetric(np.linspace(0.0, 4.0, size))

    def product(v):
        return (matrix @ v.reshape(-1)).reshape(shape)

    value, direction = power_iteration(product, jnp.ones(shape), 300)
    np.testing.assert_allclose(value, 4.0, rtol=1e-10)
    assert float(value) <= 4.0 + 1e-12
    np.testing.assert_allclose(product(direction), 4.0 * direction, atol=1e-6)
    assert float(power_iteration(product, jnp.ones(shape), 2)[0]) < 4.0
    assert float(power_iteration(jnp.zeros_like, jnp.ones(shape), 5)[0]) == 0


def test_power_iteration_refuses_no_iteration():
    with pytest.raises(ValueError, match="iterations must be a positive integer, got"):
        bare(power_iteration)(jnp.zeros_like, jnp.ones(3), 0)
