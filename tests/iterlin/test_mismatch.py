"""How far network and linearisation are apart: by hand, at its limits, and as a trigger."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
from iterlin.training import losses
from problems import bare
from refusals import refused

F, PARAMS, X, Y = problems.network((3, 6, 4), examples=12)
ENTROPY = losses.mean(losses.cross_entropy)
LABELS = jnp.argmax(Y, 1)


def moved(size):
    """The state of a run that is that far from its anchor."""
    state = il.Step(il.Algorithm(F, losses.squared_error, 0.1), 1).start(PARAMS, (X, Y))
    return state._replace(params=jax.tree.map(lambda p: p + size * jnp.cos(p), PARAMS))


def test_error_is_that_of_the_dense_jacobian_and_of_first_order_in_the_distance():
    state, error = moved(0.3), jax.jit(il.linearization_error(F, X))
    predicted = il.jacobian(F, PARAMS, X) @ problems.flat(optax.tree.sub(state.params, PARAMS))
    change = (F(state.params, X) - F(PARAMS, X)).reshape(-1)
    expected = np.linalg.norm(change - predicted) / np.linalg.norm(predicted)
    assert expected > 0.01
    np.testing.assert_allclose(error(state), expected, rtol=1e-10)
    far, near = (float(error(moved(size))) for size in (2e-3, 1e-3))
    np.testing.assert_allclose(far / near, 2, rtol=0.01)
    assert error(moved(0.0)) == 0
    assert jnp.isnan(error(moved(jnp.nan)))


def test_error_in_half_precision_does_not_overflow():
    f, x = lambda p, x: p**2 * x, jnp.full(4, 100, jnp.float16)
    state = il.Step(il.Algorithm(f, losses.squared_error, 0.1), 1).start(jnp.float16(1), (x, x))
    assert il.linearization_error(f, x)(state._replace(params=jnp.float16(3))) == 1  # 400 / 400


def test_loss_ratio_is_that_of_network_and_proxy():
    state, proxy = moved(0.5), il.linearize(F, PARAMS)
    expected = ENTROPY(F(state.params, X), LABELS) / ENTROPY(proxy(state.params, X), LABELS)
    found = il.loss_ratio(F, ENTROPY, X, LABELS)(state)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert abs(float(found) - 1) > 1e-3
    assert il.loss_ratio(F, ENTROPY, X, LABELS)(moved(0.0)) == 1


test_bad_input_is_refused = refused(
    lambda measure, arguments: bare(measure)(*arguments),
    (il.linearization_error, (3, X), "f must be a function"),
    (il.linearization_error, (F, X[:0]), "x must hold an example"),
    (il.loss_ratio, (F, "entropy", X, Y), "loss must be a function"),
    (il.loss_ratio, (F, ENTROPY, jnp.zeros(()), Y), "x must lead with the examples"),
)
