"""The data sets have the distributions, targets and splits that they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.study import data
from problems import bare


def test_xor_clusters():
    x, y = data.xor(jax.random.key(0), 20_000, variance=0.1)
    assert x.shape == (20_000, 2)
    np.testing.assert_array_equal(y[:, 0], x[:, 0] * x[:, 1])
    # E X^2 = 1 + variance, E X = 0 and the coordinates are independent.
    np.testing.assert_allclose(np.mean(np.asarray(x) ** 2, 0), 1.1, rtol=0.02)
    np.testing.assert_allclose(np.mean(np.asarray(x), 0), 0, atol=0.03)
    assert abs(float(jnp.mean(y))) < 0.03


def test_xor_without_noise_is_its_corners():
    x, y = data.xor(jax.random.key(1), 400, variance=0.0)
    corners, counts = np.unique(np.asarray(x), axis=0, return_counts=True)
    np.testing.assert_array_equal(corners, [[-1, -1], [-1, 1], [1, -1], [1, 1]])
    assert counts.min() > 60
    np.testing.assert_array_equal(np.abs(y), 1)


def test_quintic_points():
    train, test = data.quintic(-2.0, 2.0, train=5, test=9)
    np.testing.assert_allclose(train.x[:, 0], [-2, -1, 0, 1, 2])
    # By hand: x^5/32 - x^3/2 + 2x - 1.
    np.testing.assert_allclose(train.y[:, 0], [-2, -2.53125, -1, 0.53125, 0])
    assert test.x.shape == test.y.shape == (9, 1)


@pytest.mark.parametrize("size", [50, 200, 203])
def test_digits_split_is_balanced_disjoint_and_standardised(size):
    train, test = data.digits(size)
    counts = np.bincount(np.asarray(train.y))
    assert counts.max() - counts.min() <= 1
    assert len(train.y) == size
    assert len(train.y) + len(test.y) == 1797
    assert float(jnp.mean(train.x)) == pytest.approx(0, abs=1e-6)
    assert float(jnp.std(train.x)) == pytest.approx(1, abs=1e-6)
    everything = np.concatenate([train.x, test.x])
    assert len(np.unique(everything, axis=0)) == 1797


def test_digits_depend_on_the_seed_alone():
    first, again, other = data.digits(50), data.digits(50, seed=0), data.digits(50, seed=1)
    np.testing.assert_array_equal(first.train.x, again.train.x)
    assert np.any(np.asarray(first.train.x) != np.asarray(other.train.x))


def test_one_hot():
    np.testing.assert_array_equal(data.one_hot(jnp.asarray([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bare(data.xor)(jax.random.key(0), 0), "size must be a positive integer, got 0"),
        (
            lambda: bare(data.xor)(jax.random.key(0), 2.5),
            "size must be a positive integer, got 2.5",
        ),
        (lambda: data.xor(jax.random.key(0), 5, variance=-0.1), "variance must be .*non-negative"),
        (lambda: data.quintic(train=0), "train must be a positive integer, got 0"),
        (lambda: data.quintic(2.0, 1.0), r"range \[2.0, 1.0\] is empty: low must be below high"),
        (lambda: data.quintic(0.0, float("nan")), "high must be finite"),
        (lambda: data.quintic(-float("inf"), float("inf")), "low must be finite"),
        (lambda: bare(data.xor)(3, 5), "key must be a random key, .* got 3"),
        (lambda: data.digits(seed=-1), "seed must be a non-negative integer, got -1"),
        (lambda: data.nested_subset([0, 1], 1, (0, 1.5)), "seed must be .* integer, got 1.5"),
        (lambda: data.nested_subset([0, 1], 1, None), "seed must be .* integer, got None"),
        (lambda: data.digits(1797), "train must be below the 1797 digits there are, got 1797"),
        (lambda: data.digits(-3), "train must be a positive integer, got -3"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
