"""Long sums over examples in half precision neither stall nor overflow."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.linearise.krylov import power_iteration
from iterlin.linearise.slices import sum_over_slices


def test_sums_over_slices_are_those_of_the_whole():
    x, params = jnp.ones((4096, 1), jnp.bfloat16), jnp.ones(1, jnp.bfloat16)
    sliced = il.in_slices(lambda p, x: x @ p, 4)
    _, _, vjp = il.jacobian_products(sliced, params, x)
    found = vjp(jnp.ones(4096, jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, [4096])
    total = sum_over_slices(lambda part: part.sum(0), 3, x)
    assert total.dtype == jnp.bfloat16
    np.testing.assert_array_equal(total, [4096])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_largest_eigenvalue_of_a_long_vector(dtype):
    value, _ = power_iteration(lambda v: v * 300, jnp.ones(10_000, dtype), 3)
    np.testing.assert_allclose(value, 300, rtol=0.01)


def test_truncated_gauss_newton_where_squares_of_the_gradient_overflow():
    x, target = jax.random.normal(jax.random.key(0), (500, 3)), jnp.array([3.0, -1.0, 2.0])
    y = x @ target
    # The gradient's norm is about 1,900, and the largest number of float16 65,504.
    x, y, start = (a.astype(jnp.float16) for a in (x, y, jnp.zeros(3)))
    settings = {"beta": 0.01, "max_steps": 3, "tolerance": 1e-2}
    found = il.truncated_gauss_newton(lambda p, x: x @ p, start, x, y, **settings)
    np.testing.assert_allclose(found.params, target, rtol=0.01)
