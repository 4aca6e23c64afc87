"""Products with J J^T from what is kept of it, against dense Jacobians, for every kind of layer."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from iterlin import ntk
from iterlin.kernels import kept
from iterlin.networks import convnets

N = 7


def convolutions(channels):
    net = convnets.lenet((8, 8, 3), channels=channels, kernel_size=3, padding="SAME", hidden=(5,))
    return (
        net.apply,
        net.init(jax.random.key(0)),
        jax.random.normal(jax.random.key(1), (N, 8, 8, 3)),
    )


def dense():
    f, params, x, _ = problems.network((3, 4, 2), examples=N)
    return f, params, x


def lookups():
    params = {"table": jax.random.normal(jax.random.key(0), (50, 3)), "head": jnp.ones((3, 2))}
    ids = jax.random.randint(jax.random.key(1), (N, 4), 0, 6)  # many of the same rows
    return lambda p, ids: jnp.tanh(p["table"][ids]).mean(1) @ p["head"], params, ids


def places():
    """A layer at every position of a sequence, with fewer numbers by position than by row."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (30, 40)),
        "out": jax.random.normal(keys[1], (40, 6)),
    }
    x = jax.random.normal(keys[2], (N, 2, 30))
    return lambda p, x: (jnp.tanh(x @ p["in"]) @ p["out"]).mean(1), params, x


def neither():
    """Parameters that are in no layer, one output that is no vector."""
    params = {"scale": jnp.array([0.5, 2.0]), "shift": jnp.array(0.3)}
    return lambda p, x: jnp.sin(x @ jnp.diag(p["scale"]) + p["shift"]).sum(1), params, jnp.eye(N, 2)


NETWORKS = {
    "dense": dense,
    "convolutions": lambda: convolutions(4),
    "lookups": lookups,
    "places": places,
    "neither": neither,
}
FIELD = {"dense": "dense", "convolutions": "rows", "lookups": "lookups", "places": "positions"}


@pytest.mark.parametrize("name", NETWORKS)
def test_factors_give_the_products_of_the_dense_jacobian(name):
    f, params, x = NETWORKS[name]()
    network, outputs, _ = ntk._kept(f, params, x, None, 2**30)
    factors = kept.kept_factors(network, x, outputs)
    if name in FIELD:
        assert len(getattr(factors, FIELD[name])) > 0
    assert sum(leaf.size for leaf in jax.tree.leaves(factors)) == kept.numbers_kept(
        network, x, outputs
    )
    jacobian = problems.dense(f, params, x)
    shape = f(params, x).shape
    for key in jax.random.split(jax.random.key(2), 3):
        v = jax.random.normal(key, shape)
        expected = (jacobian @ (jacobian.T @ v.reshape(-1))).reshape(shape)
        found = kept.KeptKernel(factors=factors).product(v)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("trainable", [None, lambda path: path.startswith("0/")])
def test_matrix_and_factors_agree_and_what_is_read_less_of_is_kept(trainable):
    f, params, x, _ = problems.network((3, 40, 2), examples=60)
    v = jax.random.normal(jax.random.key(0), (60, 2))
    few, many = (il.kept_ntk(f, params, x[:n], trainable=trainable) for n in (2, 60))
    assert few.factors is None
    expected = few.matrix @ v[:2].reshape(-1)
    np.testing.assert_allclose(few.product(v[:2]).reshape(-1), expected, rtol=1e-12)
    sizes = ntk.kept_sizes(f, params, x, trainable=trainable)
    assert (many.matrix is None) == (sizes.form == "factors") == (2 * sizes.factors < 120**2)
    matrix = il.ntk_matrix(f, params, x, trainable=trainable)
    np.testing.assert_allclose(many.product(v).reshape(-1), matrix @ v.reshape(-1), rtol=1e-10)


def test_a_limit_decides_and_one_that_nothing_fits_into_is_an_error():
    f, params, x, _ = problems.network((3, 40, 2), examples=4)
    sizes = ntk.kept_sizes(f, params, x)
    assert (sizes.matrix, sizes.form, sizes.read) == (64, "matrix", 64)
    assert sizes.factors == 4 * (4 + 2 * 40 + 41 + 2 * 2)
    more = x[jnp.arange(32) % 4]
    found = ntk.kept_sizes(f, params, more, memory_limit=8 * 64**2)
    assert found == ntk.kept_sizes(f, params, more)
    assert (found.form, 8 * found.factors) == ("matrix", 33024)
    # Factors are read twice: 258 numbers of each example, and 4 N of each in the matrix.
    assert ntk.kept_sizes(f, params, x[jnp.arange(64) % 4]).form == "matrix"
    assert ntk.kept_sizes(f, params, x[jnp.arange(65) % 4]).form == "factors"
    with pytest.raises(ValueError, match=r"32 examples takes 32768 bytes .* memory_limit=32767"):
        il.kept_ntk(f, params, more, memory_limit=32767)
    wide, params, x, _ = problems.network((1, 2, 1), examples=100)
    sizes = ntk.kept_sizes(wide, params, x, memory_limit=8 * 100**2 - 1)
    assert (sizes.form, sizes.read) == ("factors", 2 * sizes.factors)
    assert ntk.kept_sizes(wide, params, x, memory_limit=8 * sizes.factors) == sizes
    with pytest.raises(ValueError, match="memory_limit must be a positive integer"):
        il.kept_ntk(f, params, x, memory_limit=0)


def test_a_matrix_is_kept_only_where_it_can_be_made():
    """Of one example it is small beside the factors that it is made of."""
    f, params, x, _ = problems.network((3, 40, 2), examples=1)
    made = next(n for n in range(32, 10**4) if ntk.kept_sizes(f, params, x, memory_limit=n).form)
    assert made > 8 * ntk.kept_sizes(f, params, x).matrix
    expected = il.ntk_matrix(f, params, x)
    kernel = il.kept_ntk(f, params, x, memory_limit=made)
    v = jnp.asarray([[1.0, -2.0]])
    np.testing.assert_allclose(kernel.product(v).reshape(-1), expected @ v.reshape(-1), rtol=1e-12)
    assert ntk.kept_sizes(f, params, x, memory_limit=made - 1).form is None
    with pytest.raises(ValueError, match="with what it takes to make it, more than memory_limit"):
        il.kept_ntk(f, params, x, memory_limit=made - 1)
