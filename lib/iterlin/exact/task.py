"""The linear problems of one run: what they have in common, and how far one has been trained."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.linearise import examples
from iterlin.linearise.costs import vjp_residual_bytes
from iterlin.linearise.linearization import Network
from iterlin.linearise.parameters import Trainable
from iterlin.training.losses import Loss
from iterlin.training.schedules import Solved


class Task(NamedTuple):
    """What all linearisations of a run have in common: minimise loss(f(params, x), y) + penalty
    ||theta - theta_s||^2 on data = (x, y), full batch, by steps of step_size.

    tolerance: of a flow, the error of each of its steps (`flow.advance`); of minimum, the
    certificate. memory_limit: bytes for the kernel, or for activations that are kept. solved: when
    a linearisation ends early. trainable: which of the parameters are trained.
    """

    f: Network
    data: tuple[PyTree, PyTree]
    loss: Loss
    step_size: float
    penalty: float
    tolerance: float
    memory_limit: int
    solved: Solved | None
    trainable: Trainable = None


class Position(NamedTuple):
    """How far a linearisation has been trained.

    anchor: theta_s, of which it has what is trained. inner: what the engine goes on from. fixed:
    the other parameters. steps: gradient steps since theta_s that it stands for. evaluations:
    products with J J^T so far, or decompositions. stability: eta lambda_max at the proxy's outputs
    there. solved: it has met the task's rule, and stays. failed: it cannot go on, as what it
    computes is not finite.
    """

    anchor: PyTree
    inner: Any
    fixed: PyTree = ()
    steps: int = 0
    evaluations: int = 0
    stability: float = np.nan
    solved: bool = False
    failed: bool = False


def slice_size(f: Network, params: PyTree, x: PyTree, memory_limit: int) -> int | None:
    """Examples whose activations may be kept together; None where all of them fit."""
    needed = vjp_residual_bytes(f, params, x)
    if needed <= memory_limit:
        return None
    return max(1, int(examples.num_examples(x) * memory_limit / needed))


def quadratic(loss: Loss, y: PyTree) -> tuple[float, Array] | None:
    """c and t if the loss's gradient is c (outputs - t): half a squared error, whatever it is
    divided by. Found by trying, at outputs of several sizes; None for any other loss, and for
    targets that are not one array of the outputs' kind.
    """
    gradient = jax.grad(loss)
    if not jax.tree_util.all_leaves([y]) or not jnp.issubdtype(y.dtype, jnp.floating):
        return None
    zero = jnp.zeros_like(y)
    here, factor = gradient(zero, y), None
    for key, size in zip(jax.random.split(jax.random.key(0), 2), (1.0, 30.0), strict=True):
        move = size * jax.random.normal(key, y.shape, y.dtype)
        change = gradient(move, y) - here
        factor = jnp.vdot(change, move) / jnp.vdot(move, move) if factor is None else factor
        scale = jnp.abs(factor) * jnp.max(jnp.abs(move)) + jnp.max(jnp.abs(here))
        rounding = 1e3 * jnp.finfo(y.dtype).eps * scale
        if not bool((factor > 0) & jnp.all(jnp.abs(change - factor * move) <= rounding)):
            return None
    return float(factor), -here / factor
