"""Training by iterative linearisation: one run, or a sweep over periods and seeds.

Runs go in chunks between evaluations (`chunks`); a chunk is one compiled loop whose length,
periods, seeds and data are arguments, so that nothing is compiled twice and a whole sweep is one
vmapped program. The step itself is `algorithm`'s.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.algorithm import RUN_AXES, Algorithm, TrainState
from iterlin.linearization import linearize
from iterlin.runtime import checkpoints
from iterlin.runtime.chunks import History, run_in_chunks
from iterlin.runtime.precision import full_precision
from iterlin.runtime.slices import in_slices
from iterlin.schedules import Schedule, every, periods_array
from iterlin.validation import positive_integer

Metrics = Mapping[str, Callable[[Array, Array], Array]]
Sets = Mapping[str, tuple[Array, Array]]


class Watch(NamedTuple):
    """What is recorded of a run on its way, and when.

    sets: {"test": (x, y), ...}; metrics: {"accuracy": accuracy, ...} of (outputs, y), the loss that
    is minimised if None. Each metric is recorded on each set, of the network as "<set>_<metric>"
    and of its proxy as "<set>_<metric>_proxy". at: increasing steps, the last of the run added; 0
    and a log grid if None.
    """

    sets: Sets = MappingProxyType({})
    metrics: Metrics | None = None
    at: Any = None


# Of each run, the number of feature updates alone.
UPDATES = Watch()


@full_precision()
def train(
    algorithm: Algorithm,
    params: PyTree | TrainState,
    data,
    *,
    schedule: Schedule,
    num_steps: int,
    key: Array | None = None,
    watch: Watch = UPDATES,
    checkpoint: Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """Train a network by iterative linearisation (Algorithm 3); the final state and the history.

    params may be the state of an earlier run, which then goes on, exactly, up to num_steps in all.
    data is (x, y) with N examples. `schedule(step, state)` says when to re-linearise: `every(K)`,
    `never()` or any function. key orders the examples of minibatches.

    history maps "step" to the steps looked at (T,), "updates" to the feature updates by then, and
    what `watch` names to (T,). A look at a multiple of K sees the proxy at the end of its period,
    before re-linearisation. A non-finite step ends the run as diverged, without raising. Products
    are computed in full precision (`runtime.precision`).

    With a checkpoint, a file, a run that is killed goes on from there when it is called again, to
    the same bits; the file is refused with CheckpointError if it is of another run. `progress`
    shows a bar (default: on a terminal).

    Raises ValueError before any compute for an algorithm without optimizer, a num_steps that is not
    a positive integer, a batch larger than the data, a minibatch without key, inputs and targets of
    different lengths, a resumed state whose order of examples is not of this data, a `watch` that
    is none, or steps to look at that are not whole, increasing and in [0, num_steps].
    """
    begun = params if isinstance(params, TrainState) else None
    if begun and key is not None:
        raise ValueError("the state has the key that its run began with: leave key out")
    first, key = (int(begun.step), begun.key) if begun else (0, key)
    check_watch(watch)
    looks = check_run(algorithm, data, num_steps, key, watch.at, first)
    if begun and algorithm.batch_size is not None and begun.order.size != len(data[1]):
        if begun.order.size == 0:
            raise ValueError("the state is of a full-batch run: it cannot go on with a batch_size")
        count = begun.order.size
        raise ValueError(f"the state is of a run on {count} examples, not {len(data[1])}")
    key = jax.random.key(0) if key is None else key
    state = begun or algorithm.start(params, data, key)

    @partial(jax.jit, donate_argnums=0)
    def advance(state, data, count):
        return algorithm.advance(state, data, count, schedule)

    observe = jax.jit(observer(algorithm, watch.metrics))
    return _run(state, advance, observe, (data,), watch.sets, looks, first, checkpoint, progress)


@full_precision()
def train_sweep(
    algorithm: Algorithm,
    init: Callable[[Array], PyTree],
    data,
    *,
    periods,
    keys: Array,
    num_steps: int,
    schedule: Callable[[Array], Schedule] = every,
    watch: Watch = UPDATES,
    checkpoint: Path | None = None,
    progress: bool | None = None,
) -> tuple[TrainState, History]:
    """`train` for every period (K of them, infinity allowed) and every key (S), as one program.

    Each key draws its initial parameters, init(key), and its order of examples, the same for
    every period; where `data` is a function, also its own examples, data(key). The state's
    leaves but `step` lead with (K, S); the history's arrays but "step" are (K, S, T). Everything
    else, errors included, is as for `train`.
    """
    datasets, data_axis = (jax.vmap(data)(keys), 0) if callable(data) else (data, None)
    example = jax.tree.map(lambda a: a[0], datasets) if callable(data) else data
    check_watch(watch)
    looks = check_run(algorithm, example, num_steps, keys, watch.at)
    periods = periods_array(periods)

    def over_both(function, *axes, out=RUN_AXES):
        """Over seeds (the first axes), then over periods."""
        seeds = jax.vmap(function, (RUN_AXES, *(axis[0] for axis in axes)), out)
        return jax.vmap(seeds, (RUN_AXES, *(axis[1] for axis in axes)), out)

    @partial(jax.jit, donate_argnums=0)
    def advance(states, datasets, periods, count):
        def run(state, run_data, period):
            return algorithm.advance(state, run_data, count, schedule(period))

        return over_both(run, (data_axis, None), (None, 0))(states, datasets, periods)

    observe = jax.jit(over_both(observer(algorithm, watch.metrics), (None, None), out=0))
    draw = partial(algorithm.draw, init)
    seeds = jax.vmap(draw, (data_axis, 0), RUN_AXES)(datasets, keys)
    states = jax.vmap(lambda _: seeds, out_axes=RUN_AXES)(periods)
    inputs = (datasets, periods)
    return _run(states, advance, observe, inputs, watch.sets, looks, 0, checkpoint, progress)


def _run(state, advance, observe, inputs, sets, looks, first, checkpoint, progress):
    """Chunks of advance(state, *inputs, count) between looks observe(state, sets)."""
    # Arguments, and on the device once: as constants they would be copied into the programs.
    inputs, sets = jax.tree.map(jnp.asarray, (inputs, dict(sets)))
    fingerprint = ""
    if checkpoint is not None:
        # A run is its two programs and all the numbers that go into them.
        programs = [
            advance.trace(state, *inputs, jnp.asarray(1, jnp.int32)).jaxpr,
            observe.trace(state, sets).jaxpr,
        ]
        fingerprint = checkpoints.fingerprint(programs, state, inputs, sets, looks)
    outcome = run_in_chunks(
        state,
        lambda state, count: advance(state, *inputs, count),
        lambda state: observe(state, sets),
        looks,
        first=first,
        progress=progress,
        checkpoint=checkpoint,
        fingerprint=fingerprint,
    )
    return outcome.state, outcome.history


def log_steps(num_steps: int, per_decade: int = 6) -> np.ndarray:
    """0, 1, ... num_steps on a log grid: whole numbers, each once."""
    count = max(2, int(per_decade * np.log10(max(num_steps, 2))) + 1)
    return np.unique(np.concatenate([[0], np.geomspace(1, num_steps, count).round()])).astype(int)


def observer(algorithm: Algorithm, metrics: Metrics | None, *, slice_size: int | None = None):
    """observe(state, sets) -> {"updates", "<set>_<metric>", "<set>_<metric>_proxy"} (`Watch`)."""
    metrics = {"loss": algorithm.loss} if metrics is None else metrics

    def observe(state: TrainState, sets: Sets):
        seen = {"updates": state.updates}
        network = algorithm.network(state)
        proxy = linearize(network, state.anchor)
        for name, (x, y) in sets.items():
            for suffix, model in {"": network, "_proxy": proxy}.items():
                outputs = in_slices(model, slice_size or len(x))(state.params, x)
                for metric, function in metrics.items():
                    seen[f"{name}_{metric}{suffix}"] = function(outputs, y)
        return seen

    return observe


def check_watch(watch) -> None:
    """Raises ValueError for what is no `Watch` of sets (x, y) and metrics that can be called."""
    if not isinstance(watch, Watch):
        raise ValueError(f"watch must be a Watch(sets, metrics, at), got {watch!r}")
    for name, chosen in watch.sets.items():
        if not isinstance(chosen, tuple | list) or len(chosen) != 2:
            raise ValueError(f"the set '{name}' of watch must be inputs and targets (x, y)")
    for name, metric in (watch.metrics or {}).items():
        if not callable(metric):
            raise ValueError(f"the metric '{name}' of watch must be a function, got {metric!r}")


def check_run(algorithm: Algorithm, data, num_steps, key, at, first=0) -> np.ndarray:
    """The steps to look at, num_steps the last; ValueError as `train` says."""
    x, y = data
    algorithm.transformation  # noqa: B018 (raises where there is none)
    positive_integer("num_steps", num_steps)
    if len(x) != len(y):
        raise ValueError(f"inputs and targets differ in length: {len(x)} and {len(y)}")
    batch_size = algorithm.batch_size
    if batch_size is not None:
        if batch_size > len(x):
            raise ValueError(f"batch_size {batch_size} exceeds the {len(x)} examples there are")
        if key is None:
            raise ValueError("a minibatch run needs a key to order its examples")
    if num_steps < first:
        raise ValueError(f"num_steps {num_steps} is below the {first} steps already taken")
    steps = np.unique(np.maximum(log_steps(num_steps), first)) if at is None else np.asarray(at)
    whole = np.issubdtype(steps.dtype, np.integer)
    if steps.ndim != 1 or steps.size == 0 or not whole or np.any(np.diff(steps) <= 0):
        raise ValueError("watch.at must be a strictly increasing list of whole steps")
    if steps[0] < first or steps[-1] > num_steps:
        limits = f"[{first}, {num_steps}]"
        raise ValueError(f"watch.at must lie in {limits}, got {steps[0]}..{steps[-1]}")
    return steps if steps[-1] == num_steps else np.append(steps, num_steps)
