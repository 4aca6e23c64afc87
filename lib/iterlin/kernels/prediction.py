"""Predictions of a trained linearised network from its kernels alone.

Gradient flow on 1/2 ||f_lin - y||^2 + damping/2 ||theta - theta_s||^2 moves the outputs on test
inputs by K_td g(K_dd) (y - f_s), with a filter g of `spectral_filters` (Jacot et al. 2018; Lee et
al. 2019). The kernels may be empirical or of an infinitely wide network (`infinite_width`).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iterlin.kernels.ntk import kernel_matrix
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.spectral_filters import (
    MAX_STEPS,
    descent_filter,
    flow_filter,
    rounding_of,
    without_noise,
)
from iterlin.linearise.validation import (
    check_float32_or_wider,
    check_non_negative,
    check_positive,
    check_positive_integer,
    is_traced,
)


@on_any_device
def predict(
    kernel_dd: Float[Array, "N N *outs"],
    y: Float[Array, "N *out"],
    kernel_td: Float[Array, "M N *outs"],
    *,
    time=math.inf,
    step_size=None,
    num_steps=None,
    outputs=0.0,
    test_outputs=0.0,
    damping=0.0,
) -> Float[Array, "M *out"]:
    """Predict outputs on test inputs after training: test_outputs + K_td g(K_dd) (y - outputs).

    The loss is the sum 1/2 ||f - y||^2 plus damping/2 ||theta - theta_s||^2. For a loss divided by
    a number, divide time or step_size by it; `predict.gradient_descent_mse` of neural-tangents
    divides by the size of y. Training to the end with a damping is kernel ridge regression. Without
    one it leaves directions in which kernel_dd is singular to rounding untrained, as the
    pseudo-inverse does. For many times use ``jax.vmap`` over them, which decomposes kernel_dd once.

    Args:
        kernel_dd: The kernel between the N training inputs: (N, N), the same for each output of y,
            or (N, N, ..., ...) between outputs, as `empirical_ntk` returns it.
        y: The targets (N, ...).
        kernel_td: The kernel between the M test inputs and the training inputs: (M, N) or
            (M, N, ..., ...).
        time: The time of gradient flow; infinity, the default, trains to the end.
        step_size: The step size of gradient descent, in place of a time.
        num_steps: The number of gradient steps, in place of a time.
        outputs: Outputs on the training inputs before training, shaped as y, or one number.
        test_outputs: Outputs on the test inputs before training, shaped as the result, or one
            number.
        damping: The strength of the penalty, one number >= 0.

    Returns:
        The outputs on the test inputs after training (M, ...).

    Raises:
        ValueError: If the shapes of kernels, outputs or test_outputs do not fit y or each other;
            kernel_dd is not symmetric, has a negative diagonal entry (unless traced) or is narrower
            than float32; time or damping is negative or NaN; damping is an array; or step_size
            comes without num_steps, num_steps without step_size, or both with a time.

    >>> kernel_dd, kernel_td = jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0, 1.0]])
    >>> print(il.predict(kernel_dd, jnp.ones(2), kernel_td))  # 1 / 2 + 1 / 1
    [1.5]
    >>> print(il.predict(kernel_dd, jnp.ones(2), kernel_td, damping=1.0).round(3))
    [0.833]
    """
    filtered = _filter(time, step_size, num_steps)
    check_non_negative("damping", damping, scalar=True)
    kernel_dd, kernel_td = jnp.asarray(kernel_dd), jnp.asarray(kernel_td)
    out = np.shape(y)[1:]
    check_float32_or_wider("kernel_dd", kernel_dd.dtype)
    _check_shapes(np.shape(y), kernel_dd.shape, kernel_td.shape)
    _check_number_or_shape("outputs", outputs, np.shape(y))
    _check_number_or_shape("test_outputs", test_outputs, (kernel_td.shape[0], *out))
    residual = jnp.asarray(y, kernel_dd.dtype) - jnp.asarray(outputs, kernel_dd.dtype)
    matrix, cross = _matrix(kernel_dd), _matrix(kernel_td)
    _check_kernel(matrix)
    eigenvalues, vectors = jnp.linalg.eigh(matrix)
    rates = jnp.maximum(eigenvalues, 0) + damping
    weights = without_noise(filtered(rates), rates, rounding_of(eigenvalues))
    coefficients = vectors.T @ residual.reshape(len(matrix), -1)
    moved = cross @ (vectors @ (weights[:, None] * coefficients))
    return jnp.asarray(test_outputs) + moved.reshape(kernel_td.shape[0], *out)


def _filter(time, step_size, num_steps):
    if step_size is None and num_steps is None:
        check_non_negative("time", time, scalar=True, infinity=True)
        return lambda eigenvalues: flow_filter(eigenvalues, time)
    if step_size is None or num_steps is None:
        raise ValueError(f"step_size and num_steps go together, got {step_size!r}, {num_steps!r}")
    if is_traced(time) or time != math.inf:
        raise ValueError(f"give either a time or step_size and num_steps, got also {time!r}")
    check_positive("step_size", step_size, scalar=True)
    check_positive_integer("num_steps", num_steps, below=MAX_STEPS)
    return lambda eigenvalues: descent_filter(eigenvalues, step_size, num_steps)


def _check_shapes(y, kernel_dd, kernel_td) -> None:
    if not y:
        raise ValueError("y must lead with the examples, got a single number")
    count, *out = y
    allowed = ((count, count), (count, count, *out, *out))
    if kernel_dd not in allowed:
        raise ValueError(
            f"kernel_dd must have shape {allowed[0]} or {allowed[1]} for y of shape {y}, "
            f"got {kernel_dd}"
        )
    if kernel_td[1:] != kernel_dd[1:]:
        raise ValueError(
            f"kernel_td must have shape (M, {', '.join(map(str, kernel_dd[1:]))}) beside kernel_dd "
            f"of shape {kernel_dd}, got {kernel_td}"
        )


def _check_kernel(matrix: Array) -> None:
    """Require a matrix that is symmetric to rounding and has no negative diagonal entry."""
    if is_traced(matrix):
        return
    found = np.asarray(matrix)
    tolerance = 1e3 * float(jnp.finfo(matrix.dtype).eps) * np.max(np.abs(found), initial=0.0)
    if np.any(np.abs(found - found.T) > tolerance):
        raise ValueError("kernel_dd must be symmetric: kernel_dd[i, j] and [j, i] differ")
    if np.any(np.diagonal(found) < -tolerance):
        raise ValueError("kernel_dd must be J J^T: an entry of its diagonal is negative")


def _check_number_or_shape(name, value, shape) -> None:
    if np.shape(value) not in ((), shape):
        raise ValueError(f"{name} must be a number or of shape {shape}, got {np.shape(value)}")


def _matrix(kernel: Array) -> Array:
    """Reshape a kernel to a matrix with a row for each output of each example."""
    if kernel.ndim == 2:
        return kernel
    outputs = math.isqrt(math.prod(kernel.shape[2:]))
    return kernel_matrix(kernel.reshape(*kernel.shape[:2], outputs, outputs))
