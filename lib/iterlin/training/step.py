"""One step of iterative linearisation (Algorithm 3), for any loss, optimiser and schedule.

A step trains the proxy f_lin(theta) = f(theta_s) + J_s (theta - theta_s) on one batch. The schedule
says when theta_s, the anchor, becomes the current theta.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PyTree

from iterlin.linearise.compiled import as_argument
from iterlin.linearise.devices import to_array
from iterlin.linearise.linearization import linearize, output_shape
from iterlin.linearise.parameters import partition
from iterlin.linearise.precision import widened
from iterlin.linearise.slices import in_slices
from iterlin.linearise.validation import (
    check_positive,
    check_positive_integer,
    check_signature,
    describe,
)
from iterlin.training import draws
from iterlin.training.algorithm import Algorithm, LinearProblem
from iterlin.training.losses import loss_over_slices, training_accuracy
from iterlin.training.schedules import as_schedule
from iterlin.training.state import NOT_YET, TrainState


@dataclass(frozen=True)
class Step:
    """One step of a run, for a training loop of your own; most users call `train` instead.

    If `trainable` fixes some parameters, the states hold the trained parameters alone (see `bind`).

    Args:
        algorithm: The objective and the optimiser.
        schedule: When to re-linearise, as for `train`.
        batch_size: Examples of a step, drawn without replacement. The incomplete last batch of an
            epoch is dropped. None for all examples.
        augment: augment(key, x) -> x changes the inputs of a step.
        target_loss: End the run at the first linearisation at which the loss of the network, with
            the regularizer, is at most this.
        mesh: Devices that share the examples of a step, over all axes of the mesh. It requires an f
            that treats its examples independently (not checked). It has no effect if f is keyed or
            has running statistics, or if the loss is not known to be a sum (`losses.as_sum`).

    Raises:
        ValueError: For an argument of the wrong kind.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> step = il.Step(il.Algorithm(f, il.losses.squared_error, optimizer=0.5), schedule=10)
    >>> state = step.start(jnp.zeros(2), (x, y))
    >>> for _ in range(20):
    ...     state = step(state, (x, y))
    >>> print(state.step, state.updates, f(state.params, x).round(2))
    20 1 [ 0.5 -0.5]
    """

    algorithm: Algorithm
    schedule: Any
    batch_size: int | None = None
    augment: Callable[[Array, PyTree], PyTree] | None = None
    target_loss: float | None = None
    mesh: Mesh | None = None

    def __post_init__(self):
        if not isinstance(self.algorithm, Algorithm):
            raise ValueError(
                f"algorithm must be an Algorithm, got one of type {type(self.algorithm).__name__}"
            )
        object.__setattr__(self, "schedule", as_schedule(self.schedule))
        if self.augment is not None:
            if not callable(self.augment):
                raise ValueError(f"augment must be a function, got {self.augment!r}")
            check_signature("augment", self.augment, ("key", "x"))
        if self.batch_size is not None:
            check_positive_integer("batch_size", self.batch_size)
        if self.target_loss is not None:
            check_positive("target_loss", self.target_loss, scalar=True)
        if not isinstance(self.mesh, Mesh | None):
            raise ValueError(f"mesh must be a jax.sharding.Mesh, got {self.mesh!r}")

    def bind(self, fixed: PyTree) -> "Step":
        """Return the steps for states of the trained parameters alone.

        Args:
            fixed: The fixed parameters, with which the network and the schedule are called.
        """
        if not jax.tree.leaves(fixed):
            return self
        algorithm, schedule = self.algorithm.bind_fixed(fixed), self.schedule.bind_fixed(fixed)
        return replace(self, algorithm=algorithm, schedule=schedule)

    def start(self, params: PyTree, data, key: Array | None = None) -> TrainState:
        """Return the state before the first step.

        Args:
            params: The trained parameters.
            data: (x, y), or (x, y, indices) for a run on the examples at these indices.
            key: PRNG key of the run. It may be left out if the steps draw nothing: no minibatches,
                no augmentation, and no keyed f. The state then carries `jax.random.key(0)`.
        """
        if key is None and (self.batch_size or self.augment or self.algorithm.keyed):
            raise ValueError("a key is needed: minibatches, augment and a keyed f draw from it")
        if jax.tree.leaves(partition(params, self.algorithm.trainable)[1]):
            raise ValueError(
                "some of these parameters are fixed: moving, fixed = partition(params, trainable), "
                "then step.bind(fixed).start(moving, ...)"
            )
        zero, not_yet = to_array(0, jnp.int32), to_array(NOT_YET, jnp.int32)
        order = [] if self.batch_size is None else draws.example_indices(data)
        normalization = self.algorithm.normalization
        return TrainState(
            step=zero,
            params=params,
            anchor=params,
            optimizer_state=self.algorithm.transformation.init(params),
            key=jax.random.key(0) if key is None else key,
            order=to_array(order, jnp.int32),
            updates=zero,
            anchored_at=zero,
            solved=to_array(False),
            statistics=() if normalization is None else normalization.initial,
            diverged_at=not_yet,
            converged_at=not_yet,
        )

    def draw(self, init: Callable[[Array], PyTree], data, key: Array) -> TrainState:
        """Return the first state of a run that draws everything from one key.

        Two runs with the same key share their initial parameters, and the order and augmentation of
        their examples, whatever their schedules.

        Args:
            init: init(key) -> the initial parameters.
            data: (x, y), or (x, y, indices).
            key: PRNG key of the run.
        """
        params = init(key)
        moving, fixed = partition(params, self.algorithm.trainable)
        state = self.bind(fixed).start(moving, data, jax.random.fold_in(key, 1))
        output_shape(self.algorithm.network(state), params, data[0])
        return state

    def advance(self, state: TrainState, data, count, fixed: PyTree = ()) -> TrainState:
        """Take several steps.

        Args:
            state: The state of the trained parameters.
            data: (x, y), or (x, y, indices).
            count: Number of steps; it may be traced.
            fixed: The fixed parameters.
        """
        step = self.bind(fixed)
        return jax.lax.fori_loop(0, count, lambda _, state: step(state, data), state)

    def __call__(self, state: TrainState, data) -> TrainState:
        """Take one step of Algorithm 3.

        Args:
            state: The state before the step.
            data: (x, y), or (x, y, indices).
        """
        if not isinstance(state, TrainState):
            raise ValueError(
                f"state must be a TrainState, as start(...) returns: got {describe(state)}"
            )
        algorithm, optimizer = self.algorithm, self.algorithm.transformation

        # Re-linearise? Then the anchor theta_s becomes theta.
        linearizing = self._is_due(state)
        anchor = optax.tree.where(linearizing, state.params, state.anchor)
        opt = state.optimizer_state
        if algorithm.reset_optimizer:
            opt = optax.tree.where(linearizing, optimizer.init(state.params), opt)

        # The gradient of the proxy's loss on the batch, J_s^T loss'(f_lin(theta)).
        order, x, y = draws.batch(state, data, self.batch_size, self.augment)
        extra = algorithm.extra(state, draws.step_key(state, draws.NETWORK))
        value, gradient, statistics = algorithm.objective_and_gradient(
            state.params, anchor, x, y, extra, at_anchor=self.schedule.every_step, mesh=self.mesh
        )

        # The optimiser moves theta.
        problem = LinearProblem(algorithm, anchor, x, y, extra, linearizing)
        updates, opt = optimizer.update(
            gradient, opt, state.params, value=value, grad=gradient, value_fn=problem
        )
        params = optax.apply_updates(state.params, updates)

        # A run that ends here keeps its state. At a linearisation proxy and network agree, so
        # that `value` is the loss of the network.
        target = as_argument(-jnp.inf if self.target_loss is None else self.target_loss)
        reached = linearizing & (value <= target)
        finite = jnp.isfinite(value) & all_finite(params)
        moving = ~state.ended & finite & ~reached
        renewed = linearizing & moving
        return TrainState(
            step=state.step + 1,
            params=optax.tree.where(moving, params, state.params),
            anchor=optax.tree.where(moving, anchor, state.anchor),
            optimizer_state=optax.tree.where(moving, opt, state.optimizer_state),
            key=state.key,
            order=order,
            updates=state.updates + (renewed & (state.step > 0)),
            anchored_at=jnp.where(renewed, state.step, state.anchored_at),
            solved=self._is_solved(state, anchor, params, renewed, data),
            statistics=optax.tree.where(moving, statistics, state.statistics),
            diverged_at=jnp.where(~state.ended & ~finite, state.step, state.diverged_at),
            converged_at=jnp.where(~state.ended & finite & reached, state.step, state.converged_at),
        )

    def _is_due(self, state: TrainState) -> Bool[Array, ""]:
        if self.schedule.every_step:
            return jnp.asarray(True)
        return (state.step == 0) | self.schedule(state.step, state)

    def _is_solved(self, state, anchor, params, renewed, data) -> Bool[Array, ""]:
        if self.schedule.solved is None:
            return state.solved
        return jax.lax.cond(
            (state.step + 1) % as_argument(self.schedule.solved.check_every, jnp.int32) == 0,
            lambda: self._meets_rule(state, anchor, params, data),
            lambda: state.solved & ~renewed,
        )

    def _meets_rule(self, state, anchor, params, data) -> Bool[Array, ""]:
        """Return whether params solve the linear problem on all examples, by the rule `Solved`."""
        rule, algorithm = self.schedule.solved, self.algorithm
        x, y = draws.training_examples(data)
        extra = algorithm.extra(state, None)
        proxy = linearize(lambda p, x: algorithm.in_training(p, x, extra)[0], anchor)
        solved = jnp.asarray(False)
        if rule.accuracy is not None:
            outputs = in_slices(proxy, rule.slice_size)(params, x)
            solved |= training_accuracy(algorithm.loss, outputs, y) >= as_argument(rule.accuracy)
        if rule.gradient is not None:

            def norm(theta):
                def gradient_of(loss, x, y):
                    return jax.grad(lambda p: loss(proxy(p, x), y))(theta)

                gradient = loss_over_slices(gradient_of, algorithm.loss, rule.slice_size, x, y)
                slope = algorithm.with_further_terms(gradient, theta, anchor)
                return optax.tree.norm(jax.tree.map(widened, slope))

            solved |= norm(params) <= as_argument(rule.gradient) * norm(anchor)
        return solved


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether every entry of a pytree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
