"""Products with J^T H J against dense Jacobians and Hessians, and against the linearised loss."""

from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import linearize, losses
from iterlin.curvature.products import ggn_product, loss_blocks
from iterlin.parameters import split
from problems import bare, dense, flat, network, paired


def quartic(outputs, targets):
    """A convex loss that the library does not know."""
    return jnp.sum((outputs - targets) ** 4)


def labelled(y):
    return jnp.argmax(y, -1)


def softmax(outputs):
    weights = np.exp(np.asarray(outputs))
    return weights / weights.sum(-1, keepdims=True)


def softmax_blocks(outputs):
    """diag(p) - p p^T, by hand."""
    return np.stack([np.diag(p) - np.outer(p, p) for p in softmax(outputs)])


def along(params, seed=3):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)


@pytest.mark.parametrize("slice_size", [None, 2, 7])
@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_cross_entropy_is_the_dense_matrix_with_softmax_blocks(slice_size, mean):
    f, params, x, y = network((3, 4, 3), examples=7)
    loss = losses.mean(losses.cross_entropy) if mean else losses.cross_entropy
    rows = dense(f, params, x).reshape(7, 3, -1)
    blocks = softmax_blocks(f(params, x)) / (7 if mean else 1)
    matrix = np.einsum("nop,noq,nqr->pr", rows, blocks, rows)
    v = along(params)
    found = ggn_product(f, params, x, labelled(y), loss, slice_size=slice_size)(v)
    np.testing.assert_allclose(flat(found), matrix @ flat(v), atol=1e-12)


@pytest.mark.parametrize("loss", [losses.squared_error, losses.cross_entropy, quartic])
def test_is_the_hessian_of_the_linearised_loss(loss):
    """Which is not the Hessian of the loss itself, but for a network that is linear."""
    f, params, x, y = network((3, 4, 3), examples=5)
    y = labelled(y) if loss is losses.cross_entropy else y
    proxy = linearize(f, params)
    v = along(params)
    expected = jax.jvp(jax.grad(lambda p: loss(proxy(p, x), y)), (params,), (v,))[1]
    found = ggn_product(f, params, x, y, loss)(v)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("out", [(), (2, 2)])
def test_pytrees_outputs_of_any_rank_and_parameters_that_stay(out):
    f, params, x, y = paired(out)
    moving, _ = split(params, lambda path: path.startswith("in"))
    v = along(moving)

    def trained(moving, x):
        return f({**params, "in": moving["in"]}, x)

    rows = dense(trained, moving, x)
    expected = rows.T @ (rows @ flat(v))
    for slice_size in (None, 2):
        product = ggn_product(
            f,
            params,
            x,
            y,
            losses.squared_error,
            trainable=lambda path: path.startswith("in"),
            slice_size=slice_size,
        )
        found = product(v)
        assert found["out"] is None
        np.testing.assert_allclose(flat(found), expected, atol=1e-11)


def test_a_class_at_each_of_several_places():
    f, params, x, y = paired((2, 3))
    labels = jnp.argmax(y, -1)
    v = along(params)
    proxy = linearize(f, params)
    for loss in (losses.cross_entropy, losses.mean(losses.cross_entropy)):
        objective = jax.grad(lambda p, loss=loss: loss(proxy(p, x), labels))
        expected = jax.jvp(objective, (params,), (v,))[1]
        for slice_size in (None, 2):
            found = ggn_product(f, params, x, labels, loss, slice_size=slice_size)(v)
            np.testing.assert_allclose(flat(found), flat(expected), atol=1e-12)


def test_works_under_jit_with_the_parameters_as_an_argument():
    f, params, x, y = network((3, 4, 3), examples=5)
    v = along(params)

    def product(params, v):
        return ggn_product(f, params, x, y, losses.squared_error)(v)

    np.testing.assert_allclose(flat(jax.jit(product)(params, v)), flat(product(params, v)))


@pytest.mark.parametrize("loss", [losses.squared_error, losses.cross_entropy, quartic])
def test_blocks_are_the_dense_hessian_of_the_loss(loss):
    rng = np.random.default_rng(0)
    outputs = jnp.asarray(rng.normal(size=(4, 3)))
    y = jnp.asarray([0, 2, 1, 1]) if loss is losses.cross_entropy else jnp.ones((4, 3))
    whole = np.asarray(jax.hessian(loss)(outputs, y))
    found = loss_blocks(loss, outputs, y)
    np.testing.assert_allclose(found, np.einsum("nonp->nop", whole), atol=1e-12)


def product_of(one, other, outputs, y):
    return outputs[one, 0] * outputs[other, 0]


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, y: jnp.sum((outputs - y).sum(0) ** 2),
        lambda outputs, y: jnp.sum((outputs[::2].sum(0) - outputs[1::2].sum(0)) ** 2),
        # One number of one pair, of whichever and whichever way it pulls.
        lambda outputs, y: -outputs[0, 0] * outputs[1, 0],
        *(partial(product_of, *pair) for pair in combinations(range(5), 2)),
    ],
)
def test_a_loss_that_couples_examples_has_no_blocks(loss):
    with pytest.raises(ValueError, match="loss couples its examples"):
        loss_blocks(loss, jnp.ones((5, 3)), jnp.zeros((5, 3)))


def test_a_loss_of_one_example_couples_none():
    blocks = loss_blocks(partial(product_of, 0, 0), jnp.ones((1, 3)), jnp.zeros((1, 3)))
    np.testing.assert_array_equal(blocks[0], np.diag([2.0, 0, 0]))


@pytest.fixture(scope="module")
def problem():
    return network((3, 4, 3), examples=5)


def test_a_vector_of_another_structure_or_shape_is_refused(problem):
    product = ggn_product(*problem, losses.squared_error)
    with pytest.raises(ValueError, match="v must be a pytree of structure"):
        product(jnp.ones(3))
    _, params, *_ = problem
    with pytest.raises(ValueError, match=r"v.* must have shape .*, got \(1,\)"):
        product(jax.tree.map(lambda leaf: jnp.ones(1), params))


@pytest.mark.parametrize("slice_size", [None, 2])
def test_a_vector_of_integers_is_one_of_numbers(problem, slice_size):
    product = ggn_product(*problem, losses.squared_error, slice_size=slice_size)
    whole = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, int), problem[1])
    floats = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), problem[1])
    np.testing.assert_array_equal(flat(product(whole)), flat(product(floats)))


@pytest.mark.parametrize("slice_size", [None, 2])
def test_products_are_in_full_precision(problem, slice_size, monkeypatch):
    f, params, x, y = problem
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    product = ggn_product(f, params, x, y, losses.squared_error, slice_size=slice_size)
    text = " ".join(str(jax.make_jaxpr(product)(params)).split())
    assert text.count("dot_general") == text.count("precision=(Precision.HIGHEST") > 0


def test_a_loss_that_is_no_function_is_refused(problem):
    with pytest.raises(ValueError, match=r"loss must be a function of .*, got 'mse'"):
        bare(ggn_product)(*problem, "mse")


@pytest.mark.parametrize("slice_size", [0, 2.5, True, "3"])
def test_a_bad_slice_size_is_refused(problem, slice_size):
    with pytest.raises(ValueError, match="slice_size must be a positive integer, got"):
        bare(ggn_product)(*problem, losses.squared_error, slice_size=slice_size)


def test_slices_need_a_loss_known_to_be_a_sum(problem):
    with pytest.raises(ValueError, match=r"slice_size needs a loss .* sum over examples"):
        ggn_product(*problem, quartic, slice_size=2)


def test_targets_of_another_number_of_examples_are_refused_in_slices(problem):
    f, params, x, y = problem
    with pytest.raises(ValueError, match="inputs and targets differ in their numbers"):
        ggn_product(f, params, x, y[1:], losses.squared_error, slice_size=2)
