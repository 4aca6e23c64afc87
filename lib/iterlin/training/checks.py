"""Check the arguments of a training run before any compute."""

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.linearise import examples
from iterlin.linearise.digests import digest
from iterlin.linearise.linearization import check_finite_examples, output_shape
from iterlin.linearise.parameters import partition
from iterlin.linearise.validation import (
    check_positive_integer,
    describe,
    inside_trace,
    is_traced,
    prefix_errors,
)
from iterlin.training.losses import check_labels, check_returns_scalar
from iterlin.training.schedules import Solved
from iterlin.training.state import TrainState
from iterlin.training.step import Step
from iterlin.training.watching import Watch, check_sets, check_watch, log_steps


def check_call(name: str, step: Step, given: PyTree, watch: Any, checkpoint: Any) -> None:
    """Require a `Watch`, a path for the checkpoint, and arguments that JAX does not trace.

    name: the function that is called. given: further arguments: parameters, data and keys.
    """
    check_watch(watch)
    if not isinstance(checkpoint, str | os.PathLike | None):
        raise ValueError(f"checkpoint must be the path of a file, got {checkpoint!r}")
    numbers = step.algorithm.optimizer, step.algorithm.penalty
    given = given, dict(watch.sets), numbers
    is_iterator = lambda node: isinstance(node, Iterator)  # noqa: E731
    leaves = jax.tree.leaves(given, is_leaf=is_iterator)
    if inside_trace() or any(map(is_traced, leaves)):
        raise ValueError(
            f"{name} is a loop in Python around compiled programs: call it outside of jax.jit, "
            "jax.vmap and jax.grad; train_sweep makes several runs at once"
        )


def batch_iterator(data: Any, step: Step, checkpoint: Any) -> Iterator:
    """Return an iterator over the batches (x, y) of a run.

    Raises ValueError if data are not iterable, or if the run needs all examples at once or has a
    checkpoint.
    """
    if not isinstance(data, Iterable) or hasattr(data, "shape") or isinstance(data, Mapping | str):
        raise ValueError(
            f"data must be (inputs, targets), or batches of these: got {describe(data)}"
        )
    for name, value in (("batch_size", step.batch_size), ("when_solved", step.schedule.solved)):
        if value is not None:
            raise ValueError(f"{name} needs all data at once: give (inputs, targets), no iterable")
    if checkpoint is not None:
        raise ValueError("a run on batches takes no checkpoint: give its last state to a new call")
    return iter(data)


def check_functions(
    step: Step, params: PyTree, key: Array | None, data: Any, watch: Watch
) -> jax.ShapeDtypeStruct:
    """Require that the functions of an algorithm take what training gives them.

    params are arrays or their shapes and dtypes. Returns shape and dtype of the outputs for all
    inputs x. Raises ValueError, which names the function, if f, the loss, the regularizer or
    augment fails or returns something else than training needs, if a label in the data or in a set
    of watch is outside the classes, or if NaN or inf in the inputs reaches the outputs.
    """
    algorithm, (x, y) = step.algorithm, data
    drawn = (key,) if algorithm.keyed else ()
    network = lambda p, x: algorithm.f(p, x, *drawn)  # noqa: E731
    outputs_of = partial(output_shape, network, params)
    try:
        outputs = outputs_of(x)
    except ValueError:
        if looks_like_batches(data):
            raise ValueError(BATCHES) from None
        raise
    size = outputs.shape[0] if step.batch_size is None else step.batch_size
    batch = outputs.update(shape=(size, *outputs.shape[1:]))
    check_returns_scalar("loss", algorithm.loss, batch, examples.batch_shapes(y, size))
    if step.augment is not None:
        inputs = examples.batch_shapes(x, size)
        with prefix_errors(f"augment of inputs {describe(inputs)}"):
            augmented = jax.eval_shape(step.augment, key, inputs)
            found = outputs_of(augmented)
        if found.shape != batch.shape:
            raise ValueError(
                f"augment must return as many inputs as it is given, {describe(inputs)}: got "
                f"{describe(augmented)}"
            )
    if algorithm.regularizer is not None:
        check_returns_scalar("regularizer", algorithm.regularizer, params)
    check_labels(algorithm.loss, outputs, y)
    _check_targets_of_rule(step.schedule.solved, outputs, y)
    check_finite_examples(network, params, x)
    check_sets(watch, algorithm.loss, outputs_of)
    return outputs


def _check_targets_of_rule(rule: Solved | None, outputs: jax.ShapeDtypeStruct, y: PyTree) -> None:
    """Require a label for each row of outputs if the rule counts right labels."""
    if rule is None or rule.accuracy is None:
        return
    if not jax.tree_util.all_leaves([y]) or jnp.shape(y) != outputs.shape[:-1]:
        raise ValueError(
            "the rule `Solved` counts right labels, one for each row of outputs "
            f"{outputs.shape}: with other targets give Solved(accuracy=None, gradient=...)"
        )


BATCHES = "data must be two, inputs and targets: give batches (x, y) as an iterator, iter(data)"


def looks_like_batches(data: Any) -> bool:
    """Return whether data look like a list of batches (x, y) instead of inputs and targets."""

    def shapes(batch):
        leaves, structure = jax.tree.flatten(batch)
        return structure, [(np.shape(leaf)[1:], jnp.result_type(leaf)) for leaf in leaves]

    if not all(isinstance(part, tuple | list) and len(part) == 2 for part in data):
        return False
    return all(shapes(part) == shapes(data[0]) for part in data[1:])


def check_resumed(state: TrainState, step: Step, count: int) -> None:
    """Require a state from which these steps can resume, on `count` examples.

    Raises ValueError if the state is of a run with another optimiser, other trained parameters,
    another number of examples, or full batches in place of minibatches.
    """
    if step.batch_size is not None and state.order.size != count:
        if state.order.size == 0:
            raise ValueError("the state is of a full-batch run: it cannot go on with a batch_size")
        raise ValueError(f"the state is of a run on {state.order.size} examples, not {count}")
    moving, fixed = partition(state.params, step.algorithm.trainable)
    linearised_at = partition(state.anchor, step.algorithm.trainable)[1]
    wanted = jax.eval_shape(step.algorithm.transformation.init, moving)
    same_optimizer = jax.tree.structure(wanted) == jax.tree.structure(state.optimizer_state)
    if not same_optimizer or digest(fixed) != digest(linearised_at):
        raise ValueError(
            "the state is of a run with another optimizer, or with other parameters trained"
        )


def check_run(step: Step, data: Any, num_steps: Any, at: Any, first: int = 0) -> np.ndarray:
    """Check the data and the number of steps of a run, and return the steps to record.

    at: `Watch.at`. first: the number of steps already taken. Returns increasing steps (T,), of
    which the last is num_steps.
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        if isinstance(data, tuple | list) and len(data) > 2 and looks_like_batches(data):
            raise ValueError(BATCHES)
        raise ValueError("data must be two: inputs and targets, each an array or a pytree")
    step.algorithm.transformation  # noqa: B018 (raises ValueError if there is none)
    check_positive_integer("num_steps", num_steps, below=2**31)
    count, targets = examples.num_examples(data[0]), examples.num_examples(data[1], "targets")
    if isinstance(data[0], list) and len(data[0]) == targets != count:
        raise ValueError(f"inputs are a list of the {targets} examples: give one array of them all")
    if count != targets and looks_like_batches(data):
        raise ValueError(BATCHES)
    if count != targets:
        raise ValueError(f"inputs and targets differ in length: {count} and {targets}")
    if step.batch_size is not None and step.batch_size > count:
        raise ValueError(f"batch_size {step.batch_size} exceeds the {count} examples there are")
    if num_steps < first:
        raise ValueError(f"num_steps {num_steps} is below the {first} steps already taken")
    steps = np.unique(np.maximum(log_steps(num_steps), first)) if at is None else np.asarray(at)
    integers = np.issubdtype(steps.dtype, np.integer)
    if steps.shape == (0,):
        return np.asarray([num_steps])
    if steps.ndim != 1 or not integers or np.any(steps[1:] <= steps[:-1]):
        raise ValueError("watch.at must be a strictly increasing list of whole steps")
    if steps[0] < first or steps[-1] > num_steps:
        limits = f"[{first}, {num_steps}]"
        raise ValueError(f"watch.at must lie in {limits}, got {steps[0]}..{steps[-1]}")
    return steps if steps[-1] == num_steps else np.append(steps, num_steps)
