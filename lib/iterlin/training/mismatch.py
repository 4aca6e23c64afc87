"""Measure the mismatch between a network and its linearisation, for adaptive schedules.

Each measure is a function of a `TrainState`, for `schedules.when`:

    error = linearization_error(f, x)
    schedule = when(lambda state: error(state) > 0.3, check_every=10, max_period=100)
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearise import examples
from iterlin.linearise.linearization import Network, linearize
from iterlin.linearise.precision import full_precision, widened
from iterlin.training.losses import Loss
from iterlin.training.state import TrainState

Measure = Callable[[TrainState], Float[Array, ""]]


def linearization_error(f: Network, x: PyTree) -> Measure:
    """Make a function that returns the relative error of the linearised outputs.

    error(state) = ||f(theta) - f_lin(theta)|| / ||f_lin(theta) - f(theta_s)||, in 2-norms over all
    outputs of all examples in x. The error is 0 at theta_s and for a network that is affine in its
    parameters; otherwise it is of first order in theta - theta_s. It needs no labels. A call costs
    one Jacobian-vector product and one forward pass; a few hundred examples are enough.

    Args:
        f: The network f(params, x) -> outputs (N, ...).
        x: Inputs, arrays that lead with the N examples.

    Returns:
        error(state) -> the relative error, a scalar without unit.

    Raises:
        ValueError: If f is not a function, or x holds no example.

    >>> f, x = lambda p, x: p**2 * x, jnp.ones(3)
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.1)
    >>> state = il.Step(algorithm, schedule=1).start(jnp.array(1.0), (x, x))
    >>> error = il.linearization_error(f, x)
    >>> print(error(state), error(state._replace(params=jnp.array(1.5))))  # 0.25 / 1
    0.0 0.25
    """
    _check(f, x)

    @full_precision()
    def error(state: TrainState) -> Float[Array, ""]:
        linear = linearize(f, state.anchor)
        predicted = linear(state.params, x)
        missed = jnp.linalg.norm(widened(jnp.ravel(f(state.params, x) - predicted)))
        change = jnp.linalg.norm(widened(jnp.ravel(predicted - f(state.anchor, x))))
        return jnp.where(missed == 0, 0.0, missed / change)

    return error


def loss_ratio(f: Network, loss: Loss, x: PyTree, y: PyTree) -> Measure:
    """Make a function that returns the loss of the network over the loss of its linearisation.

    ratio(state) = loss(f(theta, x), y) / loss(f_lin(theta, x), y). The ratio is 1 at theta_s and
    above 1 where the network does worse than the linear model that is trained in its place. On
    held-out examples the ratio shows whether progress of the linear model still helps the network.
    A ratio far below 1 is a mismatch, too.

    Args:
        f: The network f(params, x) -> outputs (N, ...).
        loss: loss(outputs, y) -> a positive number.
        x: Inputs, arrays that lead with the N examples.
        y: Targets of these examples.

    Returns:
        ratio(state) -> the ratio, a scalar without unit.

    Raises:
        ValueError: If f or loss is not a function, or x holds no example.

    >>> f, x, y = lambda p, x: p**2 * x, jnp.ones(3), 4.0 * jnp.ones(3)
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.1)
    >>> state = il.Step(algorithm, schedule=1).start(jnp.array(1.0), (x, y))
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


def _check(f: Any, x: PyTree) -> None:
    """Raise ValueError unless f is a function and x holds an example."""
    if not callable(f):
        raise ValueError(f"f must be a function (params, x), got {f!r}")
    examples.num_examples(x, "x")
