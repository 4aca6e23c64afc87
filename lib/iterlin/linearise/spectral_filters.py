"""Spectral filters: what training the linearised model puts in place of 1 / l.

The filter g is a function of the eigenvalues l of the kernel J J^T:

    gradient flow for a time t        g(l) = (1 - exp(-l t)) / l
    K gradient steps of size eta      g(l) = (1 - (1 - eta l)^K) / l
    damping lambda (eq. 10)           g(l) = 1 / (l + lambda)

Training multiplies the residual along the eigenvector of l by 1 - l g(l).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

# A larger number of steps does not fit into a float64.
MAX_STEPS = 1e308
# Zero eigenvalues of kernels of 50 to 1500 rows came out below 10 eps times the largest.
NOISE = 10


def flow_filter(eigenvalues: Float[Array, " R"], time) -> Float[Array, " R"]:
    """Filter of gradient flow: (1 - exp(-l t)) / l.

    Args:
        eigenvalues: Eigenvalues l >= 0 of the kernel (R,).
        time: The time t >= 0, a scalar; infinity is allowed.

    Returns:
        The filter values (R,). At l = 0 the value is t, or 0 if t is infinite.

    >>> print(il.flow_filter(jnp.array([0.0, 1.0, 100.0]), 2.0).round(3))
    [2.    0.865 0.01 ]
    """
    time = float(time) if isinstance(time, int) else time  # 10^12 is no int32
    safe = jnp.where(eigenvalues > 0, eigenvalues, 1)
    # At l = 0 the limit is t. At t = infinity the pseudo-inverse leaves this direction at rest.
    endless = jnp.isinf(time)
    finite = jnp.where(endless, 0.0, time)
    # The derivative of exp(-l t) in l is 0 * infinity at t = infinity.
    moved = jnp.where(endless, 1.0, -jnp.expm1(-safe * finite))
    at_zero = finite * (1 - finite * _zeros_of(eigenvalues) / 2)
    return jnp.where(eigenvalues > 0, moved / safe, at_zero)


def descent_filter(eigenvalues: Float[Array, " R"], step_size, num_steps) -> Float[Array, " R"]:
    """Filter of gradient descent: (1 - (1 - eta l)^K) / l.

    The power is computed through log1p, which is accurate for eta l near 0 and K up to 1e12 and
    more. For eta l > 2 it overflows, as the iteration does.

    Args:
        eigenvalues: Eigenvalues l >= 0 of the kernel (R,).
        step_size: The step size eta > 0, a scalar.
        num_steps: The number of steps K, a scalar; infinity is allowed.

    Returns:
        The filter values (R,). At l = 0 the value is eta K, or 0 if K is infinite.

    >>> print(il.descent_filter(jnp.array([0.0, 1.0, 100.0]), 0.01, 200).round(3))
    [2.    0.866 0.01 ]
    """
    safe = jnp.where(eigenvalues > 0, eigenvalues, 1)
    product = step_size * eigenvalues  # may underflow to 0
    x = jnp.where(product > 0, product, 1)
    steps, odd = steps_and_parity(num_steps)
    below = -jnp.expm1(steps * jnp.log1p(-jnp.where(x < 1, x, 0)))
    logarithm = steps * jnp.log(jnp.where(x > 1, x - 1, 1))
    beyond = jnp.where(odd, 1 + jnp.exp(logarithm), -jnp.expm1(logarithm))
    at_one = jnp.where(steps == 1, x, steps > 0)  # x, not 1, for the derivative
    power = jnp.where(x < 1, below, jnp.where(x > 1, beyond, at_one))
    at_infinity = jnp.where(eigenvalues > 0, 1 / safe, 0)
    endless = jnp.isinf(steps)
    finite = jnp.where(endless, 1, steps)
    slope = _zeros_of(eigenvalues) * step_size * (finite - 1) / 2
    at_zero = jnp.where(endless, at_infinity, step_size * finite * (1 - slope))
    return jnp.where(product > 0, power / safe, at_zero)


def _zeros_of(eigenvalues):
    """Return zeros, with the derivative of the eigenvalues where these are 0."""
    return jnp.where(eigenvalues == 0, eigenvalues, 0)


def damping_filter(eigenvalues: Float[Array, " R"], damping) -> Float[Array, " R"]:
    """Filter of the damped Gauss-Newton step, eq. (10): 1 / (l + lambda).

    Args:
        eigenvalues: Eigenvalues l >= 0 of the kernel (R,).
        damping: The damping lambda >= 0, a scalar.

    Returns:
        The filter values (R,). Where l and lambda are 0 the value is 0, as in the pseudo-inverse,
        which gives the step of minimum norm.

    >>> print(il.damping_filter(jnp.array([0.0, 1.0, 3.0]), 1.0))
    [1.   0.5  0.25]
    """
    total = eigenvalues + (float(damping) if isinstance(damping, int) else damping)
    return jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1), 0)


def rounding_of(eigenvalues: Float[Array, " R"]) -> Float[Array, ""]:
    """Return the size below which an eigenvalue of a symmetric matrix may be rounding errors."""
    eps = jnp.finfo(eigenvalues.dtype).eps
    return max(NOISE, len(eigenvalues) ** 0.5) * eps * jnp.max(jnp.abs(eigenvalues))


def without_noise(
    filtered: Float[Array, " R"], eigenvalues: Float[Array, " R"], noise: Float[Array, ""]
) -> Float[Array, " R"]:
    """Return filter values, 0 where the filter would divide by an eigenvalue that is rounding.

    noise is the size of rounding errors of the eigenvalues l >= 0. A filter value below 1 / noise
    comes from the time or the damping, not from an eigenvalue of at most noise.
    """
    return jnp.where((eigenvalues <= noise) & ~(filtered * noise <= 1), 0, filtered)


def log_contraction(x):
    """Return log |1 - x|, accurate for small x; -infinity at x = 1."""
    return jnp.where(x < 1, jnp.log1p(-jnp.where(x < 1, x, 0)), jnp.log(jnp.where(x < 1, 1, x - 1)))


def steps_and_parity(num_steps):
    """Return K as a floating point number, and whether K is odd."""
    # The parity of a large Python integer is lost by a conversion to a float.
    if isinstance(num_steps, int):
        return float(num_steps), num_steps % 2 == 1
    return num_steps * 1.0, jnp.mod(num_steps, 2) == 1
