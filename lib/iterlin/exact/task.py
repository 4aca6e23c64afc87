"""The training problem that an engine solves, and the progress of one linearisation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.linearise import examples
from iterlin.linearise.compiled import SharedJit
from iterlin.linearise.linearization import Network
from iterlin.training.losses import Loss
from iterlin.training.schedules import Solved


class Task(NamedTuple):
    """The objective and the settings that all linearisations of a run share.

    Each linearisation minimises loss(f_lin(theta, x), y) + penalty ||theta - theta_s||^2 on the
    full batch.

    Attributes:
        f: The network of the trained parameters: f(params, x) -> outputs (N, ...).
        data: Inputs and targets (x, y) of N examples.
        loss: loss(outputs, y) -> a number.
        step_size: The step size eta of gradient descent.
        penalty: Factor of ||theta - theta_s||^2.
        tolerance: For a flow, the error of each integration step (`flow.advance`). For a minimum,
            the certificate at which Newton's method stops (`newton.minimize`).
        memory_limit: Bytes for a kernel, or for stored activations.
        solved: Rule by which a linearisation ends early; None for no such rule.
    """

    f: Network
    data: tuple[PyTree, PyTree]
    loss: Loss
    step_size: float | Array
    penalty: float | Array
    tolerance: float
    memory_limit: int
    solved: Solved | None


class Position(NamedTuple):
    """How far an engine has trained one linearisation.

    Attributes:
        anchor: Parameters theta_s at the expansion.
        inner: The engine's own state, from which it continues.
        steps: Gradient steps since theta_s that this position corresponds to.
        evaluations: Products with J J^T, or decompositions of J, so far.
        stability: eta lambda_max of the linearised problem; NaN if the engine does not compute it.
        solved: Whether the task's rule `solved` is met. Training then stops here.
        failed: Whether the engine cannot continue, because a value is not finite.
    """

    anchor: PyTree
    inner: Any
    steps: int = 0
    evaluations: int = 0
    stability: float = np.nan
    solved: bool = False
    failed: bool = False


def slice_size(f: Network, params: PyTree, x: PyTree, memory_limit: int) -> int | None:
    """Return how many examples' activations fit into memory together; None if all of them do."""
    saved = jax.eval_shape(lambda p: jax.vjp(lambda q: f(q, x), p)[1], params)
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(saved))
    if needed <= memory_limit:
        return None
    return max(1, int(examples.num_examples(x) * memory_limit / needed))


def quadratic(loss: Loss, y: PyTree) -> tuple[float, Array] | None:
    """Return c > 0 and t if the gradient of the loss is c (outputs - t), as for a squared error.

    The gradient is compared with that formula at random outputs of two sizes. None for any other
    loss, and if y is not one floating point array.
    """
    if not jax.tree_util.all_leaves([y]) or not jnp.issubdtype(y.dtype, jnp.floating):
        return None

    dtype = jax.dtypes.canonicalize_dtype(jnp.float64)  # at least that of the outputs

    def compare(y):
        gradient = jax.grad(loss)
        here = gradient(jnp.zeros(y.shape, dtype), y)
        keys = jax.random.split(jax.random.key(0), 2)
        moves = [
            size * jax.random.normal(key, y.shape, dtype)
            for key, size in zip(keys, (1.0, 30.0), strict=True)
        ]
        changes = [gradient(move, y) - here for move in moves]
        factor = jnp.vdot(changes[0], moves[0]) / jnp.vdot(moves[0], moves[0])
        agrees = factor > 0
        for move, change in zip(moves, changes, strict=True):
            scale = jnp.abs(factor) * jnp.max(jnp.abs(move)) + jnp.max(jnp.abs(here))
            rounding = 1e3 * jnp.finfo(dtype).eps * scale
            agrees &= jnp.all(jnp.abs(change - factor * move) <= rounding)
        return factor, -here / factor, agrees

    factor, targets, agrees = SharedJit(compare)(y)
    return (float(factor), targets) if agrees else None
