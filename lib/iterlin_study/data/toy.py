"""The data sets of the toy problems, and scikit-learn's digits for quick images."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from iterlin.linearise.devices import to_array
from iterlin.linearise.validation import (
    check_non_negative_integer,
    check_positive_integer,
    check_random_key,
)
from jaxtyping import Array, Float, Shaped

VARIANCE = 0.1  # of the noise of the XOR clusters


class Dataset(NamedTuple):
    """Inputs (N, ...) and targets: (N, O) real numbers, or (N,) integer labels."""

    x: Array
    y: Array


class Split(NamedTuple):
    train: Dataset
    test: Dataset


def xor(key: Array, size: int) -> Dataset:
    """Draw XOR clusters: X = z + eps, z uniform on {-1, 1}^2, eps ~ N(0, 0.1 I), y = X_1 X_2.

    Section 4.2 of the paper (labels as printed: the product of the noisy coordinates). x is
    (size, 2), y is (size, 1).
    """
    check_random_key("key", key)
    check_positive_integer("size", size)
    corner_key, noise_key = jax.random.split(key)
    z = jax.random.rademacher(corner_key, (size, 2), dtype=jnp.result_type(float))
    x = z + jnp.sqrt(VARIANCE) * jax.random.normal(noise_key, (size, 2))
    return Dataset(x, jnp.prod(x, axis=1, keepdims=True))


def quintic_polynomial(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x^5/32 - x^3/2 + 2x - 1, the target of appendix C.2.3."""
    return x**5 / 32 - x**3 / 2 + 2 * x - 1


def quintic(low: float = -4.0, high: float = 4.0) -> Split:
    """Return uniformly spaced points of the quintic on [low, high], 20 to train and 1,000 to test.

    Raises ValueError unless low is below high.
    """
    if not low < high:
        raise ValueError(f"the input range [{low}, {high}] is empty: low must be below high")

    def points(size):
        x = jnp.linspace(low, high, size)[:, None]
        return Dataset(x, quintic_polynomial(x))

    return Split(points(20), points(1000))


def digits(train: int = 200, *, seed: int = 0) -> Split:
    """scikit-learn's 1,797 8x8 digits: a class-balanced training subset and all the others as test.

    Inputs are flat (N, 64), standardised by the mean and standard deviation of all training
    pixels; labels are integers. The subset is the `nested_subset` of the seed.
    """
    from sklearn.datasets import load_digits

    check_positive_integer("train", train)
    x, y = load_digits(return_X_y=True)
    if train >= len(y):
        raise ValueError(f"train must be below the {len(y)} digits there are, got {train}")
    chosen = nested_subset(y, train, seed)
    others = np.delete(np.arange(len(y)), chosen)
    mean, std = x[chosen].mean(), x[chosen].std()
    x = (x - mean) / std

    def part(indices):
        return Dataset(to_array(x[indices]), to_array(y[indices], jnp.int32))

    return Split(part(chosen), part(others))


def nested_subset(labels, size: int, seed) -> np.ndarray:
    """Return indices (size,) of a class-balanced subset of labels (N,), for a seed or several.

    Class counts differ by at most one, unless a class has no more to give. The subset of size n is
    the first n indices of every larger one. The draw is the same in every version of NumPy.
    """
    labels = np.asarray(labels)
    for one in seed if isinstance(seed, tuple | list) else (seed,):
        check_non_negative_integer("seed", one)
    check_non_negative_integer("size", size)
    if size > len(labels):
        raise ValueError(f"a subset of size {size} cannot be drawn from {len(labels)} examples")
    # NumPy may change what its distributions draw, but not the raw stream of a bit generator.
    shuffled = np.argsort(np.random.PCG64(seed).random_raw(len(labels)), kind="stable")
    classes = labels[shuffled]
    place = np.empty(len(labels), dtype=int)  # of each example among those of its class
    for label in np.unique(classes):
        place[classes == label] = np.arange(np.sum(classes == label))
    return shuffled[np.argsort(place, kind="stable")][:size]


def one_hot(labels: Shaped[Array, " N"], classes: int) -> Float[Array, "N C"]:
    """Return targets for squared error: 1 at the label, 0 elsewhere."""
    return jax.nn.one_hot(labels, classes, dtype=jnp.result_type(float))
