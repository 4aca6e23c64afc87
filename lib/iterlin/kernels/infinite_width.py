"""The analytic neural tangent kernel of infinitely wide ReLU networks."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from iterlin.linearise import examples
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.validation import check_non_negative_integer


@on_any_device
def relu_mlp_ntk(
    x1: Float[Array, "N1 D"],
    x2: Float[Array, "N2 D"] | None = None,
    *,
    depth: int,
    bias: bool = True,
) -> Float[Array, "N1 N2"]:
    """Compute the neural tangent kernel of an infinitely wide ReLU MLP in NTK parameterisation.

    A layer is h -> W h / sqrt(fan_in) + b with W ~ N(0, 1) and b = 0 at initialisation, as
    `mlp(..., parameterization="ntk")` draws them. With u, v jointly Gaussian of covariance Sigma,
    S = E[relu(u) relu(v)] and S' = E[relu'(u) relu'(v)], the recursion from
    Sigma_0 = Theta_0 - bias = x1 x2^T / D is Sigma <- S, Theta <- S + bias + S' * Theta, where
    `bias` counts as 1. The expectations are arc-cosine kernels (Cho & Saul 2009), the recursion is
    that of Jacot et al. (2018). The kernel has a kink where two inputs have one direction: the
    gradient there is that for a fixed angle. In float32 two such inputs, of x1 and of x2, have a
    relative error of some 1e-4, that of their angle.

    Args:
        x1: Inputs (N1, D).
        x2: Inputs (N2, D); None means x1.
        depth: The number of hidden layers; 0 is a linear model.
        bias: Whether the layers have biases.

    Returns:
        The kernel of each output (N1, N2), not divided by N.

    Raises:
        ValueError: If depth is not an integer of at least 0, or the inputs are not matrices of the
            same width.

    >>> print(il.relu_mlp_ntk(jnp.array([[1.0, 0.0], [0.0, 2.0]]), depth=1).round(2))
    [[2.   1.41]
     [1.41 3.5 ]]
    """
    check_non_negative_integer("depth", depth)
    alone, x2 = x2 is None, x1 if x2 is None else x2
    for name, x in (("x1", x1), ("x2", x2)):
        examples.num_examples(x, name)
        if x.ndim != 2 or x.shape[1] == 0:
            raise ValueError(f"{name} must be a matrix (N, D), got shape {x.shape}")
    if x1.shape[1] != x2.shape[1]:
        raise ValueError(f"x1 and x2 differ in width: {x1.shape[1]} and {x2.shape[1]}")
    x1, x2 = (x.astype(jnp.result_type(x1, x2, float)) for x in (x1, x2))
    dim, equal = x1.shape[1], alone & jnp.eye(len(x1), len(x2), dtype=bool)
    sigma = x1 @ x2.T / dim
    norms = (jnp.sum(x1**2, 1)[:, None] / dim, jnp.sum(x2**2, 1)[None, :] / dim)
    # An input of 0 would give 0 / 0; its outputs are 0, and the derivative of the ReLU at 0 is 0.
    alive = (norms[0] > 0) & (norms[1] > 0)
    roots = [jnp.sqrt(jnp.where(alive, norm, 1)) for norm in norms]
    scale = jnp.where(alive, roots[0] * roots[1], 0)
    ratio = jnp.where(alive, sigma / jnp.where(alive, scale, 1), 0)
    theta = sigma + bias
    for _ in range(depth):
        # Rounding can move the ratio out of [-1, 1], where arccos is NaN.
        inside = (jnp.abs(ratio) < 1) & ~equal
        angle = jnp.where(inside, jnp.arccos(jnp.where(inside, ratio, 0)), jnp.pi * (ratio < 0))
        ratio = (jnp.sin(angle) + (jnp.pi - angle) * jnp.cos(angle)) / jnp.pi
        scale = scale / 2
        sigma = scale * ratio
        derivative = jnp.where(alive, (jnp.pi - angle) / (2 * jnp.pi), 0)
        theta = sigma + bias + derivative * theta
    return theta
