"""f_lin and products with the Jacobian against dense Jacobians; couplings of any size are seen."""

from functools import partial

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iterlin import jacobian, jacobian_products, linearize
from iterlin.linearise.linearization import require_independent
from problems import affine, affine_problem, dense, flat, network, normal
from refusals import fails


def test_linearize_is_exact_on_a_model_affine_in_its_parameters():
    params, x, _ = affine_problem("wide")
    far = params + 100 * jnp.cos(jnp.arange(params.size))
    np.testing.assert_allclose(linearize(affine, params)(far, x), affine(far, x), rtol=1e-12)


def test_linearize_takes_other_inputs_and_moves_with_the_parameters():
    f, params, x, _ = network()
    other = x[:2] + 1
    moved = jax.tree.map(lambda leaf: leaf + 0.01, params)
    change = dense(f, params, other) @ (flat(moved) - flat(params))
    expected = np.ravel(f(params, other)) + change
    np.testing.assert_allclose(np.ravel(linearize(f, params)(moved, other)), expected, atol=1e-13)


def normalise(params, x):
    """Batch normalisation in training mode: every output depends on the whole batch."""
    h = x @ params
    return (h - jnp.mean(h, 0, keepdims=True)) / jnp.std(h, axis=0, keepdims=True)


WEIGHT, POINTS = normal(2, 2), normal(4, 2)
WIDE, TALL, COUPLED = network()[:3], network((1, 1))[:3], (normalise, WEIGHT, POINTS)


@pytest.mark.parametrize(
    ("problem", "independent"),
    [(WIDE, True), (WIDE, False), (TALL, True), (TALL, False), (COUPLED, False)],
    ids=["wide, by rows", "wide", "tall, by rows", "tall", "coupled"],
)
def test_jacobian_equals_forward_mode(problem, independent):
    found = jacobian(*problem, independent=independent)
    np.testing.assert_allclose(found, dense(*problem), atol=1e-13)


@given(drawn.shapes([(1, 1, 1), (3, 2, 9), (3, 2, 6), (5, 3, 4)], 5, 3, 9), st.integers(0, 99))
def test_jacobian_products_are_those_of_the_dense_jacobian(shape, seed):
    examples, outputs, parameters = shape
    rank = min(examples * outputs, parameters)
    params, x, u = affine_problem((examples, outputs, parameters, rank), seed)
    products = jacobian_products(affine, params, x)
    matrix = np.asarray(x).reshape(-1, parameters)
    v = jnp.sin(params)
    np.testing.assert_allclose(products.outputs, affine(params, x), atol=1e-13)
    np.testing.assert_allclose(np.ravel(products.jvp(v)), matrix @ v, atol=1e-13)
    np.testing.assert_allclose(products.vjp(u), matrix.T @ np.ravel(u), atol=1e-13)


@pytest.mark.parametrize(("outputs", "sign"), [((1e3, 0.0), 1), ((-1e3, -1e3), -1)])
def test_a_coupling_of_any_sign_is_seen_and_rounding_is_none(outputs, sign):
    """Rounding is in proportion to the largest output, and may differ with the batch."""

    def f(by, params, x):
        return x @ params + sign * len(x) * jnp.asarray([[by, 0.0]])

    params, x = jnp.asarray([outputs]), jnp.arange(1.0, 4)[:, None]
    require_independent(partial(f, 1e-11), params, x)
    fails("couples its examples", require_independent, partial(f, 1e-8), params, x)
    require_independent(lambda p, x: f(0.0, p, x) * jnp.asarray([[jnp.nan, 1.0]]), params, x)


def test_theta_may_be_of_another_type_and_not_of_another_shape():
    f_lin = linearize(lambda p, x: p["w"] * x, {"w": jnp.ones(2, jnp.float32)})
    found = f_lin({"w": np.array([3.0, 5.0])}, jnp.ones(2, jnp.float32))
    np.testing.assert_array_equal(found, [3, 5])
    np.testing.assert_array_equal(f_lin({"w": np.array([3, 5])}, jnp.ones(2)), [3, 5])
    x = jnp.ones(2)
    fails(r"theta\['w'\] must have shape \(2,\), got \(1,\)", f_lin, {"w": x[:1]}, x)
    fails(r"theta must be a pytree of structure .*'w'.*, got .*'v'", f_lin, {"v": x}, x)


def test_a_parameter_may_be_a_python_number():
    f_lin = linearize(lambda p, x: p**2 * x, 3.0)
    np.testing.assert_array_equal(f_lin(4.0, jnp.array([1.0, 10.0])), [15, 150])
