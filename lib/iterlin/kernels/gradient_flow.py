"""Train the linearised model in closed form: any time or number of steps from one decomposition.

With f(theta) = f_s + J (theta - theta_s), z = f_s - y, the loss 1/2 ||f - y||^2 (a sum, not divided
by N) and J = U S V^T of any rank, training moves theta_s by -V S g(S^2) U^T z, with a filter g of
`spectral_filters`. K steps cost as much as one. This is Lemma 3.2.1 for any rank. For a mean loss,
divide the step size or the time by N.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.ntk import ntk_matrix
from iterlin.linearise.decomposition import thin_svd
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.linearization import Network, jacobian, output_shape
from iterlin.linearise.parameters import Trainable, bind_fixed, combine, partition
from iterlin.linearise.precision import full_precision
from iterlin.linearise.spectral_filters import (
    MAX_STEPS,
    damping_filter,
    descent_filter,
    flow_filter,
    log_contraction,
    rounding_of,
    steps_and_parity,
    without_noise,
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
    inside_trace,
    is_traced,
)


class Eigenmodes(NamedTuple):
    """The linearised least-squares problem in the singular directions of its Jacobian J.

    It is a pytree, so a jitted function may take and return it.

    Attributes:
        params: The trained leaves of the parameters theta_s (`parameters.partition`).
        singular_values: Singular values of J (R,), 0 where J is rank deficient.
        coefficients: U^T z (R,), the residual along the left singular vectors.
        spectrum: Eigenvalues of J J^T (R,) that filters take. If J J^T was decomposed, eigenvalues
            too small to be told from 0 are kept here.
        moved: Maps filter values g (R,) to V S g U^T z, a pytree like params.
        fixed: The fixed leaves of the parameters.
    """

    params: PyTree
    singular_values: Float[Array, " R"]
    coefficients: Float[Array, " R"]
    spectrum: Float[Array, " R"]
    moved: Callable[[Array], PyTree]
    fixed: PyTree = ()

    @property
    def eigenvalues(self) -> Float[Array, " R"]:
        """Eigenvalues of the kernel J J^T (R,): squared singular values, not divided by N."""
        return self.singular_values**2

    @full_precision()
    def displaced(self, filtered: Float[Array, " R"]) -> PyTree:
        """Return theta_s - V S g U^T z for filter values g (R,), with the fixed parameters."""
        filtered = filtered.astype(self.spectrum.dtype)
        return combine(optax.tree.sub(self.params, self.moved(filtered)), self.fixed)

    def flow(self, time) -> PyTree:
        """Return the parameters after gradient flow.

        Args:
            time: The time t >= 0; infinity gives theta_s - J^+ z.

        Returns:
            All parameters, with the fixed ones.

        Raises:
            ValueError: If the time is negative or NaN.
        """
        check_non_negative("time", time, scalar=True, infinity=True)
        return self.displaced(flow_filter(self.spectrum, time))

    def descent(self, step_size, num_steps) -> PyTree:
        """Return the parameters after gradient descent on the linearised model.

        Args:
            step_size: The step size eta > 0.
            num_steps: The number of steps, a positive integer.

        Returns:
            All parameters, with the fixed ones.

        Raises:
            ValueError: If step_size is not positive and finite or num_steps is not a positive
                integer.
        """
        check_positive("step_size", step_size, scalar=True)
        check_positive_integer("num_steps", num_steps, below=MAX_STEPS)
        return self.displaced(descent_filter(self.spectrum, step_size, num_steps))

    def damped(self, damping) -> PyTree:
        """Return the parameters after the damped Gauss-Newton step of eq. (10).

        Args:
            damping: The damping lambda >= 0; 0 gives the step of minimum norm.

        Returns:
            All parameters, with the fixed ones.

        Raises:
            ValueError: If the damping is negative, infinite or NaN.
        """
        check_non_negative("damping", damping, scalar=True)
        return self.displaced(damping_filter(self.spectrum, damping))

    def residual_ratio(self, step_size, num_steps) -> Float[Array, ""]:
        """Return ||J^T z_K|| / ||J^T z|| after K gradient steps.

        K steps are a truncated Gauss-Newton step (Algorithm 2) of this tolerance beta.

        Args:
            step_size: The step size eta > 0.
            num_steps: The number of steps K >= 0.

        Returns:
            The ratio; 0 if J^T z is 0.

        Raises:
            ValueError: If step_size is not positive and finite or num_steps is not an integer of
                at least 0.
        """
        check_positive("step_size", step_size, scalar=True)
        check_non_negative_integer("num_steps", num_steps, below=MAX_STEPS)
        steps, _ = steps_and_parity(num_steps)
        weights = (self.singular_values * self.coefficients) ** 2
        total = jnp.sum(weights)
        # A mode that one step ends has the logarithm -inf, which 0 steps would make NaN.
        logs = jnp.maximum(log_contraction(step_size * self.eigenvalues), -1e30)
        contraction = jnp.exp(2 * steps * logs)
        return jnp.where(
            total > 0, jnp.sqrt(jnp.sum(weights * contraction) / jnp.where(total > 0, total, 1)), 0
        )


@on_any_device
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
    """Decompose the linearised least-squares problem of a network.

    If J (N O, P) fits into memory_limit, its singular value decomposition is computed. Singular
    values below eps max(n, sqrt(m)) s_max count as zero, for the smaller n and the larger m of
    N O and P. Otherwise the kernel J J^T is built in blocks and its eigendecomposition is computed.
    J is then not stored, but eigenvalues below eps max(10, sqrt(N O)) l_max cannot be told from
    zero: a filter may not divide by them.

    Args:
        f: The network, f(params, x).
        params: The parameters theta_s to expand at, in float32 or wider.
        x: Inputs of N examples.
        y: Targets, shaped as the outputs.
        memory_limit: The largest size of J, in bytes, or of what is kept to build the kernel.
        independent: Whether f treats its examples independently (see `jacobian`). If not, J must
            fit into memory_limit.
        trainable: Which parameters are trained (`parameters.partition`); None for all.

    Returns:
        The problem in its singular directions.

    Raises:
        ValueError: If y is not one array shaped as the outputs; params are narrower than float32;
            memory_limit is not a positive integer; parameters, outputs, targets or derivatives are
            not finite (unless traced); and as `jacobian`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> modes = il.eigenmodes(lambda p, x: x @ p, jnp.zeros(2), x, jnp.ones(2))
    >>> print(modes.eigenvalues.round(2), modes.flow(jnp.inf).round(3))
    [29.87  0.13] [-1.  1.]
    """
    check_positive_integer("memory_limit", memory_limit)
    check_targets(output_shape(f, params, x), y)
    trained, fixed = partition(params, trainable)
    flat, unravel = ravel_pytree(trained)
    f, y = _with_outputs_in(flat.dtype, f, params, x), jnp.asarray(y, flat.dtype)
    network = bind_fixed(f, fixed)
    check_float32_or_wider("params", flat.dtype)
    check_finite("params", trained)
    check_finite("targets", y)
    size = y.size * flat.size * flat.dtype.itemsize
    if size > memory_limit and not independent:
        raise ValueError(
            f"the Jacobian takes {size} bytes, more than memory_limit={memory_limit}, and can be "
            "worked on in blocks only for independent examples"
        )
    if size <= memory_limit:
        outputs = network(trained, x)
        check_finite("outputs of f", outputs)
        matrix = jacobian(network, trained, x, independent=independent)
        check_finite("the Jacobian", matrix)
        left, values, right = thin_svd(matrix)
        # Rounding errors of sums of n numbers grow like sqrt(n).
        sizes = sorted([y.size, flat.size])
        threshold = max(sizes[0], sizes[1] ** 0.5) * jnp.finfo(values.dtype).eps * jnp.max(values)
        values = jnp.where(values > threshold, values, 0)
        spectrum = values**2
        coefficients = left.T @ (outputs - y).reshape(-1)
        moved = Partial(partial(_by_vectors, unravel), values * coefficients, right)
    else:
        outputs, pull = jax.vjp(lambda p: network(p, x).reshape(-1), trained)
        check_finite("outputs of f", outputs)
        kernel = ntk_matrix(f, params, x, trainable=trainable, memory_limit=memory_limit)
        check_finite("the kernel J J^T", kernel)
        eigenvalues, left = jnp.linalg.eigh(kernel)
        noise, spectrum = rounding_of(eigenvalues), jnp.maximum(eigenvalues, 0)
        values = jnp.sqrt(jnp.where(eigenvalues > noise, eigenvalues, 0))
        coefficients = left.T @ (outputs - y.reshape(-1))
        moved = Partial(_by_product, pull, left, coefficients, spectrum, noise)
    return Eigenmodes(trained, values, coefficients, spectrum, moved, fixed)


def _with_outputs_in(dtype, f: Network, params: PyTree, x: Any) -> Network:
    """Return the network with outputs of this type."""
    if output_shape(f, params, x).dtype == dtype:
        return f
    return lambda params, x: f(params, x).astype(dtype)


def _by_vectors(unravel, weights, right, filtered):
    """Return V S g U^T z, from the weights S U^T z and V^T."""
    return unravel((filtered * weights) @ right)


def _by_product(pull, left, coefficients, spectrum, noise, filtered):
    """Return J^T U g U^T z, for pull(u) = (J^T u,)."""
    weights = without_noise(filtered, spectrum, noise) * coefficients
    return pull(left @ weights)[0]


def linearized_gradient_flow(
    f: Network, params: PyTree, x: Any, y: Array, *, time, trainable: Trainable = None
) -> PyTree:
    """Train the linearised model by gradient flow of 1/2 ||f_lin - y||^2 (Lemma 3.2.1, any rank).

    Args:
        f: The network, f(params, x).
        params: The parameters to expand at and to start from.
        x: Inputs of N examples.
        y: Targets, shaped as the outputs.
        time: The time t >= 0; infinity gives params - J^+ (f - y).
        trainable: Which parameters are trained (`parameters.partition`); None for all.

    Returns:
        The trained parameters. `linearize(f, params)(result, x_new)` gives outputs on new inputs.

    Raises:
        ValueError: If the time is negative or NaN, and as `eigenmodes`.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> print(il.linearized_gradient_flow(f, jnp.zeros(2), x, y, time=1.0).round(3))
    [0.    1.264]
    """
    check_non_negative("time", time, infinity=True)
    return eigenmodes(f, params, x, y, trainable=trainable).flow(time)


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
    """Train the linearised model by gradient descent on 1/2 ||f_lin - y||^2, in closed form.

    The result equals, to rounding, the steps of Algorithm 3 between two re-linearisations. The cost
    does not depend on their number. As it grows the result converges to params - J^+ (f - y) for
    every y if and only if 0 < step_size < 2 / lambda_max(J J^T).

    Args:
        f: The network, f(params, x).
        params: The parameters to expand at and to start from.
        x: Inputs of N examples.
        y: Targets, shaped as the outputs.
        step_size: The step size eta > 0 for the summed loss, which is not divided by N.
        num_steps: The number of steps K.
        trainable: Which parameters are trained (`parameters.partition`); None for all.

    Returns:
        The trained parameters.

    Raises:
        ValueError: If step_size is not positive and finite, num_steps is not a positive integer,
            and as `eigenmodes`.

    >>> f, x, y = lambda p, x: jnp.exp(x @ p), jnp.eye(2), jnp.array([1.0, 3.0])
    >>> settings = {"step_size": 0.001, "num_steps": 1000}
    >>> print(il.linearized_gradient_descent(f, jnp.zeros(2), x, y, **settings).round(3))
    [0.    1.265]
    """
    check_positive("step_size", step_size)
    check_positive_integer("num_steps", num_steps, below=MAX_STEPS)
    return eigenmodes(f, params, x, y, trainable=trainable).descent(step_size, num_steps)


def steps_for_tolerance(modes: Eigenmodes, *, step_size: float, beta: float) -> int:
    """Return the smallest K for which K gradient steps are a truncated Gauss-Newton step.

    K is the smallest solution of sum_i (1 - eta l_i)^(2K) l_i c_i^2 <= beta^2 sum_i l_i c_i^2
    (Algorithm 2), with eigenvalues l and coefficients c. It is found by bisection.

    Args:
        modes: The linearised problem.
        step_size: The step size eta, below 2 / lambda_max.
        beta: The tolerance, between 0 and 1.

    Returns:
        The number of steps K.

    Raises:
        ValueError: If beta is not in (0, 1), step_size is not below 2 / lambda_max, where descent
            does not converge, or JAX traces the call.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> modes = il.eigenmodes(lambda p, x: x @ p, jnp.zeros(2), x, jnp.ones(2))
    >>> il.steps_for_tolerance(modes, step_size=0.06, beta=0.01)
    118
    """
    if inside_trace() or any(map(is_traced, jax.tree.leaves((modes, step_size, beta)))):
        raise ValueError("steps_for_tolerance is a loop in Python: call it outside of jax.jit")
    check_open_unit_interval("beta", beta, scalar=True)
    check_positive("step_size", step_size, scalar=True)
    # In the type of the eigenvalues, in which their modes must shrink.
    if not jnp.all(step_size * modes.eigenvalues < 2):
        limit = 2 / float(jnp.max(modes.eigenvalues))
        raise ValueError(f"step_size must be below 2 / lambda_max = {limit:.3g}, got {step_size!r}")
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
