"""Iterative linearisation (Algorithm 3) for any loss, optimiser and schedule.

One step trains the proxy f_lin(theta) = f(theta_s) + J_s (theta - theta_s) on one batch; the
schedule says when theta_s, the anchor, becomes the current theta. Runs go in chunks between
evaluations: a chunk is one compiled loop whose length, periods and seeds are traced, so that
nothing is compiled twice and a whole sweep over periods and seeds is one vmapped program.
"""

import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int, PyTree
from tqdm import tqdm

from iterlin.linearization import Network, jacobian_products, linearize, tree_sub
from iterlin.losses import Loss
from iterlin.schedules import Schedule, every, periods_array
from iterlin.validation import positive, positive_integer

NOT_YET = -1


class TrainState(NamedTuple):
    """All that a run is: training resumes from it exactly.

    step: steps taken. params: theta. anchor: theta_s. order: this epoch's order of the examples
    (empty for full batch). updates: re-linearisations after the first. diverged_at, converged_at:
    the step that gave a non-finite loss or parameter (it is not applied) or found the target loss
    reached; -1 before. A run that has diverged or converged stands still.
    """

    step: Int[Array, ""]
    params: PyTree
    anchor: PyTree
    optimizer_state: PyTree
    key: Array
    order: Int[Array, " N"]
    updates: Int[Array, ""]
    diverged_at: Int[Array, ""]
    converged_at: Int[Array, ""]

    @property
    def ended(self) -> Bool[Array, "..."]:
        return (self.diverged_at != NOT_YET) | (self.converged_at != NOT_YET)


History = dict[str, np.ndarray]
Metrics = Mapping[str, Callable[[Array, Array], Array]]


def train(
    f: Network,
    params: PyTree | TrainState,
    data,
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    num_steps: int,
    batch_size: int | None = None,
    key: Array | None = None,
    evaluate: Mapping[str, tuple] | None = None,
    metrics: Metrics | None = None,
    eval_steps=None,
    target_loss: float | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """Train f by iterative linearisation from params; returns the final state and the history.

    params may be the state of an earlier run, which then goes on, exactly, up to num_steps in all.
    data is (x, y) with N examples; loss(outputs, y) is what is minimised (whether it is divided by
    N is its own affair, see `losses.mean`). batch_size=None is full batch; otherwise examples are
    drawn without replacement, an incomplete last batch of an epoch is left out, and `key` orders
    them. `schedule(step, state)` says when to re-linearise: `every(K)`, `never()` or any function.

    history maps "step" to eval_steps (T,), "updates" to the feature updates by then, and, for each
    set in evaluate = {"test": (x, y)} and each of metrics = {"loss": loss, ...},
    "<set>_<metric>" (the network) and "<set>_<metric>_proxy" to (T,). An evaluation at a multiple
    of K sees the proxy at the end of its period, before re-linearisation. eval_steps defaults to
    0 and a log grid up to num_steps.

    target_loss ends a run when the network's own loss, seen at a linearisation, is at or below it
    ('while not converged'). A non-finite step ends it as diverged, without raising. `progress`
    shows a bar (default: on a terminal).

    Raises ValueError before any compute for a num_steps or batch_size that is not a positive
    integer, a batch larger than the data, a minibatch without key, inputs and targets of different
    lengths, or evaluation steps that are not whole, increasing and in [0, num_steps].
    """
    engine = _Engine(f, loss, optimizer, batch_size, target_loss)
    begun = params if isinstance(params, TrainState) else None
    first, key = (int(begun.step), begun.key) if begun else (0, key)
    eval_steps = _check(data, num_steps, batch_size, key, eval_steps, target_loss, first)
    key = jax.random.key(0) if key is None else key
    advance = jax.jit(lambda state, count: engine.advance(state, data, count, schedule))
    observe = jax.jit(_observer(f, evaluate, metrics or {"loss": loss}))
    state = begun or engine.start(params, data, key)
    return _drive(state, advance, observe, eval_steps, progress, first)


def train_sweep(
    f: Network,
    init: Callable[[Array], PyTree],
    data,
    *,
    periods,
    keys: Array,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    schedule: Callable[[Array], Schedule] = every,
    batch_size: int | None = None,
    evaluate: Mapping[str, tuple] | None = None,
    metrics: Metrics | None = None,
    eval_steps=None,
    target_loss: float | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """`train` for every period (K of them, infinity allowed) and every key (S), as one program.

    Each key draws its initial parameters, init(key), and its order of examples, the same for
    every period; where `data` is a function, also its own examples, data(key). The state's
    leaves but `step` lead with (K, S); the history's arrays but "step" are (K, S, T). Everything
    else, errors included, is as for `train`.
    """
    engine = _Engine(f, loss, optimizer, batch_size, target_loss)
    datasets, data_axis = (jax.vmap(data)(keys), 0) if callable(data) else (data, None)
    example = jax.tree.map(lambda a: a[0], datasets) if callable(data) else data
    eval_steps = _check(example, num_steps, batch_size, keys, eval_steps, target_loss)
    periods = periods_array(periods)
    # The step counter is common to all runs.
    state_axes = TrainState(None, *[0] * (len(TrainState._fields) - 1))

    @jax.jit
    def advance(states, count):
        def run(state, run_data, period):
            return engine.advance(state, run_data, count, schedule(period))

        over_seeds = jax.vmap(run, (state_axes, data_axis, None), state_axes)
        return jax.vmap(over_seeds, (state_axes, None, 0), state_axes)(states, datasets, periods)

    observe_run = _observer(f, evaluate, metrics or {"loss": loss})
    observe = jax.jit(jax.vmap(jax.vmap(observe_run, (state_axes,)), (state_axes,)))

    def start(key, run_data):
        return engine.start(init(key), run_data, jax.random.fold_in(key, 1))

    seeds = jax.vmap(start, (0, data_axis), state_axes)(keys, datasets)
    states = jax.vmap(lambda _: seeds, out_axes=state_axes)(periods)
    return _drive(states, advance, observe, eval_steps, progress)


def log_steps(num_steps: int, per_decade: int = 6) -> np.ndarray:
    """0, 1, ... num_steps on a log grid: whole numbers, each once."""
    count = max(2, int(per_decade * np.log10(max(num_steps, 2))) + 1)
    return np.unique(np.concatenate([[0], np.geomspace(1, num_steps, count).round()])).astype(int)


class _Engine:
    """The step of Algorithm 3; data (x, y) is an argument, so that runs may have their own."""

    def __init__(self, f, loss, optimizer, batch_size, target_loss):
        self.f, self.loss, self.optimizer = f, loss, optimizer
        self.batch_size, self.target_loss = batch_size, target_loss

    def start(self, params, data, key) -> TrainState:
        zero, not_yet = jnp.asarray(0, jnp.int32), jnp.asarray(NOT_YET, jnp.int32)
        order = jnp.arange(0 if self.batch_size is None else data[1].shape[0], dtype=jnp.int32)
        opt = self.optimizer.init(params)
        return TrainState(zero, params, params, opt, key, order, zero, not_yet, not_yet)

    def advance(self, state: TrainState, data, count, schedule: Schedule) -> TrainState:
        return jax.lax.fori_loop(0, count, lambda _, s: self.step(s, data, schedule), state)

    def step(self, state: TrainState, data, schedule: Schedule) -> TrainState:
        linearizing = (state.step == 0) | schedule(state.step, state)
        anchor = _where(linearizing, state.params, state.anchor)
        order, x, y = self.batch(state, data)

        outputs, jvp, vjp = jacobian_products(self.f, anchor, x)
        proxy = outputs + jvp(tree_sub(state.params, anchor))
        value, cotangent = jax.value_and_grad(self.loss)(proxy, y)
        updates, opt = self.optimizer.update(vjp(cotangent), state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)

        # At a linearisation proxy and network agree, so `value` is the network's loss there.
        target = -jnp.inf if self.target_loss is None else self.target_loss
        reached = linearizing & (value <= target)
        finite = jnp.isfinite(value) & _all_finite(params)
        moving = ~state.ended & finite & ~reached
        counted = linearizing & (state.step > 0) & moving
        return TrainState(
            step=state.step + 1,
            params=_where(moving, params, state.params),
            anchor=_where(moving, anchor, state.anchor),
            optimizer_state=_where(moving, opt, state.optimizer_state),
            key=state.key,
            order=order,
            updates=state.updates + counted,
            diverged_at=jnp.where(~state.ended & ~finite, state.step, state.diverged_at),
            converged_at=jnp.where(~state.ended & finite & reached, state.step, state.converged_at),
        )

    def batch(self, state: TrainState, data):
        x, y = data
        if self.batch_size is None:
            return state.order, x, y
        size = state.order.shape[0]
        per_epoch = size // self.batch_size
        epoch, index = state.step // per_epoch, state.step % per_epoch
        # The step is not batched in a sweep, so this stays a branch: one shuffle an epoch.
        order = jax.lax.cond(
            index == 0,
            lambda: jax.random.permutation(jax.random.fold_in(state.key, epoch), size).astype(
                jnp.int32
            ),
            lambda: state.order,
        )
        chosen = jax.lax.dynamic_slice_in_dim(order, index * self.batch_size, self.batch_size)
        return order, jnp.take(x, chosen, 0), jnp.take(y, chosen, 0)


def _observer(f, evaluate, metrics):
    def observe(state):
        seen = {"updates": state.updates}
        for name, (x, y) in (evaluate or {}).items():
            models = {"": f(state.params, x), "_proxy": linearize(f, state.anchor)(state.params, x)}
            for suffix, outputs in models.items():
                for metric, function in metrics.items():
                    seen[f"{name}_{metric}{suffix}"] = function(outputs, y)
        return seen

    return observe


def _drive(state, advance, observe, eval_steps, progress, first=0) -> tuple[TrainState, History]:
    """Alternate compiled chunks and evaluations; once every run has ended, only evaluations."""
    progress = sys.stderr.isatty() if progress is None else progress
    rows = []
    with tqdm(total=int(eval_steps[-1]), initial=first, unit="step", disable=not progress) as bar:
        for before, after in zip([first, *eval_steps[:-1]], eval_steps, strict=True):
            if after > before and not bool(jnp.all(state.ended)):
                state = advance(state, int(after - before))
            rows.append(jax.device_get(observe(state)))
            bar.update(int(after - before))
            if progress:
                bar.set_postfix_str(f"{int(jnp.sum(state.diverged_at != NOT_YET))} diverged")
    history = {name: np.stack([row[name] for row in rows], axis=-1) for name in rows[0]}
    return state, {"step": np.asarray(eval_steps), **history}


def _check(data, num_steps, batch_size, key, eval_steps, target_loss, first=0) -> np.ndarray:
    x, y = data
    positive_integer("num_steps", num_steps)
    if len(x) != len(y):
        raise ValueError(f"inputs and targets differ in length: {len(x)} and {len(y)}")
    if target_loss is not None:
        positive("target_loss", target_loss)
    if batch_size is not None:
        positive_integer("batch_size", batch_size)
        if batch_size > len(x):
            raise ValueError(f"batch_size {batch_size} exceeds the {len(x)} examples there are")
        if key is None:
            raise ValueError("a minibatch run needs a key to order its examples")
    if num_steps < first:
        raise ValueError(f"num_steps {num_steps} is below the {first} steps already taken")
    if eval_steps is None:
        steps = np.unique(np.maximum(log_steps(num_steps), first))
    else:
        steps = np.asarray(eval_steps)
    whole = np.issubdtype(steps.dtype, np.integer)
    if steps.ndim != 1 or steps.size == 0 or not whole or np.any(np.diff(steps) <= 0):
        raise ValueError("eval_steps must be a strictly increasing list of whole steps")
    if steps[0] < first or steps[-1] > num_steps:
        limits = f"[{first}, {num_steps}]"
        raise ValueError(f"eval_steps must lie in {limits}, got {steps[0]}..{steps[-1]}")
    return steps if steps[-1] == num_steps else np.append(steps, num_steps)


def _where(condition, a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda u, v: jnp.where(condition, u, v), a, b)


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
