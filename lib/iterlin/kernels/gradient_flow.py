"""Training the linearised model exactly: every time and every K from one decomposition.

With f(theta) = f_s + J (theta - theta_s), z = f_s - y, loss 1/2 ||f - y||^2 (a sum, not divided by
N) and J = U S V^T of any rank, each way of training moves theta_s by -V S g(S^2) U^T z, g a filter
of `spectral_filters`: K steps cost what one step costs. This is Lemma 3.2.1 for every rank. A mean
loss divides l and z by N: scale eta (or t) by 1/N instead.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.ntk import ntk_matrix
from iterlin.linearise.decomposition import thin_svd
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.linearization import (
    Network,
    jacobian,
    jacobian_products,
    output_shape,
    tree_sub,
)
from iterlin.linearise.parameters import Trainable, bind_fixed, combine, partition
from iterlin.linearise.precision import full_precision
from iterlin.linearise.spectral_filters import (
    MAX_STEPS,
    damping_filter,
    descent_filter,
    flow_filter,
    log_contraction,
    steps_and_parity,
)
from iterlin.linearise.validation import (
    check_finite,
    check_float32_or_wider,
    check_non_negative,
    check_non_negative_integer,
    check_open_unit_interval,
    check_positive,
    check_positive_integer,
    check_targets,
)


class Eigenmodes(NamedTuple):
    """The linearised least-squares problem in its singular directions.

    params: those that are trained, fixed the others (`parameters.partition`). singular_values (R,)
    with zeros where J is rank deficient; coefficients U^T z (R,); combine maps weights (R,) to the
    pytree sum_i weights_i v_i.
    """

    params: PyTree
    singular_values: Float[Array, " R"]
    coefficients: Float[Array, " R"]
    combine: Callable[[Array], PyTree]
    fixed: PyTree = ()

    @property
    def eigenvalues(self) -> Float[Array, " R"]:
        """Of the kernel J J^T on its range: squared singular values; not divided by N."""
        return self.singular_values**2

    @full_precision()
    def displaced(self, filtered: Float[Array, " R"]) -> PyTree:
        """All parameters, at theta_s - V S g U^T z for the filter values g (R,)."""
        moved = self.combine(self.singular_values * filtered * self.coefficients)
        return combine(tree_sub(self.params, moved), self.fixed)

    def flow(self, time) -> PyTree:
        """Parameters after gradient flow for `time` >= 0; infinity gives theta_s - J^+ z."""
        check_non_negative("time", time, infinity=True)
        return self.displaced(flow_filter(self.eigenvalues, time))

    def descent(self, step_size, num_steps) -> PyTree:
        """Parameters after `num_steps` gradient steps of `step_size` on the linearised model."""
        check_positive("step_size", step_size)
        if np.ndim(num_steps) == 0:
            check_positive_integer("num_steps", num_steps, below=MAX_STEPS)
        return self.displaced(descent_filter(self.eigenvalues, step_size, num_steps))

    def damped(self, damping) -> PyTree:
        """The damped Gauss-Newton step of eq. (10); damping 0 is the minimum-norm step."""
        check_non_negative("damping", damping)
        return self.displaced(damping_filter(self.eigenvalues, damping))

    def residual_ratio(self, step_size, num_steps) -> Float[Array, ""]:
        """||J^T z_K|| / ||J^T z|| after K steps: the beta for which they are a TGN step (Alg 2)."""
        check_positive("step_size", step_size)
        if np.ndim(num_steps) == 0:
            check_non_negative_integer("num_steps", num_steps, below=MAX_STEPS)
        steps, _ = steps_and_parity(num_steps)
        weights = (self.singular_values * self.coefficients) ** 2
        total = jnp.sum(weights)
        contraction = jnp.exp(2 * steps * log_contraction(step_size * self.eigenvalues))
        return jnp.where(
            total > 0, jnp.sqrt(jnp.sum(weights * contraction) / jnp.where(total > 0, total, 1)), 0
        )


@with_auto_axes
@full_precision()
def eigenmodes(
    f: Network,
    params: PyTree,
    x: Any,
    y: Array,
    *,
    memory_limit: int = 2**30,
    independent: bool = True,
    trainable: Trainable = None,
) -> Eigenmodes:
    """Decompose the linearised problem at params on inputs x and targets y, shaped as the outputs.

    If J (N O, P) fits `memory_limit` bytes: its singular value decomposition, accurate down to
    singular values eps max(N O, P) s_max, below which they count as zero. Otherwise the
    eigendecomposition of the kernel J J^T, built in blocks within that bound: J is never stored,
    but only singular values above sqrt(eps N O) s_max are told from zero. `independent=False` is
    for an f that couples its examples (see `jacobian`); then J must fit.

    Raises ValueError if y is not one array of the shape of the outputs, for parameters narrower
    than float32, a memory_limit that is not a positive integer, parameters, outputs, targets or
    derivatives that are not finite (unless traced), and as `jacobian`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> modes = il.eigenmodes(lambda p, x: x @ p, jnp.zeros(2), x, jnp.ones(2))
    >>> print(modes.eigenvalues.round(2), modes.flow(jnp.inf).round(3))
    [29.87  0.13] [-1.  1.]
    """
    check_positive_integer("memory_limit", memory_limit)
    check_targets(output_shape(f, params, x), y)
    moving, fixed = partition(params, trainable)
    network = bind_fixed(f, fixed)
    flat, unravel = ravel_pytree(moving)
    check_float32_or_wider("params", flat.dtype)
    check_finite("params", moving)
    check_finite("targets", y)
    size = y.size * flat.size * flat.dtype.itemsize
    if size > memory_limit and not independent:
        raise ValueError(
            f"the Jacobian takes {size} bytes, more than memory_limit={memory_limit}, and can be "
            "worked on in blocks only for independent examples"
        )
    if size <= memory_limit:
        outputs = network(moving, x)
        check_finite("outputs of f", outputs)
        matrix = jacobian(network, moving, x, independent=independent)
        check_finite("the Jacobian", matrix)
        left, values, right = thin_svd(matrix)
        threshold = max(y.size, flat.size) * jnp.finfo(values.dtype).eps * jnp.max(values)
        values = jnp.where(values > threshold, values, 0)

        def combine(weights):
            return unravel(weights @ right)
    else:
        outputs, _, vjp = jacobian_products(network, moving, x)
        check_finite("outputs of f", outputs)
        kernel = ntk_matrix(f, params, x, trainable=trainable, memory_limit=memory_limit)
        check_finite("the kernel J J^T", kernel)
        eigenvalues, left = jnp.linalg.eigh(kernel)
        threshold = y.size * jnp.finfo(eigenvalues.dtype).eps * jnp.max(eigenvalues)
        values = jnp.sqrt(jnp.where(eigenvalues > threshold, eigenvalues, 0))

        def combine(weights):
            # v_i = J^T u_i / s_i; directions of zero singular value carry no weight.
            scaled = jnp.where(values > 0, weights / jnp.where(values > 0, values, 1), 0)
            return vjp((left @ scaled).reshape(y.shape))

    return Eigenmodes(moving, values, left.T @ (outputs - y).reshape(-1), combine, fixed)


@full_precision()
def linearized_gradient_flow(
    f: Network, params: PyTree, x: Any, y: Array, *, time, trainable: Trainable = None
) -> PyTree:
    """Gradient flow of 1/2 ||f_lin - y||^2 from params for `time` (Lemma 3.2.1, any rank).

    time = infinity gives params - J^+ (f - y). Outputs at new inputs are
    `linearize(f, params)(result, x_new)`. Raises ValueError for a negative or NaN time, and as
    `eigenmodes`.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> print(il.linearized_gradient_flow(f, jnp.zeros(2), x, y, time=1.0).round(3))
    [0.    1.264]
    """
    check_non_negative("time", time, infinity=True)
    return eigenmodes(f, params, x, y, trainable=trainable).flow(time)


@full_precision()
def linearized_gradient_descent(
    f: Network,
    params: PyTree,
    x: Any,
    y: Array,
    *,
    step_size,
    num_steps: int,
    trainable: Trainable = None,
) -> PyTree:
    """`num_steps` gradient steps on 1/2 ||f_lin - y||^2 (summed, not divided by N), in one go.

    Equal to the explicit steps of Algorithm 3 between two re-linearisations up to rounding, at a
    cost that does not depend on their number. Converges to params - J^+ (f - y) for every y iff
    0 < step_size < 2 / lambda_max(J J^T). Raises ValueError for a step size that is not positive
    and finite, a number of steps that is not a positive integer, and as `eigenmodes`.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"step_size": 0.001, "num_steps": 1000}
    >>> print(il.linearized_gradient_descent(f, jnp.zeros(2), x, y, **settings).round(3))
    [0.    1.265]
    """
    check_positive("step_size", step_size)
    check_positive_integer("num_steps", num_steps, below=MAX_STEPS)
    return eigenmodes(f, params, x, y, trainable=trainable).descent(step_size, num_steps)


def steps_for_tolerance(modes: Eigenmodes, *, step_size: float, beta: float) -> int:
    """Smallest K whose iterate is a truncated Gauss-Newton step of tolerance beta (Algorithm 2).

    Solves sum_i (1 - eta l_i)^(2K) l_i c_i^2 <= beta^2 sum_i l_i c_i^2 by bisection. Raises
    ValueError if beta is not in (0, 1), or step_size is not below 2 / lambda_max, where no K
    would do.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> modes = il.eigenmodes(lambda p, x: x @ p, jnp.zeros(2), x, jnp.ones(2))
    >>> il.steps_for_tolerance(modes, step_size=0.06, beta=0.01)
    118
    """
    check_open_unit_interval("beta", beta)
    _stable(modes, step_size)
    if modes.residual_ratio(step_size, 1) <= beta:
        return 1
    low, high = 1, 2
    while modes.residual_ratio(step_size, high) > beta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if modes.residual_ratio(step_size, middle) <= beta else (middle, high)
        )
    return high


def worst_case_steps(modes: Eigenmodes, *, step_size: float, beta: float) -> int:
    """K that is enough for tolerance beta whatever z: ln(1/beta) / ln(1/rho), rounded up.

    rho is the largest abs(1 - eta l) over the non-zero eigenvalues. Raises as
    `steps_for_tolerance`.
    """
    check_open_unit_interval("beta", beta)
    _stable(modes, step_size)
    moving = modes.eigenvalues[modes.eigenvalues > 0]
    slowest = float(jnp.max(log_contraction(step_size * moving), initial=-jnp.inf))
    return max(1, math.ceil(math.log(beta) / slowest))


def _stable(modes, step_size) -> None:
    check_positive("step_size", step_size)
    largest = float(jnp.max(modes.eigenvalues))
    limit = 2 / largest if largest > 0 else math.inf
    if not step_size < limit:
        raise ValueError(f"step_size must be below 2 / lambda_max = {limit:.3g}, got {step_size!r}")
