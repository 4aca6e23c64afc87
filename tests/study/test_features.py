"""Alignment of eq. (11) against its definition, and its mean over random directions."""

import jax.numpy as jnp
import numpy as np
from iterlin_study.runs.features import RANDOM_ALIGNMENT, alignment

CORNERS = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]) / np.sqrt(2)


def test_alignment_is_the_largest_cosine_to_a_corner():
    limits = [[[3.0, 3.0], [-2.0, 2.0], [0.0, 5.0], [-1e-3, 0.0]]]
    weights = np.concatenate([np.random.default_rng(0).normal(size=(5, 4, 2)), limits])
    cosines = weights @ CORNERS.T / np.linalg.norm(weights, axis=-1, keepdims=True)
    np.testing.assert_allclose(alignment(jnp.asarray(weights)), cosines.max(-1), rtol=1e-12)
    assert np.isnan(alignment(jnp.zeros(2)))


def test_mean_alignment_of_random_features():
    angles = (np.arange(10_000) + 0.5) / 10_000 * 2 * np.pi
    found = alignment(jnp.stack([jnp.cos(angles), jnp.sin(angles)], 1))
    np.testing.assert_allclose(found.mean(), RANDOM_ALIGNMENT, rtol=1e-6)
