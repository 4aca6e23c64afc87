"""Metrics of the network and of its proxy that a run records on chosen sets of examples."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.linearise import examples
from iterlin.linearise.linearization import linearize
from iterlin.linearise.slices import in_slices
from iterlin.linearise.validation import (
    LabelError,
    check_positive_integer,
    describe,
    explain_tracer_errors,
    prefix_errors,
)
from iterlin.training.algorithm import Algorithm
from iterlin.training.losses import Loss, check_labels
from iterlin.training.state import TrainState, combine_state

Metrics = Mapping[str, Callable[[Array, Array], Array]]
Sets = Mapping[str, tuple[PyTree, PyTree] | list[PyTree]]


class Watch(NamedTuple):
    """What a run records, and at which steps.

    Each metric is recorded on each set: for the network as "<set>_<metric>", for its proxy as
    "<set>_<metric>_proxy". The history always has "step" and "updates". Training raises ValueError
    before any compute if two entries would have the same name.

    Attributes:
        sets: {"test": (x, y), ...}.
        metrics: {"accuracy": accuracy, ...}, functions of (outputs, y); None for the loss that is
            minimised.
        at: Increasing steps at which to record. The last step of the run is added, so that []
            records it alone. None for step 0 and a log grid.
        observe: observe(state) -> {name: array} records further quantities.
        batch_size: Examples of a set that are evaluated at a time; None for all.

    >>> f, x, y = lambda p, x: jnp.tanh(x @ p), jnp.eye(2), jnp.array([0.5, -0.5])
    >>> algorithm = il.Algorithm(f, il.losses.squared_error, optimizer=0.5)
    >>> worst = lambda outputs, y: jnp.max(jnp.abs(outputs - y))
    >>> watch = il.Watch({"test": (x, y)}, {"worst": worst}, at=[0, 5])
    >>> settings = {"schedule": 5, "num_steps": 10, "watch": watch}
    >>> _, history = il.train(algorithm, jnp.zeros(2), (x, y), **settings)
    >>> print(sorted(history), history["test_worst"].round(2))
    ['step', 'test_worst', 'test_worst_proxy', 'updates'] [0.5  0.05 0.01]
    """

    sets: Sets = MappingProxyType({})
    metrics: Metrics | None = None
    at: Any = None
    observe: Callable[[TrainState], Mapping[str, Array]] | None = None
    batch_size: int | None = None

    def __repr__(self):
        defaults = self._field_defaults  # a signature that has a default Watch shows "Watch()"
        given = {k: v for k, v in self._asdict().items() if v is not defaults[k]}
        return f"Watch({', '.join(f'{name}={describe(value)}' for name, value in given.items())})"


# Record the number of feature updates alone.
UPDATES = Watch()


def observer(
    algorithm: Algorithm, watch: Watch, taken: tuple[str, ...] = ("step",)
) -> Callable[..., dict[str, Array]]:
    """Make the function observe(state, sets, fixed) -> {name: array} of what a run records.

    The state is one of all parameters, or of those that `fixed` does not hold. The function does
    not hold the sets of the watch. Tracing it raises ValueError for a name that occurs twice, or is
    taken: used by the history for another quantity.
    """
    watch = watch._replace(sets={}, at=None)
    metrics = _metrics(watch, algorithm.loss)

    def observe(state: TrainState, sets: Sets, fixed: PyTree = ()):
        state = combine_state(state, fixed)
        measures = [metric + suffix for metric in metrics for suffix in ("", "_proxy")]
        check_unique_names(taken, ["updates"], [f"{name}_{of}" for name in sets for of in measures])
        seen = {"updates": state.updates}
        network = algorithm.network(state)
        proxy = linearize(network, state.anchor, trainable=algorithm.trainable)

        def measured(chosen):
            x, y = chosen
            found = {}
            for suffix, model in {"": network, "_proxy": proxy}.items():
                size = watch.batch_size or examples.num_examples(x)
                outputs = in_slices(model, size)(state.params, x)
                for metric, function in metrics.items():
                    with prefix_errors(f"the metric '{metric}' of watch"):
                        found[metric + suffix] = jnp.asarray(function(outputs, y))
            return found

        for name, values in _map_sets(measured, sets).items():
            seen |= {f"{name}_{metric}": value for metric, value in values.items()}
        if watch.observe is None:
            return seen
        with explain_tracer_errors("observe of watch", "state", "jnp.linalg.norm(...)"):
            more = watch.observe(state)
        if not isinstance(more, Mapping):
            raise ValueError(f"observe of watch must return {{name: array}}, got {describe(more)}")
        check_unique_names(taken, seen, more)
        with prefix_errors("observe of watch"):
            return seen | {name: jnp.asarray(value) for name, value in more.items()}

    return observe


def check_unique_names(*names: Iterable[str]) -> None:
    """Require that no name of the history occurs twice."""
    count = Counter(chain(*names))
    if twice := [name for name in count if count[name] > 1]:
        raise ValueError(
            f"the history would have two entries named '{twice[0]}': rename a set or a metric of "
            "watch, or what its observe returns"
        )


def _map_sets(measured: Callable[[Any], dict], sets: Sets) -> dict[str, dict[str, Array]]:
    """Return {name: measured(set)}.

    Sets of equal shapes are stacked and share one program, because compiling one for each set can
    take longer than a run.
    """
    alike = {}
    for name, chosen in sets.items():
        leaves, structure = jax.tree.flatten(tuple(chosen))
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        alike.setdefault((structure, shapes), []).append(name)
    found = {}
    for names in alike.values():
        chosen = [tuple(sets[name]) for name in names]
        if len(names) == 1:
            values = [measured(*chosen)]
        else:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *chosen)
            of_all = jax.lax.map(measured, stacked)
            values = [jax.tree.map(itemgetter(i), of_all) for i in range(len(names))]
        found |= dict(zip(names, values, strict=True))
    return {name: found[name] for name in sets}


def check_watch(watch: Any) -> None:
    """Require a `Watch` of sets (x, y) and of metrics that are functions."""
    if not isinstance(watch, Watch):
        raise ValueError(
            "watch must be a Watch, as il.Watch({'test': (x, y)}), got one of type "
            f"{type(watch).__name__}"
        )
    for name in ("sets", "metrics"):
        value = getattr(watch, name)
        if not isinstance(value, Mapping) and not (name == "metrics" and value is None):
            raise ValueError(
                f"{name} of watch must be named, as in {{'test': ...}}: got {describe(value)}"
            )
    for name, chosen in watch.sets.items():
        if not isinstance(chosen, tuple | list) or len(chosen) != 2:
            raise ValueError(f"the set '{name}' of watch must be inputs and targets (x, y)")
    for name, metric in (watch.metrics or {}).items():
        if not callable(metric):
            raise ValueError(f"the metric '{name}' of watch must be a function, got {metric!r}")
    if watch.observe is not None and not callable(watch.observe):
        raise ValueError(f"observe of watch must be a function, got {watch.observe!r}")
    if watch.batch_size is not None:
        check_positive_integer("batch_size of watch", watch.batch_size)


def check_sets(watch: Watch, loss: Loss, outputs_of: Callable) -> None:
    """Require that the network takes the inputs of each set, and that all labels are classes.

    outputs_of: outputs_of(x) -> shape and dtype of the outputs for inputs x.
    """
    for name, (x, y) in watch.sets.items():
        examples.num_examples(x, f"watch.sets[{name!r}][0]")
        with prefix_errors(f"the set '{name}' of watch"):
            outputs = outputs_of(x)
        for metric in _metrics(watch, loss).values():
            try:
                check_labels(metric, outputs, y)
            except LabelError as error:
                raise ValueError(f"the set '{name}' of watch: {error}") from None


def _metrics(watch: Watch, loss: Loss) -> Metrics:
    """Return the metrics by name: those of the watch, or else the loss."""
    return {"loss": loss} if watch.metrics is None else watch.metrics


def log_steps(num_steps: int, per_decade: int = 6) -> np.ndarray:
    """Return 0 and the steps of a log grid from 1 to num_steps, increasing integers (T,)."""
    count = max(2, int(per_decade * np.log10(max(num_steps, 2))) + 1)
    return np.unique(np.concatenate([[0], np.geomspace(1, num_steps, count).round()])).astype(int)
