"""Diagnostics of a frozen kernel: its largest eigenvalue and its drift during a period."""

import jax
import jax.numpy as jnp
import optax
from iterlin.kernels.ntk import kernel_drift
from iterlin.linearise.krylov import power_iteration
from iterlin.linearise.linearization import Network, jacobian_products
from iterlin.training.losses import Loss
from jaxtyping import Array, Float, PyTree

# Steps of power iteration.
ITERATIONS = 10


def kernel_diagnostics(
    f: Network, params: PyTree, anchor: PyTree, sample: tuple[Array, Array], loss: Loss
) -> dict[str, Float[Array, ""]]:
    """Compute the largest eigenvalues of the kernel at the anchor, and how far it has drifted.

    Power iteration gives both eigenvalues and underestimates them. sample: inputs and targets of M
    examples. loss: a mean loss.

    Returns:
        A dictionary of scalars. "kernel_eigenvalue" is lambda_max(J J^T) / M: with a frozen kernel,
        gradient descent on half the mean squared error is stable for step sizes below 2 divided by
        it. "curvature" is lambda_max(J^T H J), with H the Hessian of the loss at the proxy's
        outputs: it gives the same bound for cross-entropy, at the current outputs. "kernel_drift"
        is the relative change from theta_s to theta of the kernel of a random +-1 combination of
        the outputs, whose mean is the trace kernel, on the first 32 examples.
        "parameter_distance" is ||theta - theta_s||.
    """
    x, y = sample
    outputs, jvp, vjp = jacobian_products(f, anchor, x)
    displacement = optax.tree.sub(params, anchor)
    proxy = outputs + jvp(displacement)
    gradient = jax.grad(loss)

    def loss_hessian(u):
        return jax.jvp(lambda o: gradient(o, y), (proxy,), (u,))[1]

    def largest(curved):
        """Return the largest eigenvalue of J J^T, or of H J J^T.

        J^T H J has the same non-zero eigenvalues as H J J^T.
        """

        def weighted(u):
            return jnp.where(curved, loss_hessian(u), u)

        return power_iteration(lambda u: weighted(jvp(vjp(u))), weighted(start), ITERATIONS)[0]

    start = jax.random.normal(jax.random.key(0), outputs.shape, outputs.dtype)
    signs = jax.random.rademacher(jax.random.key(1), outputs.shape[1:], outputs.dtype)
    # Compiling takes longer than running, so the two values of a pair share one program.
    eigenvalue, curvature = jax.lax.map(largest, jnp.array([False, True]))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), anchor, params)
    here, there = jax.lax.map(lambda theta: _kernel(f, theta, x, signs), both)
    return {
        "kernel_eigenvalue": eigenvalue / len(x),
        "curvature": curvature,
        "kernel_drift": kernel_drift(here, there),
        "parameter_distance": optax.tree.norm(displacement),
    }


def _kernel(f, params, x, signs):
    """Return the kernel of <signs, f(params, x)> on at most 32 examples, (32, 32)."""
    x = x[:32]

    def combination(theta, example):
        return jnp.sum(signs * f(theta, example[None])[0])

    gradients = jax.vmap(jax.grad(combination), (None, 0))(params, x)
    flat = [leaf.reshape(len(x), -1) for leaf in jax.tree.leaves(gradients)]
    return sum(leaf @ leaf.T for leaf in flat)
