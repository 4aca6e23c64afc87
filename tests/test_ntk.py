"""The empirical kernel is J J^T by every route and within any memory bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin import empirical_ntk, kernel_alignment, kernel_drift, ntk_product
from iterlin.ntk import kernel_matrix, largest_eigenvalue
from problems import affine, affine_problem, dense, network

compiled_ntk = jax.jit(empirical_ntk, static_argnums=0, static_argnames=("trace", "memory_limit"))


def reference(f, params, x1, x2):
    """J(x1) J(x2)^T as (N1, N2, O, O), from jacrev over the whole batch."""

    def rows(x):
        tree = jax.jit(jax.jacrev(f))(params, x)
        leaves = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(tree)]
        return np.concatenate(leaves, axis=-1)

    return np.einsum("iop,jqp->ijoq", rows(x1), rows(x2))


def test_kernel_equals_jacrev_products():
    f, params, x, _ = network()
    other = 2 * x[:3] - 1
    np.testing.assert_allclose(
        compiled_ntk(f, params, x, other), reference(f, params, x, other), atol=1e-13
    )
    np.testing.assert_allclose(empirical_ntk(f, params, x), reference(f, params, x, x), atol=1e-13)


def test_kernel_of_float32_stays_float32():
    f, params, x, _ = network()
    params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, x))
    kernel = compiled_ntk(f, params, x)
    assert kernel.dtype == jnp.float32
    np.testing.assert_allclose(kernel, reference(f, params, x, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
@pytest.mark.parametrize("two_sided", [False, True])
def test_blocks_within_a_memory_limit_change_nothing(rows, two_sided):
    """1 and 2 rows split the 3 outputs of one example; 7 take two examples and 1 left over."""
    f, params, x, _ = network((2, 3, 3), examples=3)
    other = 1 - x[:2] if two_sided else None
    limit = 2 * 8 * rows * sum(leaf.size for leaf in jax.tree.leaves(params))
    expected = reference(f, params, x, x if other is None else other)
    full = compiled_ntk(f, params, x, other, memory_limit=limit)
    np.testing.assert_allclose(full, expected, atol=1e-13)
    traced = compiled_ntk(f, params, x, other, trace=True, memory_limit=limit)
    np.testing.assert_allclose(traced, np.einsum("ijoo->ij", expected), atol=1e-13)


def test_memory_limit_bounds_the_rows_alive(monkeypatch):
    from iterlin import ntk

    alive = []
    rows = ntk.jacobian_rows

    def spy(*arguments):
        result = rows(*arguments)
        alive.append(result.nbytes)
        return result

    monkeypatch.setattr(ntk, "jacobian_rows", spy)
    f, params, x, _ = network(examples=6)
    limit = 2 * 8 * 5 * sum(leaf.size for leaf in jax.tree.leaves(params))
    empirical_ntk(f, params, x, memory_limit=limit)
    assert 2 * max(alive) <= limit
    assert len(alive) > 1


def test_memory_limit_below_two_rows_is_refused():
    f, params, x, _ = network()
    size = 8 * sum(leaf.size for leaf in jax.tree.leaves(params))
    with pytest.raises(ValueError, match=f"memory_limit of {2 * size - 1} bytes.*{2 * size}"):
        empirical_ntk(f, params, x, memory_limit=2 * size - 1)


def test_coupled_examples_are_refused():
    with pytest.raises(ValueError, match="couples its examples"):
        empirical_ntk(lambda p, x: x @ p / jnp.sum(x), jnp.ones((3, 1)), jnp.ones((4, 3)))


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.integers(0, 99))
def test_kernel_product_and_matrix_agree(examples, outputs, parameters, seed):
    rank = min(examples * outputs, parameters)
    params, x, v = affine_problem((examples, outputs, parameters, rank), seed)
    jacobian = np.asarray(x).reshape(-1, parameters)
    matrix = kernel_matrix(empirical_ntk(affine, params, x))
    np.testing.assert_allclose(matrix, jacobian @ jacobian.T, atol=1e-13)
    product = ntk_product(affine, params, x)(v)
    np.testing.assert_allclose(np.ravel(product), jacobian @ (jacobian.T @ np.ravel(v)), atol=1e-13)


def test_kernel_is_positive_semidefinite_and_its_largest_eigenvalue_is_found():
    f, params, x, _ = network()
    jacobian = dense(f, params, x)
    eigenvalues = np.linalg.eigvalsh(jacobian @ jacobian.T)
    assert eigenvalues[0] > -1e-12
    found = largest_eigenvalue(f, params, x, jax.random.key(3), iterations=200)
    assert float(found) == pytest.approx(eigenvalues[-1], rel=1e-6)


def test_alignment_and_drift():
    rng = np.random.default_rng(0)
    kernel = jnp.asarray(rng.normal(size=(3, 3, 2, 2)))
    assert float(kernel_alignment(kernel, 3 * kernel)) == pytest.approx(1, rel=1e-12)
    assert float(kernel_alignment(kernel, -kernel)) == pytest.approx(-1, rel=1e-12)
    orthogonal = jnp.asarray([[1.0, 0.0], [0.0, 0.0]]), jnp.asarray([[0.0, 0.0], [0.0, 2.0]])
    assert float(kernel_alignment(*orthogonal)) == 0
    assert float(kernel_drift(kernel, kernel)) == 0
    assert float(kernel_drift(kernel, 1.5 * kernel)) == pytest.approx(0.5, rel=1e-12)
    assert float(kernel_drift(kernel, -kernel)) == pytest.approx(2, rel=1e-12)
