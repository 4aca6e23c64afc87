import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from iterlin import cached_ntk
from iterlin.exact import linear_model

FORMS = ("kernel", "products", "slices")


def model_of(form, f, params, x):
    if form == "kernel":
        return linear_model.from_kernel(f, params, x, cached_ntk(f, params, x).product)
    return linear_model.from_products(f, params, x, slice_size=3 if form == "slices" else None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("examples", [1, 7])
def test_push_image_and_inner_are_products_with_the_dense_jacobian(form, examples):
    f, params, x, _ = problems.network((3, 4, 2), seed=examples, examples=examples)
    jacobian = problems.dense(f, params, x)
    model = model_of(form, f, params, x)
    g, h = jax.random.normal(jax.random.key(1), (2, examples, 2))
    pulled = [jacobian.T @ problems.flat(u) for u in (g, h)]
    np.testing.assert_allclose(model.outputs, f(params, x), rtol=1e-12)
    a, b = model.push(g), model.push(h)
    np.testing.assert_allclose(problems.flat(a[1]), jacobian @ pulled[0], atol=1e-11)
    np.testing.assert_allclose(model.image(a[0]), a[1], atol=1e-11)
    moved = problems.flat(model.displacement(a[0]))
    np.testing.assert_allclose(moved, pulled[0], atol=1e-11)
    np.testing.assert_allclose(model.inner(*a, *b), pulled[0] @ pulled[1], atol=1e-10)
    assert not np.any(problems.flat(model.displacement(model.origin)))


def test_slices_hold_no_more_than_their_own_activations():
    f, params, x, _ = problems.network((3, 64, 2), examples=256)

    def memory(slice_size):
        push = lambda g: linear_model.from_products(f, params, x, slice_size=slice_size).push(g)  # noqa: E731
        compiled = jax.jit(push).lower(jnp.ones((256, 2))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(8) < memory(None) / 4
