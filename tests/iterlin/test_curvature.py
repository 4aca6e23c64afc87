"""Products with J^T H J against dense Jacobians and Hessians, and against the linearised loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import empirical_fisher_product, ggn_product, hessian_product, linearize, losses
from iterlin.curvature.products import largest_coupling
from iterlin.linearise.parameters import partition
from problems import bare, dense, flat, network, paired, quartic
from refusals import refused

along = partial(jax.tree.map, jnp.cos)


@pytest.mark.parametrize("loss", [losses.squared_error, losses.cross_entropy, quartic])
def test_product_is_the_hessian_of_the_linearised_loss(loss):
    f, params, x, y = network((3, 4, 3), examples=5)
    y = jnp.argmax(y, 1) if loss is losses.cross_entropy else y
    v, proxy = along(params), linearize(f, params)
    slope = jax.grad(lambda p: loss(proxy(p, x), y))
    expected = jax.jit(lambda p, v: jax.jvp(slope, (p,), (v,))[1])(params, v)
    found = jax.jit(lambda p, v: ggn_product(f, p, x, y, loss)(v))(params, v)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("product", "out", "loss", "slice_size"),
    [
        (ggn_product, (2, 2), losses.squared_error, 2),
        (hessian_product, (2,), quartic, None),
        (hessian_product, (2,), losses.mean(losses.squared_error), 2),
    ],
)
def test_of_part_of_the_parameters_it_is_the_dense_matrix(product, out, loss, slice_size):
    """With inputs in a pytree and outputs of any rank."""
    f, params, x, y = paired(out)
    trainable = lambda path: path.startswith("in")  # noqa: E731
    moving, _ = partition(params, trainable)
    vector, unravel = jax.flatten_util.ravel_pytree(moving)
    of_part = lambda moving, x: f({**params, "in": moving["in"]}, x)  # noqa: E731
    if product is hessian_product:
        matrix = jax.jit(jax.hessian(lambda p: loss(of_part(unravel(p), x), y)))(vector)
    else:
        rows = dense(of_part, moving, x)
        matrix = rows.T @ rows
    v, settings = along(moving), {"trainable": trainable, "slice_size": slice_size}
    found = product(f, params, x, y, loss, **settings)(v)
    assert found["out"] is None
    np.testing.assert_allclose(flat(found), matrix @ flat(v), atol=1e-11)


def test_the_masked_token_mean_is_the_dense_matrix_over_the_real_tokens():
    f, params, x, y = paired((3, 4))
    labels = jnp.argmax(y, -1).at[:, 2].set(-100).at[1, 1].set(-100)
    loss = losses.mean(partial(losses.cross_entropy, ignore=-100))
    rows = dense(f, params, x).reshape(*y.shape, -1)[labels >= 0]
    p = np.asarray(jax.nn.softmax(f(params, x)))[labels >= 0]
    matrix = np.einsum("nop,no,noq->pq", rows, p, rows)
    mean = np.einsum("no,nop->np", p, rows)
    matrix = (matrix - mean.T @ mean) / len(p)
    v = along(params)
    for slice_size in (None, 2):
        found = ggn_product(f, params, x, labels, loss, slice_size=slice_size)(v)
        np.testing.assert_allclose(flat(found), matrix @ flat(v), atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "slice_size"), [(losses.cross_entropy, 2), (losses.mean(losses.cross_entropy), None)]
)
def test_the_empirical_fisher_sums_outer_products_of_gradients(loss, slice_size):
    f, params, x, y = paired((2, 3))
    labels, v = jnp.argmax(y, -1), along(params)

    def of_examples(p, x):
        return -jnp.sum(jax.nn.log_softmax(f(p, x)) * jax.nn.one_hot(labels, 3), (1, 2))

    gradients = dense(of_examples, params, x)
    matrix = gradients.T @ gradients / (10 if isinstance(loss, losses.Mean) else 1)
    found = empirical_fisher_product(f, params, x, labels, loss, slice_size=slice_size)(v)
    np.testing.assert_allclose(flat(found), matrix @ flat(v), atol=1e-12)


def test_the_ggn_of_the_cross_entropy_is_the_fisher_information():
    """The expectation of the empirical Fisher over labels drawn from the model."""
    f, params, x, _ = network((3, 4, 3), examples=1)
    p, v = jax.nn.softmax(f(params, x))[0], along(params)

    def at_label(label):
        labels = jnp.asarray([label])
        return flat(empirical_fisher_product(f, params, x, labels, losses.cross_entropy)(v))

    expected = sum(p[label] * at_label(label) for label in range(3))
    found = ggn_product(f, params, x, jnp.asarray([0]), losses.cross_entropy)(v)
    np.testing.assert_allclose(flat(found), expected, atol=1e-12)


def test_a_coupling_of_any_two_examples_is_found():
    for loss in (
        lambda outputs, y: jnp.sum((outputs - y).sum(0) ** 2),
        lambda outputs, y: jnp.sum((outputs[::2].sum(0) - outputs[1::2].sum(0)) ** 2),
        lambda outputs, y: -outputs[0, 0] * outputs[1, 0],
        lambda outputs, y: outputs[3, 0] * outputs[4, 0],
    ):
        assert largest_coupling(loss, jnp.ones((5, 3)), jnp.zeros((5, 3))) > 0.1
    labels = jnp.array([0, 2, 1, 1])
    outputs = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    assert largest_coupling(losses.cross_entropy, outputs, labels) == 0
    assert largest_coupling(losses.squared_error, outputs[:1], outputs[1:2]) == 0


PROBLEM = network((3, 4, 3), examples=5)
test_a_vector_of_another_structure_or_shape_is_refused = refused(
    lambda v: ggn_product(*PROBLEM, losses.squared_error)(v),
    (jnp.ones(3), "v must be a pytree of structure"),
    (jax.tree.map(lambda leaf: jnp.ones(1), PROBLEM[1]), r"v.* must have shape .*, got \(1,\)"),
)

test_bad_input_is_refused = refused(
    lambda loss, size, n: bare(ggn_product)(*PROBLEM[:3], PROBLEM[3][:n], loss, slice_size=size),
    ("mse", None, 5, r"loss must be a function of .*, got 'mse'"),
    (quartic, 2, 5, r"slice_size needs a loss .* sum over examples"),
    (losses.squared_error, 2, 4, "inputs and targets differ in their numbers"),
    (losses.squared_error, 0, 5, "slice_size must be a"),
)
