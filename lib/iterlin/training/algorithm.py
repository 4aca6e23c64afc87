"""One step of iterative linearisation (Algorithm 3), for any loss, optimiser and schedule.

A step trains the proxy f_lin(theta) = f(theta_s) + J_s (theta - theta_s) on one batch; the
schedule says when theta_s, the anchor, becomes the current theta.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PyTree

from iterlin.linearise.linearization import Network, linearize, output_shape, tree_add, tree_sub
from iterlin.linearise.parameters import Trainable, bound, split
from iterlin.linearise.slices import Sliced
from iterlin.linearise.validation import (
    accepts,
    is_traced,
    non_negative,
    positive,
    positive_integer,
)
from iterlin.training import draws
from iterlin.training.draws import all_of, chosen_examples
from iterlin.training.linear_problem import LinearProblem
from iterlin.training.losses import Loss, loss_over_slices
from iterlin.training.schedules import Solved, as_schedule
from iterlin.training.state import NOT_YET, TrainState


@dataclass(frozen=True)
class Algorithm:
    """What is minimised, and how: all that the steps of a run have in common but the schedule.

    f(params, x) -> (N, ...). loss(outputs, y) is minimised; whether it is divided by N is its own
    affair (`losses.mean`). optimizer: of `optax`, or the step size of plain gradient descent; None
    where each run brings its own (`study.groups`). It is told the value, the gradient and, as the
    value_fn that optax's line searches ask for, the step's `LinearProblem`. batch_size: None is
    full batch; otherwise examples are drawn without replacement, and an incomplete last batch of an
    epoch is left out. augment(key, x) -> x changes the inputs of a step. target_loss ends a run
    once the network's own loss, any regularizer included, is at or below it at a linearisation
    ('while not converged').

    trainable: which of the parameters are trained (`parameters.split`), all if None. regularizer:
    R(params) is added to the loss as it is, not linearised. keyed: f(params, x, key) draws from a
    key, as for dropout, a new one at each step; where the network is looked at, key is None.

    For each linearisation solved by itself: penalty lambda adds lambda ||theta - theta_s||^2 to the
    loss (eq. (10); damping 2 lambda), reset_optimizer starts the optimiser anew, and `solved`, with
    a schedule such as `when_solved`, ends it when the linear problem is solved.

    normalization: `networks.normalization.Normalization` of a network with running statistics; f is
    then its training mode.

    mesh: devices that each step's batch is dealt out to, over all axes, for an f that treats its
    examples independently, which is not checked; for one in slices `train` takes the devices that
    its data lie on. Where f draws or has running statistics, or the loss is not known to be a sum
    (`losses.as_sum`), it has no effect. A checkpoint is of one mesh.

    Raises ValueError when it is made: for an f, loss, augment or regularizer that cannot be called,
    one that takes other arguments, an optimizer that is neither, a batch_size that is not a
    positive integer, a target_loss that is not positive, a negative penalty, a mesh that is none.

    >>> import optax
    >>> net, loss = il.mlp((2, 16, 3)), il.losses.mean(il.losses.cross_entropy)
    >>> descent = il.Algorithm(net.apply, loss, optimizer=0.1)
    >>> stochastic = il.Algorithm(net.apply, loss, optax.adam(1e-3), batch_size=32, penalty=1e-2)
    >>> last_layer = il.Algorithm(net.apply, loss, 0.1, trainable=lambda path: path[0] == "1")
    """

    f: Network
    loss: Loss
    optimizer: optax.GradientTransformation | float | None = None
    batch_size: int | None = None
    target_loss: float | None = None
    augment: Callable[[Array, Array], Array] | None = None
    penalty: float | Array = 0.0
    reset_optimizer: bool = False
    solved: Solved | None = None
    normalization: Any = None
    trainable: Trainable = None
    regularizer: Callable[[PyTree], Array] | None = None
    keyed: bool = False
    mesh: Mesh | None = None

    def __post_init__(self):
        for name in ("f", "loss", "augment", "regularizer"):
            value = getattr(self, name)
            if not callable(value) and not (name in ("augment", "regularizer") and value is None):
                raise ValueError(f"{name} must be a function, got {value!r}")
        accepts("loss", self.loss, ("outputs", "y"))
        if self.augment is not None:
            accepts("augment", self.augment, ("key", "x"))
        if self.regularizer is not None:
            accepts("regularizer", self.regularizer, ("params",))
        if self.keyed:
            accepts("f", self.f, ("params", "x", "key"))
        else:
            remedy = "; with keyed=True it is f(params, x, key)"
            accepts("f", self.f, ("params", "x"), remedy)
        if not isinstance(self.optimizer, optax.GradientTransformation | None):
            positive("optimizer, as a step size,", self.optimizer)
            if jnp.ndim(self.optimizer) > 0:
                raise ValueError("optimizer, as a step size, must be one number")
        if self.batch_size is not None:
            positive_integer("batch_size", self.batch_size)
        if self.target_loss is not None:
            positive("target_loss", self.target_loss)
        non_negative("penalty", self.penalty)
        if not isinstance(self.solved, Solved | None):
            raise ValueError(f"solved must be a rule `schedules.Solved`, got {self.solved!r}")
        if self.normalization is not None and not hasattr(self.normalization, "evaluate"):
            raise ValueError(
                "normalization must be a `networks.normalization.Normalization`, "
                f"got {self.normalization!r}"
            )
        if not isinstance(self.mesh, Mesh | None):
            raise ValueError(f"mesh must be a jax.sharding.Mesh, got {self.mesh!r}")

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The optimiser as one of `optax`. Raises ValueError where there is none."""
        if self.optimizer is None:
            raise ValueError("the algorithm has no optimizer: give one, or a step size")
        if isinstance(self.optimizer, optax.GradientTransformation):
            return self.optimizer
        return optax.sgd(self.optimizer)

    @property
    def _penalized(self) -> bool:
        return is_traced(self.penalty) or self.penalty > 0

    @property
    def has_further_terms(self) -> bool:
        return self._penalized or self.regularizer is not None

    def further_terms(self, theta: PyTree, anchor: PyTree) -> Array | float:
        """What the objective has beside the proxy's loss: the penalty and the regularizer."""
        total = 0.0
        if self._penalized:
            total = self.penalty * optax.tree.norm(tree_sub(theta, anchor), squared=True)
        return total if self.regularizer is None else total + self.regularizer(theta)

    def bound(self, fixed: PyTree) -> "Algorithm":
        """The same of the moving parameters, with the others as they are (`parameters.bound`)."""
        if not jax.tree.leaves(fixed):
            return self
        changed = {"f": bound(self.f, fixed), "trainable": None}
        if self.regularizer is not None:
            changed["regularizer"] = bound(self.regularizer, fixed)
        if self.normalization is not None:
            changed["normalization"] = self.normalization.bound(fixed)
        return replace(self, **changed)

    def start(self, params: PyTree, data, key: Array) -> TrainState:
        """The state before the first step; data is (x, y) or (x, y, examples)."""
        zero, not_yet = jnp.asarray(0, jnp.int32), jnp.asarray(NOT_YET, jnp.int32)
        order = jnp.asarray([] if self.batch_size is None else chosen_examples(data), jnp.int32)
        opt = self.transformation.init(params)
        statistics = () if self.normalization is None else self.normalization.initial
        return TrainState(
            step=zero,
            params=params,
            anchor=params,
            optimizer_state=opt,
            key=key,
            order=order,
            updates=zero,
            anchored_at=zero,
            solved=jnp.asarray(False),
            statistics=statistics,
            diverged_at=not_yet,
            converged_at=not_yet,
        )

    def draw(self, init: Callable[[Array], PyTree], data, key: Array) -> TrainState:
        """The first state of a run that draws all it needs from one key, its parameters included.

        Of these it has those that move. Two runs of one key share their initial parameters,
        init(key), and the order and augmentation of their examples, whatever their schedules.
        """
        params = init(key)
        state = self.start(split(params, self.trainable)[0], data, jax.random.fold_in(key, 1))
        output_shape(self.network(state), params, data[0])
        return state

    def advance(self, state: TrainState, data, count, schedule: Any) -> TrainState:
        """`count` steps; it may be traced."""
        return jax.lax.fori_loop(0, count, lambda _, s: self.step(s, data, schedule), state)

    def step(self, state: TrainState, data, schedule: Any) -> TrainState:
        """One step. Where the schedule is known to re-linearise at each, the proxy is the network,
        and its Jacobian-vector product, zero, is left out."""
        schedule = as_schedule(schedule)
        plain = schedule.every_step
        if plain:
            linearizing = jnp.asarray(True)
        else:
            linearizing = (state.step == 0) | schedule(state.step, state)
        anchor = _where(linearizing, state.params, state.anchor)
        optimizer = optax.with_extra_args_support(self.transformation)
        opt = state.optimizer_state
        if self.reset_optimizer:
            opt = _where(linearizing, optimizer.init(state.params), opt)
        order, x, y = draws.batch(state, data, self.batch_size, self.augment)
        extra = self._extra(state, *(draws.network_key(state) if self.keyed else ()))

        displacement = None if plain else tree_sub(state.params, anchor)
        value, gradient, statistics = self._loss_and_gradient(anchor, displacement, x, y, extra)
        if self.has_further_terms:
            added, slope = jax.value_and_grad(self.further_terms)(state.params, anchor)
            value, gradient = value + added, tree_add(gradient, slope)
        updates, opt = optimizer.update(
            gradient,
            opt,
            state.params,
            value=value,
            grad=gradient,
            value_fn=LinearProblem(self, anchor, x, y, extra, linearizing),
        )
        params = optax.apply_updates(state.params, updates)

        # At a linearisation proxy and network agree, so `value` is the network's there.
        target = -jnp.inf if self.target_loss is None else self.target_loss
        reached = linearizing & (value <= target)
        finite = jnp.isfinite(value) & _all_finite(params)
        moving = ~state.ended & finite & ~reached
        renewed = linearizing & moving
        return TrainState(
            step=state.step + 1,
            params=_where(moving, params, state.params),
            anchor=_where(moving, anchor, state.anchor),
            optimizer_state=_where(moving, opt, state.optimizer_state),
            key=state.key,
            order=order,
            updates=state.updates + (renewed & (state.step > 0)),
            anchored_at=jnp.where(renewed, state.step, state.anchored_at),
            solved=self._is_solved(state, anchor, params, renewed, data),
            statistics=_where(moving, statistics, state.statistics),
            diverged_at=jnp.where(~state.ended & ~finite, state.step, state.diverged_at),
            converged_at=jnp.where(~state.ended & finite & reached, state.step, state.converged_at),
        )

    def network(self, state: TrainState) -> Network:
        """The network as it is evaluated: with the running statistics where it has any, without a
        key where it draws."""
        if self.normalization is None:
            return (lambda params, x: self.f(params, x, None)) if self.keyed else self.f
        return lambda params, x: self.normalization.evaluate(params, state.statistics, x)

    def _loss_and_gradient(self, anchor, displacement, x, y, extra):
        """The proxy's loss, its gradient J^T u, and the running statistics after the batch.

        A sliced network with a loss known to be a sum goes slice by slice from the inputs to the
        gradient, so that no activation outlives its slice, and each device of a mesh goes through
        its own examples; any other sees the whole batch at once.
        """

        def of_part(loss, x, y):
            plain = displacement is None
            outputs, jvp, vjp, statistics = self._products(anchor, x, extra, transposed_only=plain)
            proxy = outputs if plain else outputs + jvp(displacement)
            value, cotangent = jax.value_and_grad(loss)(proxy, y)
            return value, vjp(cotangent), statistics

        # A network that draws takes a key for each slice from the one of the batch.
        whole = self.normalization is not None or self.keyed
        size = self.f.size if isinstance(self.f, Sliced) and not whole else None
        return loss_over_slices(of_part, self.loss, size, x, y, None if whole else self.mesh)

    def _extra(self, state: TrainState, *key: Array | None) -> tuple:
        """What the network in training takes beside params and x: running statistics and a key."""
        return key if self.normalization is None else (state.statistics, *key)

    def trained(self, params, x, extra):
        """Outputs of the network in training, and the running statistics after the batch."""
        if self.normalization is None:
            return self.f(params, x, *extra), ()
        statistics, *key = extra
        return self.normalization.apply(params, statistics, x, *key)

    def _products(self, anchor, x, extra, *, transposed_only):
        """f(anchor, x), J v and J^T u from one primal pass, and the statistics after it."""
        network = lambda p: self.trained(p, x, extra)  # noqa: E731
        if transposed_only:
            outputs, transpose, statistics = jax.vjp(network, anchor, has_aux=True)
            jvp = None
        else:
            outputs, jvp, statistics = jax.linearize(network, anchor, has_aux=True)
            transpose = jax.linear_transpose(jvp, anchor)
        return outputs, jvp, lambda u: transpose(u)[0], statistics

    def _is_solved(self, state, anchor, params, renewed, data) -> Bool[Array, ""]:
        if self.solved is None:
            return state.solved
        return jax.lax.cond(
            (state.step + 1) % self.solved.check_every == 0,
            lambda: self._meets(state, anchor, params, data),
            lambda: state.solved & ~renewed,
        )

    def _meets(self, state, anchor, params, data) -> Bool[Array, ""]:
        def whole_gradient(gradient, theta):
            if not self.has_further_terms:
                return gradient
            return tree_add(gradient, jax.grad(self.further_terms)(theta, anchor))

        extra = self._extra(state, *((None,) if self.keyed else ()))
        proxy = linearize(lambda p, x: self.trained(p, x, extra)[0], anchor)
        return self.solved.met(proxy, self.loss, whole_gradient, params, anchor, all_of(data))


def _where(condition, a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda u, v: jnp.where(condition, u, v), a, b)


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
