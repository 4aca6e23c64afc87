"""Alignment of first-layer features with the clusters of the XOR data, eq. (11)."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

# Mean alignment of a direction drawn uniformly on the circle. Its angle to the nearest diagonal is
# uniform on [0, pi/4], and the mean cosine of such an angle is (4/pi) sin(pi/4).
RANDOM_ALIGNMENT = 4 / math.pi * math.sin(math.pi / 4)


def alignment(weights: Float[Array, "... 2"]) -> Float[Array, "..."]:
    """Return the alignment a(w) = max over c in {-1, 1}^2 of cos(w, c), eq. (11).

    The maximum over the four corners is ``(|w_1| + |w_2|) / (sqrt(2) ||w||)``, in [1/sqrt(2), 1].
    It is 1 on the diagonals, where the four clusters are, and NaN for w = 0.

    >>> from iterlin_study.runs.features import alignment
    >>> print(alignment(jnp.array([[1.0, 1.0], [1.0, 0.0]])).round(3))
    [1.    0.707]
    """
    return jnp.sum(jnp.abs(weights), -1) / (math.sqrt(2) * jnp.linalg.norm(weights, axis=-1))
