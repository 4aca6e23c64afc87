"""Products with J J^T from what is kept of it, against dense Jacobians, for every kind of layer."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from iterlin.kernels import cached, ntk
from iterlin.kernels.factors import PRODUCT

N = 7


def lookups():
    params = {"table": problems.normal(50, 3), "head": jnp.ones((3, 2))}
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 6, (N, 4)))  # many of the same rows
    return lambda p, ids: jnp.tanh(p["table"][ids]).mean(1) @ p["head"], params, ids


def places():
    """A layer at every position of a sequence, with fewer numbers by position than by row."""
    params = {"in": problems.normal(30, 40), "out": problems.normal(40, 6)}
    x = problems.normal(N, 2, 30)
    return lambda p, x: (jnp.tanh(x @ p["in"]) @ p["out"]).mean(1), params, x


def neither():
    """Parameters that are in no layer, one output that is no vector."""
    params = {"scale": jnp.array([0.5, 2.0]), "shift": jnp.array(0.3)}
    return lambda p, x: jnp.sin(x @ jnp.diag(p["scale"]) + p["shift"]).sum(1), params, jnp.eye(N, 2)


def empty():
    """A layer without features, with its bias, and a slice without entries."""
    shapes = {"w": (3, 2), "in": (3, 0), "bias": (0,), "out": (0, 2), "rest": (4,)}

    def f(p, x):
        hidden = jnp.tanh(x @ p["in"] + p["bias"][None])
        return x @ p["w"] + hidden @ p["out"] + p["rest"][:0].sum()

    return f, {name: jnp.ones(shape) for name, shape in shapes.items()}, jnp.eye(N, 3)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (lambda: problems.network((3, 4, 2), examples=N)[:3], "dense"),
        (lambda: problems.convolutional(N, 6, 2, 2), "rows"),
        (lookups, "lookups"),
        (places, "positions"),
        (neither, None),
        (empty, "dense"),
    ],
)
def test_factors_give_the_products_of_the_dense_jacobian(problem, kind):
    f, params, x = problem()
    plan = ntk.plan_cache(f, params, x, 2**30)
    outputs, settings = jnp.arange(plan.network.num_outputs), {"form": PRODUCT, "count": N}
    factors = jax.jit(lambda x: plan.network.factors(x, outputs, **settings))(x)
    assert kind is None or len(getattr(factors, kind)) > 0
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(factors)) == plan.factors
    jacobian, shape = problems.dense(f, params, x), f(params, x).shape
    v = problems.normal(*shape)
    expected = (jacobian @ (jacobian.T @ v.reshape(-1))).reshape(shape)
    found = jax.jit(lambda v: cached.CachedKernel(factors=factors).product(v))(v)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_matrix_and_factors_agree():
    trainable = lambda path: path.startswith("0/")  # noqa: E731
    f, params, x, v = problems.network((3, 40, 2), examples=60)
    few, many = (il.cached_ntk(f, params, x[:n], trainable=trainable) for n in (2, 60))
    assert few.factors is None
    expected = few.matrix @ v[:2].reshape(-1)
    np.testing.assert_allclose(few.product(v[:2]).reshape(-1), expected, rtol=1e-12)
    assert many.matrix is None
    matrix = il.ntk_matrix(f, params, x, trainable=trainable)
    np.testing.assert_allclose(many.product(v).reshape(-1), matrix @ v.reshape(-1), rtol=1e-10)


def test_a_kernel_that_does_not_fit_is_refused():
    f, params, x, _ = problems.network((1, 2, 1), examples=100)
    plan = ntk.plan_cache(f, params, x, 8 * 100**2 - 1)
    assert plan.form == "factors"  # the matrix does not fit
    narrow = lambda p, x: f(p, x).astype("float16")  # noqa: E731  (the kernel is of the wider type)
    for network in (f, narrow):
        with pytest.raises(ValueError, match=r"100 examples takes 80000 bytes .* memory_limit=999"):
            il.cached_ntk(network, params, x, memory_limit=999)
