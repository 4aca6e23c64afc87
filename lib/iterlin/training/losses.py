"""Losses of outputs (N, ..., O), summed over the examples; `mean` divides by N.

Minibatch training needs the mean, of which a batch gives an unbiased estimate. The theory of
Gauss-Newton and of the closed forms uses the sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree, Shaped

from iterlin.linearise import examples
from iterlin.linearise.devices import sum_over_devices
from iterlin.linearise.slices import sum_over_slices
from iterlin.linearise.validation import (
    LabelError,
    check_class_labels,
    check_targets,
    describe,
    is_traced,
    prefix_errors,
)

Loss = Callable[[Array, Array], Array]


def squared_error(outputs: Float[Array, "N ..."], targets: Float[Array, "N ..."]) -> Array:
    """Return half the squared error, 1/2 ||outputs - targets||^2, summed over the examples.

    Args:
        outputs: Outputs of the network, (N, ...).
        targets: Targets of the same shape.

    Returns:
        The sum over all entries, a scalar; not divided by N.

    Raises:
        ValueError: If the shapes differ: broadcasting (N, 1) with (N,) would hide an error.
    """
    check_targets(outputs, targets)
    return 0.5 * jnp.sum((outputs - targets) ** 2)


def cross_entropy(outputs: Float[Array, "N ... O"], targets: Shaped[Array, "N ..."]) -> Array:
    """Return the softmax cross-entropy, -log softmax(outputs)[targets], summed over the labels.

    The softmax is part of the loss, so that a linearised network still gives probabilities (paper,
    section 3 and appendix A).

    Args:
        outputs: Logits, (N, O), or (N, T, O) for T labels an example.
        targets: Integer labels 0 to O - 1, (N,) or (N, T).

    Returns:
        The sum over all labels in nats, a scalar; not divided by their number. NaN if a label that
        JAX traces is outside the O classes.

    Raises:
        ValueError: If targets have another shape or are not integers, or if a label that is not
            traced is outside the O classes.
    """
    if outputs.ndim < 2:
        raise ValueError(f"outputs must be (N, classes) or more, got shape {outputs.shape}")
    if targets.shape != outputs.shape[:-1] or not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"targets must be {_label_shape(outputs)} integer labels, "
            f"got shape {targets.shape} of {targets.dtype}"
        )
    labels = _valid_labels(targets, outputs.shape[-1])
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(outputs, labels))


def _valid_labels(targets: Any, classes: int) -> Any:
    """Return integer labels; raise `LabelError` for one outside the classes that is not traced.

    A traced label below 0, which would count from the last class, becomes `classes`, so that the
    loss is NaN.
    """
    check_class_labels("targets", targets, classes)
    if not is_traced(targets):
        return targets
    wide = targets.astype(jnp.promote_types(targets.dtype, jnp.int32))  # may hold `classes`
    return jnp.where(wide < 0, classes, wide)


def check_loss(loss: Loss, outputs: jax.ShapeDtypeStruct, targets: PyTree) -> None:
    """Require that loss(outputs, targets) is one number and that all labels are classes.

    Args:
        loss: The loss.
        outputs: Shape and dtype of the outputs (N, ..., O).
        targets: Targets of the N examples.

    Raises:
        ValueError: If the loss fails, returns anything but a floating-point scalar, or is given a
            label outside the classes (`check_labels`).
    """
    check_returns_scalar("loss", loss, outputs, targets)
    check_labels(loss, outputs, targets)


def check_returns_scalar(name: str, function: Callable, *given: PyTree) -> None:
    """Require that a function returns one number, without computing it.

    Args:
        name: Names the function in the error message.
        function: The function.
        given: Its arguments, arrays or their shapes and dtypes.

    Raises:
        ValueError: If the function fails or returns anything but a floating-point scalar.
    """
    with prefix_errors(f"{name} of {' and '.join(map(describe, given))}"):
        value = jax.eval_shape(lambda *given: function(*given), *given)
    number = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
    if not number or value.shape != ():
        raise ValueError(
            f"{name} must return one number, such as a sum or a mean over the examples: got "
            f"{describe(value)}"
        )


# Entries of the outputs that `check_labels` allocates at a time.
PART = 2**24


def check_labels(loss: Loss, outputs: jax.ShapeDtypeStruct, targets: PyTree) -> None:
    """Require that all labels that a loss or metric is given are classes of the outputs.

    A function that is not from this module is called on outputs of zeros and the targets, so that a
    cross-entropy inside it sees its labels. If the function fails for another reason, the check
    passes. Traced targets are not checked.

    Args:
        loss: A loss or metric (outputs, targets) -> number.
        outputs: Shape and dtype of the outputs (N, ..., O).
        targets: Targets of the N examples.

    Raises:
        LabelError: If a label is below 0, or is O or above.
    """
    leaves = jax.tree.leaves(targets)
    total = as_sum(loss)
    if total is squared_error or outputs.ndim < 2 or any(map(is_traced, leaves)):
        return
    if total is cross_entropy or loss is accuracy:
        if hasattr(targets, "dtype"):
            check_class_labels("targets", targets, outputs.shape[-1])
        return
    value_of = jax.jit(lambda *given: loss(*given))  # jit itself would need a hashable loss
    size = max(1, PART * outputs.shape[0] // max(1, outputs.size))
    try:
        # Copied to the host, because the data may lie on several devices.
        on_host = jax.tree.map(np.asarray, targets)
        with jax.ensure_compile_time_eval():
            for start in range(0, outputs.shape[0], size):
                stop = min(start + size, outputs.shape[0])
                zeros = jnp.zeros((stop - start, *outputs.shape[1:]), outputs.dtype)
                part = jax.tree.map(jnp.asarray, examples.take_slice(on_host, start, stop))
                if np.any(np.isnan(value_of(zeros, part))):
                    _raise_for_labels(loss, value_of, zeros, part)
    except LabelError:
        raise
    except Exception:  # any other failure of the user's function is not a label's
        return


def _raise_for_labels(loss: Loss, value_of: Callable, outputs: Array, targets: PyTree) -> None:
    """Raise `LabelError` if the loss is NaN because of a label."""
    classes = outputs.shape[-1]

    def clip(y):
        return jnp.clip(y, 0, classes - 1) if jnp.issubdtype(y.dtype, jnp.integer) else y

    clipped = jax.tree.map(clip, targets)
    if not np.any(np.isnan(value_of(outputs, clipped))):
        for leaf in jax.tree.leaves(targets):
            check_class_labels("targets", leaf, classes)
    with jax.disable_jit():  # the loss may compute its labels from the targets: check those
        loss(outputs, targets)


def _label_shape(outputs: Any) -> str:
    """Return the shape of the labels for an error message, as '12 x 3'."""
    return " x ".join(map(str, outputs.shape[:-1]))


@dataclass(frozen=True)
class Mean:
    """A loss divided by the number of examples N, as `mean` returns it.

    Args:
        total: A loss that sums over the examples.

    Raises:
        ValueError: If total is a `Mean` already.
    """

    total: Loss

    def __post_init__(self):
        if isinstance(self.total, Mean):
            raise ValueError("the loss is a mean already: a mean of it would divide by N twice")

    def __call__(self, outputs, targets):
        """Return total(outputs, targets) / N, a scalar."""
        return self.total(outputs, targets) / outputs.shape[0]


def mean(loss: Loss) -> Loss:
    """Return the loss divided by the number of examples N.

    Args:
        loss: A loss that sums over the examples. An example with T labels counts once.

    Returns:
        loss(outputs, targets) / N as a function of (outputs, targets).

    Raises:
        ValueError: If the loss is such a mean already.
    """
    return Mean(loss)


def as_sum(loss: Loss) -> Loss | None:
    """Return the sum over examples that a loss is, or is the mean of.

    The gradient of such a loss can be accumulated over slices of the examples.

    Args:
        loss: Any loss.

    Returns:
        `squared_error` or `cross_entropy`; None for a loss that is not known to be a sum.
    """
    total = loss.total if isinstance(loss, Mean) else loss
    return total if total in (squared_error, cross_entropy) else None


def smoothness(loss: Loss, count: int) -> float:
    """Return an upper bound on the eigenvalues of the Hessian of a loss in the outputs.

    The bound is 1 for half the squared error. It is 1/2 for cross-entropy, whose Hessian is
    diag(p) - p p^T (Boehning 1992). A mean has the bound of its sum divided by N.

    Args:
        loss: `squared_error`, `cross_entropy`, or the mean of one.
        count: Number of examples N.

    Raises:
        ValueError: If no bound is known for the loss.
    """
    bounds: dict[Loss, float] = {squared_error: 1.0, cross_entropy: 0.5}
    total = as_sum(loss)
    if total is None:
        raise ValueError(f"no bound on the curvature of {loss!r} is known: take a fixed step size")
    return bounds[total] / (count if isinstance(loss, Mean) else 1)


def loss_over_slices(
    term: Callable[[Loss, Array, Array], PyTree],
    loss: Loss,
    size: int | None,
    x: PyTree,
    y: PyTree,
    mesh: Mesh | None = None,
) -> PyTree:
    """Evaluate a term that is linear in the loss, such as a gradient, slice by slice.

    Slices and meshes need a loss that is known to be a sum over examples, or the mean of one
    (`as_sum`). For any other loss the term is evaluated on all examples at once.

    Args:
        term: term(loss, x, y) -> a pytree that is linear in the loss.
        loss: The loss.
        size: Examples in a slice; None for all.
        x: Inputs of N examples.
        y: Targets of N examples.
        mesh: Devices that share the examples; None for one device.

    Returns:
        term(loss, x, y).
    """
    total = as_sum(loss)
    if total is None or (size is None and mesh is None):
        return term(loss, x, y)
    of_part = partial(term, total)
    if size is not None:
        of_part = partial(sum_over_slices, of_part, size)
    summed = of_part(x, y) if mesh is None else sum_over_devices(of_part, mesh, x, y)
    if isinstance(loss, Mean):
        summed = jax.tree.map(lambda leaf: leaf / examples.num_examples(y), summed)
    return summed


def accuracy(outputs: Float[Array, "N ... O"], targets: Shaped[Array, "N ..."]) -> Array:
    """Return the fraction of labels whose output is the largest.

    Args:
        outputs: Logits, (N, O), or (N, T, O) for T labels an example.
        targets: Labels 0 to O - 1, (N,) or (N, T).

    Returns:
        A scalar from 0 to 1; NaN if a label that JAX traces is outside the O classes.

    Raises:
        ValueError: If targets have another shape (broadcasting would hide an error), or if a label
            that is not traced is outside the O classes.
    """
    if jnp.shape(targets) != outputs.shape[:-1]:
        raise ValueError(
            f"targets must be {_label_shape(outputs)} labels, got shape {jnp.shape(targets)}"
        )
    right = jnp.argmax(outputs, axis=-1) == targets
    if jnp.issubdtype(jnp.result_type(targets), jnp.integer):
        valid = _valid_labels(targets, outputs.shape[-1]) < outputs.shape[-1]
        right = jnp.where(valid, right, jnp.nan)
    return jnp.mean(right)
