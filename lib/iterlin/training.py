"""Training by iterative linearisation: one run, or a sweep over periods and seeds.

Runs go in chunks between evaluations (`chunks`); a chunk is one compiled loop whose length,
periods and seeds are traced, so that nothing is compiled twice and a whole sweep is one vmapped
program. The step itself is `algorithm`'s.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from iterlin.algorithm import Algorithm, TrainState
from iterlin.linearization import Network, linearize
from iterlin.losses import Loss
from iterlin.runtime import checkpoints
from iterlin.runtime.chunks import History, run_in_chunks
from iterlin.runtime.slices import in_slices
from iterlin.schedules import Schedule, Solved, every, is_every_step, periods_array
from iterlin.validation import non_negative, positive, positive_integer

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
    augment: Callable[[Array, Array], Array] | None = None,
    penalty: float = 0.0,
    reset_optimizer: bool = False,
    solved: Solved | None = None,
    normalization=None,
    checkpoint: Path | None = None,
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
    ('while not converged'). A non-finite step ends it as diverged, without raising.

    For each linearisation solved by itself: penalty lambda adds lambda ||theta - theta_s||^2 to
    the loss (eq. (10); damping 2 lambda), reset_optimizer starts the optimiser anew, and `solved`,
    with a schedule such as `when_solved`, ends it when the linear problem is solved.
    augment(key, x) -> x changes the inputs of each step. normalization
    (`normalization.Normalization`) belongs to an f with batch statistics.

    With a checkpoint, a file, a run that is killed goes on from there when it is called again, to
    the same bits; the file is refused with CheckpointError if it is of another run. `progress`
    shows a bar (default: on a terminal).

    Raises ValueError before any compute for a num_steps or batch_size that is not a positive
    integer, a batch larger than the data, a minibatch without key, inputs and targets of different
    lengths, a negative penalty, a resumed state that has no order of examples for minibatches, or
    evaluation steps that are not whole, increasing and in [0, num_steps].
    """
    begun = params if isinstance(params, TrainState) else None
    first, key = (int(begun.step), begun.key) if begun else (0, key)
    eval_steps = check_run(data, num_steps, batch_size, key, eval_steps, target_loss, first)
    non_negative("penalty", penalty)
    if begun and batch_size is not None and begun.order.size == 0:
        raise ValueError("the state is of a full-batch run: it cannot go on with a batch_size")
    key = jax.random.key(0) if key is None else key
    algorithm = Algorithm(
        f=f,
        loss=loss,
        optimizer=optimizer,
        batch_size=batch_size,
        target_loss=target_loss,
        augment=augment,
        penalty=penalty,
        penalized=penalty > 0,
        reset_optimizer=reset_optimizer,
        solved=solved,
        plain=is_every_step(schedule),
        normalization=normalization,
    )
    state = begun or algorithm.start(params, data, key)

    @partial(jax.jit, donate_argnums=0)
    def advance(state, count):
        return algorithm.advance(state, data, count, schedule)

    observe = jax.jit(observer(algorithm, evaluate, metrics or {"loss": loss}))
    outcome = run_in_chunks(
        state,
        advance,
        observe,
        eval_steps,
        first=first,
        progress=progress,
        checkpoint=checkpoint,
        fingerprint=fingerprint(advance, observe, state, eval_steps) if checkpoint else "",
    )
    return outcome.state, outcome.history


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
    checkpoint: Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """`train` for every period (K of them, infinity allowed) and every key (S), as one program.

    Each key draws its initial parameters, init(key), and its order of examples, the same for
    every period; where `data` is a function, also its own examples, data(key). The state's
    leaves but `step` lead with (K, S); the history's arrays but "step" are (K, S, T). Everything
    else, errors included, is as for `train`.
    """
    algorithm = Algorithm(f, loss, optimizer, batch_size, target_loss)
    datasets, data_axis = (jax.vmap(data)(keys), 0) if callable(data) else (data, None)
    example = jax.tree.map(lambda a: a[0], datasets) if callable(data) else data
    eval_steps = check_run(example, num_steps, batch_size, keys, eval_steps, target_loss)
    periods = periods_array(periods)
    # The step counter is common to all runs.
    state_axes = TrainState(None, *[0] * (len(TrainState._fields) - 1))

    @partial(jax.jit, donate_argnums=0)
    def advance(states, count):
        def run(state, run_data, period):
            return algorithm.advance(state, run_data, count, schedule(period))

        over_seeds = jax.vmap(run, (state_axes, data_axis, None), state_axes)
        return jax.vmap(over_seeds, (state_axes, None, 0), state_axes)(states, datasets, periods)

    observe_run = observer(algorithm, evaluate, metrics or {"loss": loss})
    observe = jax.jit(jax.vmap(jax.vmap(observe_run, (state_axes,)), (state_axes,)))

    def start(key, run_data):
        return algorithm.start(init(key), run_data, jax.random.fold_in(key, 1))

    seeds = jax.vmap(start, (0, data_axis), state_axes)(keys, datasets)
    states = jax.vmap(lambda _: seeds, out_axes=state_axes)(periods)
    outcome = run_in_chunks(
        states,
        advance,
        observe,
        eval_steps,
        progress=progress,
        checkpoint=checkpoint,
        fingerprint=fingerprint(advance, observe, states, eval_steps) if checkpoint else "",
    )
    return outcome.state, outcome.history


def log_steps(num_steps: int, per_decade: int = 6) -> np.ndarray:
    """0, 1, ... num_steps on a log grid: whole numbers, each once."""
    count = max(2, int(per_decade * np.log10(max(num_steps, 2))) + 1)
    return np.unique(np.concatenate([[0], np.geomspace(1, num_steps, count).round()])).astype(int)


def fingerprint(advance, observe, state, eval_steps) -> str:
    """What a run computes, as one digest: its two programs and all the numbers they start from."""
    count = jnp.asarray(1, jnp.int32)
    programs = [advance.trace(state, count).jaxpr, observe.trace(state).jaxpr]
    return checkpoints.fingerprint(programs, state, np.asarray(eval_steps))


def observer(algorithm: Algorithm, evaluate, metrics: Metrics, *, slice_size: int | None = None):
    """observe(state) -> {"updates", "<set>_<metric>", "<set>_<metric>_proxy"}, as `train` says."""

    def observe(state):
        seen = {"updates": state.updates}
        network = algorithm.network(state)
        proxy = linearize(network, state.anchor)
        for name, (x, y) in (evaluate or {}).items():
            for suffix, model in {"": network, "_proxy": proxy}.items():
                outputs = in_slices(model, slice_size or len(x))(state.params, x)
                for metric, function in metrics.items():
                    seen[f"{name}_{metric}{suffix}"] = function(outputs, y)
        return seen

    return observe


def check_run(data, num_steps, batch_size, key, eval_steps, target_loss, first=0) -> np.ndarray:
    """The steps to evaluate at, num_steps the last; ValueError as `train` says."""
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
