"""jaxopt: its Levenberg-Marquardt, with adapted damping and its default, conjugate gradients."""

import jax
import jaxopt
from jax.flatten_util import ravel_pytree

from bench import worker
from bench.peers import plain


def gauss_newton(settings, arrays):
    jax.config.update("jax_enable_x64", True)

    def solver(residual, example):
        _, unravel = ravel_pytree(example)
        method = jaxopt.LevenbergMarquardt(
            residual_fun=lambda vector: residual(unravel(vector)),
            maxiter=settings["max_steps"],
            tol=0.0,
        )

        def begin(start):
            vector = ravel_pytree(start)[0]
            return vector, method.init_state(vector)

        return begin, lambda state: tuple(method.update(*state)), lambda state: unravel(state[0])

    return plain.least_squares(settings, arrays, solver)


if __name__ == "__main__":
    worker.serve({"gauss_newton": gauss_newton}, packages=("jaxopt", "jax", "jaxlib", "numpy"))
