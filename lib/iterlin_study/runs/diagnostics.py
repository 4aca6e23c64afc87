"""How far a frozen kernel can be trusted: its largest eigenvalues and how it drifts in a period."""

import jax
import jax.numpy as jnp
import optax
from iterlin.kernels.ntk import kernel_drift
from iterlin.linearise.krylov import power_iteration
from iterlin.linearise.linearization import Network, jacobian_products, tree_sub
from iterlin.training.losses import Loss
from jaxtyping import Array, Float, PyTree

ITERATIONS = 10


def kernel_diagnostics(
    f: Network, params: PyTree, anchor: PyTree, sample: tuple[Array, Array], loss: Loss
) -> dict[str, Float[Array, ""]]:
    """Of the kernel at the anchor theta_s, on a sample of M examples with a mean loss:

    kernel_eigenvalue: lambda_max(J J^T) / M; gradient descent on half the mean squared error is
    stable at a frozen kernel up to 2 over it. curvature: lambda_max(J^T H J), H the Hessian of the
    (mean) loss at the proxy's outputs: the same boundary for cross-entropy, at this moment. Both by
    power iteration, hence from below. kernel_drift: relative change, theta_s to theta, of the
    kernel of a random +-1 combination of the outputs, whose mean is the trace kernel.
    parameter_distance: ||theta - theta_s||.
    """
    x, y = sample
    outputs, jvp, vjp = jacobian_products(f, anchor, x)
    displacement = tree_sub(params, anchor)
    proxy = outputs + jvp(displacement)
    gradient = jax.grad(loss)

    def loss_hessian(u):
        return jax.jvp(lambda o: gradient(o, y), (proxy,), (u,))[1]

    def largest(curved):
        """The largest eigenvalue of J J^T, or of H J J^T, which has those of J^T H J but zero."""

        def weighted(u):
            return jnp.where(curved, loss_hessian(u), u)

        return _largest(lambda u: weighted(jvp(vjp(u))), weighted(start))

    start = jax.random.normal(jax.random.key(0), outputs.shape, outputs.dtype)
    signs = jax.random.rademacher(jax.random.key(1), outputs.shape[1:], outputs.dtype)
    # Each pair goes through one program, one after the other: compiling takes longer than running.
    eigenvalue, curvature = jax.lax.map(largest, jnp.array([False, True]))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), anchor, params)
    here, there = jax.lax.map(lambda theta: _kernel(f, theta, x, signs), both)
    return {
        "kernel_eigenvalue": eigenvalue / len(x),
        "curvature": curvature,
        "kernel_drift": kernel_drift(here, there),
        "parameter_distance": optax.tree.norm(displacement),
    }


def _largest(product, start):
    return power_iteration(product, start, ITERATIONS)[0]


def _kernel(f, params, x, signs):
    """Kernel of <signs, f(params, x)> on at most 32 examples."""
    x = x[:32]

    def combination(theta, example):
        return jnp.sum(signs * f(theta, example[None])[0])

    gradients = jax.vmap(jax.grad(combination), (None, 0))(params, x)
    flat = [leaf.reshape(len(x), -1) for leaf in jax.tree.leaves(gradients)]
    return sum(leaf @ leaf.T for leaf in flat)
