"""optimistix: its Levenberg-Marquardt, and its damped step with the damping held fixed.

Conjugate gradients solve the linear problems: its factorisations are of P x P matrices or larger,
and would take minutes a step.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx

from bench import worker
from bench.peers import plain


class Fixed(optx.AbstractGaussNewton):
    """Steps (J^T J + damping I)^-1 J^T r, each accepted: the algorithm that the library runs."""

    rtol: float
    atol: float
    norm: Callable
    descent: optx.AbstractDescent
    search: optx.AbstractSearch
    verbose: Callable

    def __init__(self, damping, linear_solver):
        self.verbose = lambda **_: None
        self.rtol = self.atol = 1e-30
        self.norm = optx.max_norm
        self.descent = optx.DampedNewtonDescent(linear_solver=linear_solver)
        # The descent divides by it.
        self.search = optx.LearningRate(1 / damping)


def gauss_newton(settings, arrays):
    """Solve the quintic from each initialisation until the target loss is reached."""
    jax.config.update("jax_enable_x64", True)
    linear = lx.Normal(lx.CG(rtol=1e-6, atol=1e-6))
    if settings["adaptive"]:
        method = optx.LevenbergMarquardt(rtol=1e-30, atol=1e-30, linear_solver=linear)
    else:
        method = Fixed(settings["damping"], linear)
    params, x, y = jax.device_put([arrays[name] for name in ("params", "x", "y")])

    def residual(p, args):
        return (plain.mlp(p, x) - y).ravel(), None

    def loss(p):
        return 0.5 * jnp.sum(residual(p, None)[0] ** 2)

    def one(start):
        shape = jax.eval_shape(residual, start, None)[0]
        state = method.init(residual, start, None, {}, shape, None, frozenset())
        dynamic, static = eqx.partition(state, eqx.is_array)

        def going(carry):
            p, _, count = carry
            return (loss(p) > settings["target"]) & (count < settings["max_steps"])

        def advance(carry):
            p, dynamic, count = carry
            state = eqx.combine(dynamic, static)
            p, state, _ = method.step(residual, p, None, {}, state, frozenset())
            return p, eqx.filter(state, eqx.is_array), count + 1

        return loss(jax.lax.while_loop(going, advance, (start, dynamic, 0))[0])

    solve = jax.jit(lambda params: jax.lax.map(one, params))
    return plain.prepared(solve, (params,), settings["target"])


if __name__ == "__main__":
    packages = ("optimistix", "lineax", "jax", "jaxlib", "numpy")
    worker.serve({"gauss_newton": gauss_newton}, packages=packages)
