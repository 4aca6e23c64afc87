"""Training of scaled outputs by flows of a given time, and the kernel's drift on the way.

The network is u(theta) = alpha (f(theta) - f(theta_0)) with one output (`networks.scaled.centred`),
the loss mean (u - y)^2 / (2 alpha^2): outputs move as fast for every alpha, parameters 1/alpha as
far. The kernels are those of f, J J^T on the training inputs, not divided by N.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from iterlin.linearization import Network, output_shape, tree_add
from iterlin.networks.scaled import centred
from iterlin.ntk import kernel_alignment, kernel_drift, ntk_matrix
from iterlin.spectral_filters import flow_filter
from iterlin.validation import positive_integer, same_shape

# A linear problem ends where its own loss is this share of the target: so the network can reach it.
SOLVED = 0.9
BISECTIONS = 60
LONGEST = 1e9


class KernelPath(NamedTuple):
    """Where a run ended and what the kernel did.

    error: mean squared error of the network on the training set. linearizations: or steps.
    drift_first, drift_mean, drift_largest: relative change (`kernel_drift`) of the kernel from one
    anchor to the next; at K = 1 one step in a block of them is looked at. drift_total: from the
    first anchor to the last that was trained from; alignment: of the kernel there with y y^T.
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
    used: Array  # the kernel that was last trained from
    count: Array
    looks: Array
    first: Array
    total: Array
    largest: Array


def flows(f: Network, params: PyTree, data, *, scale, time, target, most) -> KernelPath:
    """Linearise and follow the proxy's gradient flow for a time, until the network's mean squared
    error is at the target: in closed form, whatever the time.

    data = (inputs, targets (N, 1)). A linear problem ends before its time where its own error is
    0.9 of the target. After `most` linearisations a run ends, too: after one, what was trained is
    the proxy, `linearize(centred(f, params, scale), params)`.

    Raises ValueError for outputs and targets that are not (N, 1), or a `most` that is not a
    positive integer.
    """

    def move(residual, kernel):
        values, vectors = jnp.linalg.eigh(kernel / len(residual))
        values, modes = jnp.maximum(values, 0), vectors.T @ residual
        solved = time_to(values, modes**2 / len(residual), SOLVED * target)
        moved = flow_filter(values, jnp.minimum(time, solved)) * modes
        return vectors @ moved / len(residual)

    return _run(f, params, data, scale, target, most, move)


def steps(f: Network, params: PyTree, data, *, scale, step_size, target, most, block) -> KernelPath:
    """K = 1: gradient steps until the mean squared error is at the target, looked at once in each
    block of them. Otherwise as `flows`, `most` counting steps."""

    def move(residual, kernel):
        return step_size * residual / len(residual)

    return _run(f, params, data, scale, target, most, move, block)


def time_to(values: Float[Array, " R"], weights: Float[Array, " R"], target) -> Float[Array, ""]:
    """When sum_i weights_i exp(-2 values_i t), a flow's error, has fallen to the target.

    By bisection between 1e-9 and 1e9, the limits that are returned beyond them.
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
    outputs = output_shape(f, params, inputs)
    same_shape(outputs, y)
    if outputs.shape[1:] != (1,):
        raise ValueError(f"f must have one output, (N, 1), got shape {outputs.shape}")
    positive_integer("most", most)
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
