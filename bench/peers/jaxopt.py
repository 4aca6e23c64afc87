"""jaxopt: its Levenberg-Marquardt, with adapted damping and its default, conjugate gradients."""

import jax
import jaxopt
from jax.flatten_util import ravel_pytree

from bench import worker
from bench.peers import quintic


def gauss_newton(settings, arrays):
    jax.config.update("jax_enable_x64", True)
    params, residual = quintic.problem(arrays)
    example = jax.tree.map(lambda leaf: leaf[0], params)
    _, unravel = ravel_pytree(example)
    solver = jaxopt.LevenbergMarquardt(
        residual_fun=lambda vector: residual(unravel(vector)),
        maxiter=settings["max_steps"],
        tol=0.0,
    )

    def begin(start):
        vector = ravel_pytree(start)[0]
        return vector, solver.init_state(vector)

    def step(state):
        return tuple(solver.update(*state))

    return quintic.prepared(
        settings, params, residual, begin, step, lambda state: unravel(state[0])
    )


if __name__ == "__main__":
    worker.serve({"gauss_newton": gauss_newton}, packages=("jaxopt", "jax", "jaxlib", "numpy"))
