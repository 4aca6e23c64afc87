"""Alignment of eq. (11) against its definition, and its mean over random directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import alignment
from iterlin.features import RANDOM_ALIGNMENT

CORNERS = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) / np.sqrt(2)


def test_alignment_is_the_largest_cosine_to_a_corner():
    weights = np.random.default_rng(0).normal(size=(5, 7, 2))
    cosines = weights @ CORNERS.T / np.linalg.norm(weights, axis=-1, keepdims=True)
    np.testing.assert_allclose(alignment(jnp.asarray(weights)), cosines.max(-1), rtol=1e-12)


def test_alignment_at_its_limits():
    found = alignment(jnp.asarray([[3.0, 3.0], [-2.0, 2.0], [0.0, 5.0], [-1e-3, 0.0]]))
    np.testing.assert_allclose(found, [1, 1, 1 / np.sqrt(2), 1 / np.sqrt(2)], rtol=1e-12)
    assert np.isnan(alignment(jnp.zeros(2)))


def test_mean_alignment_of_random_features():
    weights = jax.random.normal(jax.random.key(0), (100_000, 2))
    found = np.asarray(alignment(weights))
    assert abs(found.mean() - RANDOM_ALIGNMENT) < 4 * found.std() / np.sqrt(len(found))
    angles = (np.arange(10_000) + 0.5) / 10_000 * np.pi / 4
    assert pytest.approx(np.mean(np.cos(angles)), rel=1e-8) == RANDOM_ALIGNMENT
