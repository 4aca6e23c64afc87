"""What training makes of each eigenvalue l of the kernel J J^T, in place of 1 / l.

    gradient flow for a time t        g(l) = (1 - exp(-l t)) / l
    K gradient steps of size eta      g(l) = (1 - (1 - eta l)^K) / l
    damping lambda (eq. 10)           g(l) = 1 / (l + lambda)

A residual z is left with its share 1 - l g(l) in each direction.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Numbers of steps beyond are no floating point numbers.
MAX_STEPS = 1e308


def flow_filter(eigenvalues: Float[Array, " R"], time) -> Float[Array, " R"]:
    """(1 - exp(-l t)) / l, with its limits t at l = 0 and 1/l at t = infinity (0 if l = 0 too).

    >>> print(il.flow_filter(jnp.array([0.0, 1.0, 100.0]), 2.0).round(3))
    [2.    0.865 0.01 ]
    """
    safe = jnp.where(eigenvalues > 0, eigenvalues, 1)
    # At l = 0 the filter is t; at t = infinity no motion is meant there (pseudo-inverse).
    at_zero = jnp.where(jnp.isinf(time), 0.0, time)
    return jnp.where(eigenvalues > 0, -jnp.expm1(-safe * time) / safe, at_zero)


def descent_filter(eigenvalues: Float[Array, " R"], step_size, num_steps) -> Float[Array, " R"]:
    """(1 - (1 - eta l)^K) / l, with its limit eta K at l = 0 (0 at K = infinity).

    The power is taken through log1p, so that it is right for eta l near 0 (K up to 1e12 and
    beyond), at eta l = 1 (0) and between 1 and 2 (sign by the parity of K). Beyond 2 it overflows,
    as the iteration does.

    >>> print(il.descent_filter(jnp.array([0.0, 1.0, 100.0]), 0.01, 200).round(3))
    [2.    0.866 0.01 ]
    """
    safe = jnp.where(eigenvalues > 0, eigenvalues, 1)
    x = step_size * safe
    steps, odd = steps_and_parity(num_steps)
    below = -jnp.expm1(steps * jnp.log1p(-jnp.where(x < 1, x, 0)))
    logarithm = steps * jnp.log(jnp.where(x > 1, x - 1, 1))
    beyond = jnp.where(odd, 1 + jnp.exp(logarithm), -jnp.expm1(logarithm))
    power = jnp.where(x < 1, below, jnp.where(x > 1, beyond, 1))
    at_zero = jnp.where(jnp.isinf(steps), 0.0, step_size * steps)
    return jnp.where(eigenvalues > 0, power / safe, at_zero)


def damping_filter(eigenvalues: Float[Array, " R"], damping) -> Float[Array, " R"]:
    """1 / (l + lambda), and 0 where both vanish (pseudo-inverse: the minimum-norm step).

    >>> print(il.damping_filter(jnp.array([0.0, 1.0, 3.0]), 1.0))
    [1.   0.5  0.25]
    """
    total = eigenvalues + damping
    return jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1), 0)


def log_contraction(x):
    """log |1 - x|, right to rounding however small x is (-infinity at 1)."""
    return jnp.where(x < 1, jnp.log1p(-jnp.where(x < 1, x, 0)), jnp.log(jnp.where(x < 1, 1, x - 1)))


def steps_and_parity(num_steps):
    """K as a floating point number, and whether it is odd."""
    # A Python integer keeps its parity however large; a traced one is exact as far as its type is.
    if isinstance(num_steps, int):
        return float(num_steps), num_steps % 2 == 1
    return num_steps * 1.0, jnp.mod(num_steps, 2) == 1
