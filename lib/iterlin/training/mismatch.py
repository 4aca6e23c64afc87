"""How far a network and its linearisation have come apart: what a schedule may look at.

Both are functions of a `TrainState`, for `schedules.when`:

    error = linearization_error(f, x)
    schedule = when(lambda state: error(state) > 0.3, check_every=10)
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearise import examples
from iterlin.linearise.linearization import Network, linearize
from iterlin.linearise.precision import full_precision
from iterlin.training.losses import Loss
from iterlin.training.state import TrainState

Measure = Callable[[TrainState], Float[Array, ""]]


def linearization_error(f: Network, x: PyTree) -> Measure:
    """error(state) = ||f(theta) - f_lin(theta)|| / ||f_lin(theta) - f(theta_s)|| on the inputs x.

    The change of the outputs that the expansion at theta_s misses, relative to the change that it
    tells, in 2-norms over all outputs of all examples: 0 where f is affine in its parameters, of
    first order in theta - theta_s elsewhere, and 0 at theta_s itself. It needs no labels. A call
    takes one Jacobian-vector product and one pass, and a few hundred examples are enough.

    Raises ValueError for an f that cannot be called, or inputs without an example.

    >>> f, x = lambda p, x: p**2 * x, jnp.ones(3)
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.1)
    >>> state = algorithm.start(jnp.array(1.0), (x, x), jax.random.key(0))
    >>> error = il.linearization_error(f, x)
    >>> print(error(state), error(state._replace(params=jnp.array(1.5))))  # 0.25 / 1
    0.0 0.25
    """
    _check(f, x)

    @full_precision()
    def error(state: TrainState) -> Float[Array, ""]:
        linear = linearize(f, state.anchor)
        told = linear(state.params, x)
        missed = jnp.linalg.norm(jnp.ravel(f(state.params, x) - told))
        change = jnp.linalg.norm(jnp.ravel(told - f(state.anchor, x)))
        return jnp.where(missed == 0, 0.0, missed / change)

    return error


def loss_ratio(f: Network, loss: Loss, x: PyTree, y: PyTree) -> Measure:
    """ratio(state) = loss(f(theta, x), y) / loss(f_lin(theta, x), y): 1 at theta_s, above 1 where
    the network does worse than the linear model that is trained in its place.

    loss(outputs, y) is positive; on held-out examples the ratio says whether what the linear model
    learns still helps the network. The network may do better, too: a ratio far below 1 is no
    agreement.

    Raises ValueError for an f or a loss that cannot be called, or inputs without an example.

    >>> f, x, y = lambda p, x: p**2 * x, jnp.ones(3), 4.0 * jnp.ones(3)
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.1)
    >>> state = algorithm.start(jnp.array(1.0), (x, y), jax.random.key(0))
    >>> ratio = il.loss_ratio(f, il.losses.squared_error, x, y)
    >>> print(ratio(state), ratio(state._replace(params=jnp.array(3.0))))  # 5^2 / 1^2
    1.0 25.0
    """
    _check(f, x)
    if not callable(loss):
        raise ValueError(f"loss must be a function (outputs, y), got {loss!r}")

    @full_precision()
    def ratio(state: TrainState) -> Float[Array, ""]:
        linear = linearize(f, state.anchor)
        return loss(f(state.params, x), y) / loss(linear(state.params, x), y)

    return ratio


def _check(f, x):
    if not callable(f):
        raise ValueError(f"f must be a function (params, x), got {f!r}")
    examples.num_examples(x, "x")
