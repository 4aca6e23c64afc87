"""The data sets have the distributions, targets and splits that they say."""

import jax
import jax.numpy as jnp
import numpy as np
from iterlin_study.data import toy
from problems import bare
from refusals import refused

KEY = jax.random.key(0)


def test_xor_clusters():
    x, y = map(np.asarray, toy.xor(KEY, 20_000))
    np.testing.assert_array_equal(y[:, 0], x[:, 0] * x[:, 1])
    # E X^2 = 1 + variance, E X = 0 and the coordinates are independent.
    np.testing.assert_allclose(np.mean(x**2, 0), 1.1, rtol=0.02)
    np.testing.assert_allclose([*x.mean(0), y.mean()], 0, atol=0.03)


def test_quintic_points():
    # By hand: x^5/32 - x^3/2 + 2x - 1.
    by_hand = toy.quintic_polynomial(jnp.arange(-2.0, 3.0))
    np.testing.assert_allclose(by_hand, [-2, -2.53125, -1, 0.53125, 0])
    for size, (x, y) in zip((20, 1000), toy.quintic(-2.0, 1.0), strict=True):
        np.testing.assert_allclose(x, np.linspace(-2, 1, size)[:, None], atol=1e-15)
        np.testing.assert_allclose(y, toy.quintic_polynomial(x), atol=1e-15)


def test_digits_split_is_balanced_disjoint_standardised_and_by_its_seed():
    size = 203
    train, test = (jax.tree.map(np.asarray, part) for part in toy.digits(size))
    assert np.ptp(np.bincount(train.y)) <= 1
    assert (len(train.y), len(test.y)) == (size, 1797 - size)
    np.testing.assert_allclose([train.x.mean(), train.x.std()], [0, 1], atol=1e-6)
    assert len(np.unique(np.concatenate([train.x, test.x]), axis=0)) == 1797
    np.testing.assert_array_equal(toy.digits(size, seed=0).train.x, train.x)
    assert np.any(np.asarray(toy.digits(size, seed=1).train.x) != train.x)


test_bad_settings_are_refused = refused(
    lambda call: call(),
    (lambda: bare(toy.xor)(KEY, 0), "size must .* got 0"),
    (lambda: toy.quintic(2.0, 1.0), r"\[2.0, 1.0\] is empty"),
    (lambda: toy.digits(1797), "train must .* 1797"),
)
