"""Losses of outputs (N, ..., O), summed over the examples; `mean` divides by N.

`mean` of a loss is what an image experiment trains on (a minibatch is then an unbiased estimate);
the theory of Gauss-Newton and of the closed forms uses the sums.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
    """1/2 ||outputs - targets||^2, summed over examples and outputs; not divided by N.

    Raises ValueError if the shapes differ: broadcasting (N, 1) with (N,) would hide an error.
    """
    check_targets(outputs, targets)
    return 0.5 * jnp.sum((outputs - targets) ** 2)


def cross_entropy(outputs: Float[Array, "N ... O"], targets: Shaped[Array, "N ..."]) -> Array:
    """-sum log softmax(outputs)[targets] over all integer labels; not divided by their number.

    Labels are (N,) for outputs (N, O) and (N, T) for one of O classes at each of T places. The
    softmax belongs to the loss, so that linearising the network leaves probabilities intact (paper,
    section 3 and appendix A). Raises ValueError if targets are not that many integers, or for a
    label outside the O classes; where JAX traces the labels, one outside makes the loss NaN.
    """
    if outputs.ndim < 2:
        raise ValueError(f"outputs must be (N, classes) or more, got shape {outputs.shape}")
    if targets.shape != outputs.shape[:-1] or not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"targets must be {_counted(outputs)} integer labels, "
            f"got shape {targets.shape} of {targets.dtype}"
        )
    known = _checked(targets, outputs.shape[-1])
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(outputs, known))


def _checked(targets, classes):
    """Integer labels. Of concrete ones outside the classes an error tells; traced ones below 0,
    which would count from the last class, become too large, of which the loss is NaN."""
    check_class_labels("targets", targets, classes)
    if not is_traced(targets):
        return targets
    wide = targets.astype(jnp.promote_types(targets.dtype, jnp.int32))  # may hold `classes`
    return jnp.where(wide < 0, classes, wide)


def check_loss(loss: Loss, outputs: jax.ShapeDtypeStruct, targets: PyTree) -> None:
    """Raises ValueError unless loss(outputs, targets) is one number; and as `check_labels`."""
    number_of("loss", loss, outputs, targets)
    check_labels(loss, outputs, targets)


def number_of(name: str, function: Callable, *given: PyTree) -> None:
    """Raises ValueError unless a function, by its name, returns one number; nothing runs."""
    with prefix_errors(f"{name} of {' and '.join(map(describe, given))}"):
        value = jax.eval_shape(lambda *given: function(*given), *given)
    number = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
    if not number or value.shape != ():
        raise ValueError(
            f"{name} must return one number, such as a sum or a mean over the examples: got "
            f"{describe(value)}"
        )


# Numbers in the outputs that `check_labels` makes at a time.
PART = 2**24


def check_labels(loss: Loss, outputs: jax.ShapeDtypeStruct, targets: PyTree) -> None:
    """Raises `LabelError` where the loss, or metric, is given a label of none of its classes.

    Any function but the losses of this module is called for it, on outputs of zeros and the
    targets, so that the cross-entropy within sees the labels that it is given. If it fails for
    another reason, nothing is found. Traced targets are not looked at.
    """
    leaves = jax.tree.leaves(targets)
    total = as_sum(loss)
    if total is squared_error or outputs.ndim < 2 or any(map(is_traced, leaves)):
        return
    if total is cross_entropy or loss is accuracy:
        if hasattr(targets, "dtype"):
            check_class_labels("targets", targets, outputs.shape[-1])
        return
    value_of = jax.jit(lambda *given: loss(*given))  # of a loss that has no hash, too
    size = max(1, PART * outputs.shape[0] // max(1, outputs.size))
    try:
        # On no device: the data may be dealt out to several.
        numbers = jax.tree.map(np.asarray, targets)
        with jax.ensure_compile_time_eval():
            for start in range(0, outputs.shape[0], size):
                stop = min(start + size, outputs.shape[0])
                zeros = jnp.zeros((stop - start, *outputs.shape[1:]), outputs.dtype)
                part = jax.tree.map(jnp.asarray, examples.take_slice(numbers, start, stop))
                if np.any(np.isnan(value_of(zeros, part))):
                    _blame(loss, value_of, zeros, part)
    except LabelError:
        raise
    except Exception:  # of the user's function, which this is no test of
        return


def _blame(loss, value_of, outputs, targets):
    """Raise `LabelError` if a label is why the loss is NaN."""
    classes = outputs.shape[-1]

    def into_range(y):
        return jnp.clip(y, 0, classes - 1) if jnp.issubdtype(y.dtype, jnp.integer) else y

    within = jax.tree.map(into_range, targets)
    if not np.any(np.isnan(value_of(outputs, within))):
        for leaf in jax.tree.leaves(targets):
            check_class_labels("targets", leaf, classes)
    with jax.disable_jit():  # the loss may have changed the targets: it sees its own
        loss(outputs, targets)


def _counted(outputs) -> str:
    return " x ".join(map(str, outputs.shape[:-1]))


@dataclass(frozen=True)
class Mean:
    """A loss that is a sum over the examples, divided by their number N."""

    total: Loss

    def __post_init__(self):
        if isinstance(self.total, Mean):
            raise ValueError("the loss is a mean already: a mean of it would divide by N twice")

    def __call__(self, outputs, targets):
        return self.total(outputs, targets) / outputs.shape[0]


def mean(loss: Loss) -> Loss:
    """The same loss divided by the number of examples N, whatever an example's outputs are.

    Raises ValueError for a loss that is such a mean already.
    """
    return Mean(loss)


def as_sum(loss: Loss) -> Loss | None:
    """The sum over examples that `loss` is, or is the mean of; None if it is not known to be one.

    Only of such a loss may the gradient be had from some examples at a time.
    """
    total = loss.total if isinstance(loss, Mean) else loss
    return total if total in (squared_error, cross_entropy) else None


def smoothness(loss: Loss, count: int) -> float:
    """The largest eigenvalue that the loss's Hessian in the outputs of `count` examples can have.

    1 for half a squared error and 1/2 for cross-entropy (of diag(p) - p p^T: Boehning 1992), over
    N for their means. Raises ValueError for any other loss.
    """
    bounds = {squared_error: 1.0, cross_entropy: 0.5}
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
    """term(loss, x, y), a pytree linear in the loss such as its gradient, slice by slice; on the
    devices of a mesh, each of which has its part of the examples.

    That needs a loss known to be a sum over examples or the mean of one (`as_sum`); with any
    other, or with neither size nor mesh, it is term(loss, x, y) itself.
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
    """Fraction of labels (all of them: N, or N x T) whose output is the largest.

    Raises ValueError if targets are not that many (broadcasting would hide an error), or for a
    label outside the O classes; where JAX traces the labels, one outside makes it NaN.
    """
    if jnp.shape(targets) != outputs.shape[:-1]:
        raise ValueError(
            f"targets must be {_counted(outputs)} labels, got shape {jnp.shape(targets)}"
        )
    right = jnp.argmax(outputs, axis=-1) == targets
    if jnp.issubdtype(jnp.result_type(targets), jnp.integer):
        known = _checked(targets, outputs.shape[-1]) < outputs.shape[-1]
        right = jnp.where(known, right, jnp.nan)
    return jnp.mean(right)
