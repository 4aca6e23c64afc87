"""Training of scaled outputs, the kernel's drift on the way, and fits of what was found.

The network is u(theta) = alpha (f(theta) - f(theta_0)) with one output (`networks.scaled.centred`),
the loss mean (u - y)^2 / (2 alpha^2): outputs move as fast for every alpha, parameters 1/alpha as
far. The kernels are those of f, J J^T on the training inputs, not divided by N.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from iterlin.kernels.ntk import kernel_alignment, kernel_drift, ntk_matrix
from iterlin.linearise.linearization import Network, tree_add
from iterlin.linearise.spectral_filters import flow_filter
from iterlin.networks.scaled import centred
from jaxtyping import Array, Float, Int, PyTree
from scipy.stats import linregress

# A linear problem ends at this share of the target, so that the network itself reaches it.
SOLVED = 0.9
BISECTIONS = 60
LONGEST = 1e9


class KernelPath(NamedTuple):
    """Where a run ended and what the kernel did.

    error: mean squared error of the network on the training set. linearizations: how many, or how
    many steps. drift_first, drift_mean, drift_largest: relative change (`kernel_drift`) of the
    kernel from one anchor to the next; at K = 1 over the first step of each block. drift_total:
    from the first anchor to the last that was trained from; alignment: of the kernel there with
    y y^T.
    """

    params: PyTree
    error: Float[Array, ""]
    linearizations: Int[Array, ""]
    drift_first: Float[Array, ""]
    drift_mean: Float[Array, ""]
    drift_largest: Float[Array, ""]
    drift_total: Float[Array, ""]
    alignment: Float[Array, ""]


class _State(NamedTuple):
    params: PyTree
    residual: Array
    kernel: Array
    used: Array  # the kernel of the last anchor
    count: Array
    looks: Array
    first: Array
    total: Array
    largest: Array


def flows(f: Network, params: PyTree, data, *, scale, time, target, most) -> KernelPath:
    """Linearise, follow the proxy's gradient flow for `time` in closed form, and repeat.

    data = (inputs, targets (N, 1)). The run ends when the network's mean squared error is at
    `target`, or after `most` linearisations. A linear problem ends early when its own error is 0.9
    of the target. After one linearisation the trained model is the proxy,
    `linearize(centred(f, params, scale), params)`.
    """

    def move(residual, kernel):
        values, vectors = jnp.linalg.eigh(kernel / len(residual))
        values, modes = jnp.maximum(values, 0), vectors.T @ residual
        solved = time_to(values, modes**2 / len(residual), SOLVED * target)
        moved = flow_filter(values, jnp.minimum(time, solved)) * modes
        return vectors @ moved / len(residual)

    return _run(f, params, data, scale, target, most, move)


def steps(f: Network, params: PyTree, data, *, scale, step_size, target, most, block) -> KernelPath:
    """Gradient descent (K = 1) until the mean squared error is at `target`, or for `most` steps.

    The error and the kernel are evaluated once in each block of steps.
    """

    def move(residual, kernel):
        return step_size * residual / len(residual)

    return _run(f, params, data, scale, target, most, move, block)


def time_to(values: Float[Array, " R"], weights: Float[Array, " R"], target) -> Float[Array, ""]:
    """Return the time at which sum_i weights_i exp(-2 values_i t), a flow's error, is at `target`.

    Found by bisection between 1e-9 and 1e9; a time beyond these limits is returned as the limit.
    """

    def halve(_, ends):
        low, high = ends
        middle = jnp.sqrt(low * high)
        above = jnp.sum(weights * jnp.exp(-2 * values * middle)) > target
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    ends = jnp.asarray(1 / LONGEST, values.dtype), jnp.asarray(LONGEST, values.dtype)
    return jax.lax.fori_loop(0, BISECTIONS, halve, ends)[1]


def _run(f, params, data, scale, target, most, move, block=1) -> KernelPath:
    inputs, y = data
    network = centred(f, params, scale)

    def residual_of(theta):
        return (network(theta, inputs) - y)[:, 0]

    def moved(theta, cotangent):
        """theta - J^T cotangent / alpha: the gradient of u is alpha J, the loss has 1/alpha^2."""
        gradient = jax.vjp(residual_of, theta)[1](-cotangent / scale**2)[0]
        return tree_add(theta, gradient)

    def going(s):
        error = jnp.mean(s.residual**2)
        return (error > target) & (s.count < most) & jnp.isfinite(error)

    def advance(s):
        theta = moved(s.params, move(s.residual, s.kernel))
        kernel = ntk_matrix(f, theta, inputs)
        drift = kernel_drift(s.kernel, kernel)
        if block > 1:
            more = lambda _, p: moved(p, move(residual_of(p), None))  # noqa: E731
            theta = jax.lax.fori_loop(1, block, more, theta)
            kernel = ntk_matrix(f, theta, inputs)
        return _State(
            theta,
            residual_of(theta),
            kernel,
            used=s.kernel,
            count=s.count + block,
            looks=s.looks + 1,
            first=jnp.where(s.count == 0, drift, s.first),
            total=s.total + drift,
            largest=jnp.maximum(s.largest, drift),
        )

    kernel, residual = ntk_matrix(f, params, inputs), residual_of(params)
    none, zero = jnp.asarray(0), jnp.zeros((), residual.dtype)
    start = _State(params, residual, kernel, kernel, none, none, zero, zero, zero)
    end = jax.lax.while_loop(going, advance, start)
    return KernelPath(
        end.params,
        jnp.mean(end.residual**2),
        end.count,
        end.first,
        end.total / end.looks,
        end.largest,
        kernel_drift(kernel, end.used),
        kernel_alignment(end.used, y @ y.T),
    )


def variance_explained(x, y) -> float:
    """Return the R^2 of the best monotone function of x, rising or falling.

    It is the share of y's variance that isotonic regression on x takes away. Pairs with a NaN are
    left out. It is positive by chance, because the function is fitted to these very points. NaN
    where y does not vary.
    """
    from sklearn.isotonic import IsotonicRegression

    x, y = (np.asarray(v, dtype=float) for v in (x, y))
    paired = ~(np.isnan(x) | np.isnan(y))
    x, y = x[paired], y[paired]
    total = np.sum((y - y.mean()) ** 2) if y.size else 0.0
    if total == 0:
        return np.nan
    left = [
        np.sum((y - IsotonicRegression(increasing=rising).fit_transform(x, y)) ** 2)
        for rising in (True, False)
    ]
    return float(1 - min(left) / total)


def crossing(x, y, level: float) -> float:
    """Return where y (M,) first passes `level` from below, over increasing x (M,).

    x and y are positive. The curve is linear in both logarithms between its points. NaN if it never
    passes the level or is above it from the first.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    above = np.flatnonzero(y >= level)
    if len(above) == 0 or above[0] == 0:
        return np.nan
    pair = slice(above[0] - 1, above[0] + 1)
    return np.exp(np.interp(np.log(level), np.log(y[pair]), np.log(x[pair])))


def power(x, y) -> float:
    """Return the p of y ~ x^p, by least squares in the logarithms of x and y (M,).

    NaNs are left out; NaN for fewer than two points.
    """
    x, y = (np.log(np.asarray(v, dtype=float)) for v in (x, y))
    paired = ~(np.isnan(x) | np.isnan(y))
    if paired.sum() < 2:
        return np.nan
    return float(linregress(x[paired], y[paired]).slope)
