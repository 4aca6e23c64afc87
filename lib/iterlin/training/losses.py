"""Losses of outputs (N, ..., O), summed over the targets; `mean` divides by their number.

The theory of Gauss-Newton, of the closed forms and of the Laplace approximation uses the sum.
Minibatch training needs the mean, of which a batch gives an estimate. Options of a loss are given
with `functools.partial`, for example ``mean(partial(cross_entropy, ignore=-100))``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree, Shaped

from iterlin.linearise import examples
from iterlin.linearise.compiled import SharedJit
from iterlin.linearise.devices import sum_over_devices
from iterlin.linearise.precision import widened
from iterlin.linearise.slices import sum_over_slices
from iterlin.linearise.validation import (
    LabelError,
    check_class_labels,
    check_finite,
    check_non_negative,
    check_one_of,
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


def cross_entropy(
    outputs: Float[Array, "N ... O"],
    targets: Shaped[Array, "N ..."],
    *,
    ignore: int | Sequence[int] | None = None,
    class_weights: Any = None,
) -> Array:
    """Return the softmax cross-entropy, -log softmax(outputs)[targets], summed over the labels.

    The softmax is part of the loss, so that a linearised network still gives probabilities (paper,
    section 3 and appendix A).

    Args:
        outputs: Logits, (N, O), or (N, T, O) for T labels an example, and so on.
        targets: Integer labels 0 to O - 1, (N,) or (N, T). To mask labels, replace them by a label
            that is ignored: ``jnp.where(mask, targets, -100)``.
        ignore: A label, or several, that count for nothing, such as -100 for padding.
        class_weights: Weights (O,) by which the terms of the classes are multiplied.

    Returns:
        The sum over all labels in nats, a scalar; not divided by their number. NaN if a label that
        JAX traces is outside the O classes.

    Raises:
        ValueError: If targets have another shape or are not integers, if a label that is not traced
            is outside the O classes and not ignored, or if class_weights are not O numbers that are
            at least 0.

    >>> logits, labels = jnp.zeros((2, 3, 5)), jnp.array([[0, 4, -100], [2, -100, -100]])
    >>> print(il.losses.cross_entropy(logits, labels, ignore=-100) / jnp.log(5))
    3.0
    """
    if outputs.ndim < 2:
        raise ValueError(f"outputs must be (N, classes) or more, got shape {outputs.shape}")
    if targets.shape != outputs.shape[:-1] or not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"targets must be {_label_shape(outputs)} integer labels, "
            f"got shape {targets.shape} of {targets.dtype}"
        )
    labels = _valid_labels(targets, outputs.shape[-1], ignore)
    if ignore is None and class_weights is None:
        return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(outputs, labels))
    if class_weights is not None:
        check_non_negative("class_weights", class_weights)
        if jnp.shape(class_weights) != outputs.shape[-1:]:
            raise ValueError(
                f"class_weights must be a number for each of the {outputs.shape[-1]} classes, got "
                f"shape {jnp.shape(class_weights)}"
            )
    weights = _label_weights(targets, ignore, class_weights)
    if ignore is not None:  # outputs there may be anything, even NaN, and have a gradient of zero
        kept = ~_is_ignored(targets, ignore)
        outputs, labels = jnp.where(kept[..., None], outputs, 0), jnp.where(kept, labels, 0)
    terms = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
    return jnp.sum(weights.astype(terms.dtype) * terms)


def _label_weights(targets: Any, ignore: Any, class_weights: Any) -> Array:
    """Return the weight of each label: 0 if it is ignored, else the weight of its class."""
    kept = jnp.ones(targets.shape, bool) if ignore is None else ~_is_ignored(targets, ignore)
    if class_weights is None:
        return jnp.asarray(kept, float)
    of_class = jnp.take(jnp.asarray(class_weights, float), jnp.where(kept, targets, 0), mode="clip")
    return jnp.where(kept, of_class, 0)


def _is_ignored(targets: Any, ignore: Any) -> Any:
    """Return which labels are ignored, as a NumPy array unless the labels are traced."""
    values = np.asarray(ignore)
    if values.dtype.kind not in "iu":
        raise ValueError(f"ignore must be integer labels, got {ignore!r}")
    module = jnp if is_traced(targets) else np
    return module.isin(module.asarray(targets), values.astype(np.int32))


def _valid_labels(targets: Any, classes: int, ignore: Any = None) -> Any:
    """Return integer labels; raise `LabelError` for one outside the classes that is not traced.

    A traced label below 0, which would count from the last class, becomes `classes`, so that the
    loss is NaN. Ignored labels become 0.
    """
    if ignore is not None:
        module = jnp if is_traced(targets) else np
        targets = module.where(_is_ignored(targets, ignore), 0, targets)
    check_class_labels("targets", targets, classes)
    if not is_traced(targets):
        return targets
    wide = targets.astype(jnp.promote_types(targets.dtype, jnp.int32))  # may hold `classes`
    return jnp.where(wide < 0, classes, wide)


def _with_options(loss: Any) -> tuple[Any, dict[str, Any]]:
    """Return the function that a loss or metric is, and the options that `partial` gives it."""
    if isinstance(loss, partial) and not loss.args:
        return loss.func, loss.keywords
    return loss, {}


def check_loss(loss: Loss, outputs: jax.ShapeDtypeStruct, targets: PyTree) -> None:
    """Require that loss(outputs, targets) is one number and that all labels are classes."""
    if not callable(loss):
        raise ValueError(f"loss must be a function of (outputs, targets), got {loss!r}")
    check_returns_scalar("loss", loss, outputs, targets)
    check_labels(loss, outputs, targets)


def check_returns_scalar(name: str, function: Callable, *given: PyTree) -> None:
    """Require that a function of these arguments returns one number, without computing it."""
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
    passes. Traced targets are not checked. Raises `LabelError`, or ValueError if a target of the
    squared error is not finite.
    """
    leaves = jax.tree.leaves(targets)
    function, options = _with_options(as_sum(loss) or loss)
    if function is squared_error:
        check_finite("targets", targets)
        return
    if outputs.ndim < 2 or any(map(is_traced, leaves)):
        return
    if function in (cross_entropy, accuracy):
        if hasattr(targets, "dtype"):
            _valid_labels(targets, outputs.shape[-1], options.get("ignore"))
        return
    value_of = SharedJit(loss)
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
    """A loss divided by the number of targets or of examples, as `mean` returns it.

    Args:
        total: A loss that sums over the examples.
        over: "targets" or "examples".

    Raises:
        ValueError: If total is a `Mean` already, or over is another word.
    """

    total: Loss
    over: Literal["targets", "examples"] = "targets"

    def __post_init__(self):
        if isinstance(self.total, Mean):
            raise ValueError("the loss is a mean already: a mean of it would divide by N twice")
        check_one_of("over", self.over, ("targets", "examples"))

    def divisor(self, num_examples: int, targets: PyTree) -> Any:
        """Return the number by which the sum is divided; it may be traced.

        Raises ValueError if the targets are not one array and their number is asked for.
        """
        if self.over == "examples":
            return num_examples
        if not hasattr(targets, "size"):
            raise ValueError(
                "mean cannot count the targets, which are not one array: give mean(loss, "
                "over='examples')"
            )
        function, options = _with_options(self.total)
        if function is not cross_entropy or not options:
            return targets.size
        weights = _label_weights(targets, options.get("ignore"), options.get("class_weights"))
        total = jnp.sum(weights)
        return jnp.where(total > 0, total, 1)

    def __call__(self, outputs, targets):
        """Return total(outputs, targets) / divisor, a scalar; of float16 as float32.

        The largest float16 is 65,504, which the sum or the number of examples may exceed.
        """
        if isinstance(outputs, Array) and outputs.dtype == jnp.float16:
            outputs = outputs.astype(jnp.float32)
        value = self.total(outputs, targets)
        return _divide(value, self.divisor(outputs.shape[0], targets))


def _divide(value: Array, divisor: Any) -> Array:
    """Return value / divisor in the type of the value."""
    return value / (divisor if isinstance(divisor, int) else divisor.astype(value.dtype))


def mean(loss: Loss, *, over: Literal["targets", "examples"] = "targets") -> Loss:
    """Return the loss divided by the number of targets, as PyTorch and optax users know a mean.

    Step sizes, damping and curvature then refer to the mean, and `exp` of a mean cross-entropy is
    the perplexity.

    Args:
        loss: A loss that sums over the examples.
        over: What to average over. "targets" divides by the number of targets: labels for
            `cross_entropy` (N T for T tokens an example), numbers for `squared_error` (N O for
            outputs (N, O)), and entries of the targets for any other loss, so that one-hot targets
            need "examples". Labels that `cross_entropy` ignores are not counted, and one with a
            class weight counts as its weight; the loss is 0 if none is left. "examples" divides by
            the number of examples N.

    Returns:
        The mean, as a function of (outputs, targets).

    Raises:
        ValueError: If the loss is such a mean already, or over is another word; when it is called,
            if targets that are not one array are to be counted.

    >>> from functools import partial
    >>> loss = il.losses.mean(partial(il.losses.cross_entropy, ignore=-100))
    >>> logits, labels = jnp.zeros((2, 3, 5)), jnp.array([[0, 4, -100], [2, -100, -100]])
    >>> print(jnp.exp(loss(logits, labels)).round(4))
    5.0
    """
    return Mean(loss, over)


def as_sum(loss: Loss) -> Loss | None:
    """Return the sum over examples that a loss is, or is the mean of.

    The gradient of such a loss can be accumulated over slices of the examples.

    Args:
        loss: Any loss.

    Returns:
        `squared_error` or `cross_entropy`, with its options; None for a loss that is not known to
        be a sum.
    """
    total = loss.total if isinstance(loss, Mean) else loss
    function, options = _with_options(total)
    if function not in (squared_error, cross_entropy):
        return None
    return total if options else function


def smoothness(loss: Loss, targets: Array) -> float | Array:
    """Return an upper bound on the eigenvalues of the Hessian of a loss in the outputs.

    The bound is 1 for half the squared error. It is 1/2 for cross-entropy, whose Hessian is
    diag(p) - p p^T (Boehning 1992), times the largest class weight. A mean has the bound of its sum
    divided by what the mean is divided by.

    Args:
        loss: `squared_error`, `cross_entropy`, or the mean of one.
        targets: Targets of N examples.

    Raises:
        ValueError: If no bound is known for the loss.
    """
    total = as_sum(loss)
    if total is None:
        raise ValueError(f"no bound on the curvature of {loss!r} is known: take a fixed step size")
    function, options = _with_options(total)
    bound = 1.0 if function is squared_error else 0.5
    if options.get("class_weights") is not None:
        bound = bound * jnp.max(jnp.asarray(options["class_weights"], float))
    if isinstance(loss, Mean):
        bound = bound / loss.divisor(examples.num_examples(targets), targets)
    return bound


def loss_over_slices(
    term: Callable[..., PyTree],
    loss: Loss,
    size: int | None,
    x: PyTree,
    y: PyTree,
    *shared: PyTree,
    mesh: Mesh | None = None,
) -> PyTree:
    """Evaluate a term that is linear in the loss, such as a gradient, slice by slice.

    Slices and meshes need a loss that is known to be a sum over examples, or the mean of one
    (`as_sum`). For any other loss the term is evaluated on all examples at once.

    The term is a function of (loss, x, y, *shared). size is the number of examples in a slice, None
    for all; mesh the devices that share the examples, None for one device.
    """
    total = as_sum(loss)
    if total is None or (size is None and mesh is None):
        return term(loss, x, y, *shared)

    types = None  # of the term, known once it is traced

    def of_part(x, y, *shared):
        def wide(x, y):
            nonlocal types
            part = term(total, x, y, *shared)
            types = jax.tree.map(lambda leaf: leaf.dtype, part)
            return jax.tree.map(widened, part)

        return wide(x, y) if size is None else sum_over_slices(wide, size, x, y)

    if mesh is None:
        summed = of_part(x, y, *shared)
    else:
        summed = sum_over_devices(of_part, mesh, (x, y), shared)
    if isinstance(loss, Mean):
        divisor = loss.divisor(examples.num_examples(y), y)
        summed = jax.tree.map(lambda leaf: _divide(leaf, divisor), summed)
    # Narrowed after the division: float16 holds neither large sums nor large numbers of examples.
    return jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), summed, types)


def accuracy(
    outputs: Float[Array, "N ... O"],
    targets: Shaped[Array, "N ..."],
    *,
    ignore: int | Sequence[int] | None = None,
) -> Array:
    """Return the fraction of labels whose output is the largest.

    Args:
        outputs: Logits, (N, O), or (N, T, O) for T labels an example.
        targets: Labels 0 to O - 1, (N,) or (N, T).
        ignore: A label, or several, that are not counted, such as -100 for padding.

    Returns:
        A scalar from 0 to 1; NaN if a label that JAX traces is outside the O classes, or if there
        is no label to count.

    Raises:
        ValueError: If targets have another shape (broadcasting would hide an error), or if a label
            that is not traced is outside the O classes and not ignored.
    """
    if jnp.shape(targets) != outputs.shape[:-1]:
        raise ValueError(
            f"targets must be {_label_shape(outputs)} labels, got shape {jnp.shape(targets)}"
        )
    right = jnp.argmax(outputs, axis=-1) == targets
    if jnp.issubdtype(jnp.result_type(targets), jnp.integer):
        valid = _valid_labels(targets, outputs.shape[-1], ignore) < outputs.shape[-1]
        right = jnp.where(valid, right, jnp.nan)
    return jnp.mean(right, where=None if ignore is None else ~_is_ignored(targets, ignore))


def training_accuracy(loss: Loss, outputs: Float[Array, "N ... O"], targets: Any) -> Array:
    """Return the `accuracy` on the labels that a loss does not ignore."""
    function, options = _with_options(as_sum(loss) or loss)
    if function is cross_entropy:
        return accuracy(outputs, targets, ignore=options.get("ignore"))
    return jnp.mean(jnp.argmax(outputs, -1) == targets)
