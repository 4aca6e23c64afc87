"""optimistix: its Levenberg-Marquardt, and its damped step with the damping held fixed.

Conjugate gradients solve the linear problems: its factorisations are of P x P matrices or larger,
and would take minutes a step.
"""

from collections.abc import Callable

import equinox as eqx
import jax
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
    jax.config.update("jax_enable_x64", True)
    linear = lx.Normal(lx.CG(rtol=settings["linear"], atol=settings["linear"]))
    if settings["adaptive"]:
        method = optx.LevenbergMarquardt(rtol=1e-30, atol=1e-30, linear_solver=linear)
    else:
        method = Fixed(settings["damping"], linear)

    def solver(residual, example):
        def function(p, args):
            return residual(p), None

        shape = jax.eval_shape(lambda p: function(p, None)[0], example)

        def first(start):
            state = method.init(function, start, None, {}, shape, None, frozenset())
            return eqx.partition(state, eqx.is_array)

        _, static = first(example)

        def step(state):
            y, dynamic = state
            whole = eqx.combine(dynamic, static)
            y, after, _ = method.step(function, y, None, {}, whole, frozenset())
            return y, eqx.filter(after, eqx.is_array)

        return lambda start: (start, first(start)[0]), step, lambda state: state[0]

    return plain.least_squares(settings, arrays, solver)


if __name__ == "__main__":
    packages = ("optimistix", "lineax", "jax", "jaxlib", "numpy")
    worker.serve({"gauss_newton": gauss_newton}, packages=packages)
