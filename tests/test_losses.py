"""Losses are sums with the right gradients; shapes that would broadcast are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin import losses
from problems import bare

OUTPUTS = jnp.asarray([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])


def test_squared_error_is_half_the_sum_and_its_gradient_the_residual():
    targets = jnp.asarray([[0.0, 1.0, 0.5], [2.0, 2.0, 2.0]])
    assert float(losses.squared_error(OUTPUTS, targets)) == (1 + 9 + 0 + 4 + 1 + 1) / 2
    gradient = jax.grad(losses.squared_error)(OUTPUTS, targets)
    np.testing.assert_array_equal(gradient, OUTPUTS - targets)


def test_cross_entropy_is_the_sum_and_its_gradient_softmax_minus_one_hot():
    labels = jnp.asarray([2, 1])
    weights = np.exp(np.asarray(OUTPUTS))
    softmax = weights / weights.sum(1, keepdims=True)
    expected = -np.log(softmax[0, 2]) - np.log(softmax[1, 1])
    assert float(losses.cross_entropy(OUTPUTS, labels)) == pytest.approx(expected, rel=1e-12)
    gradient = jax.grad(losses.cross_entropy)(OUTPUTS, labels)
    one_hot = np.array([[0, 0, 1], [0, 1, 0]])
    np.testing.assert_allclose(gradient, softmax - one_hot, atol=1e-12)


def test_cross_entropy_survives_large_outputs():
    assert float(losses.cross_entropy(jnp.asarray([[1e4, 0.0]]), jnp.asarray([1]))) == 1e4


def test_mean_divides_by_the_examples_alone():
    targets = jnp.zeros_like(OUTPUTS)
    mean = losses.mean(losses.squared_error)
    assert float(mean(OUTPUTS, targets)) == float(losses.squared_error(OUTPUTS, targets)) / 2


def test_only_known_losses_are_sums():
    total = losses.cross_entropy
    assert losses.as_sum(total) is losses.as_sum(losses.mean(total)) is total
    assert losses.as_sum(lambda outputs, targets: jnp.max(outputs)) is None


def test_accuracy():
    assert float(losses.accuracy(OUTPUTS, jnp.asarray([0, 0]))) == 0.5
    assert float(losses.accuracy(OUTPUTS, jnp.asarray([0, 1]))) == 1


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 3), (3, 2)])
def test_squared_error_refuses_other_shapes(shape):
    message = rf"targets have shape \({shape[0]}.*outputs have shape \(2, 3\).*must be equal"
    with pytest.raises(ValueError, match=message):
        bare(losses.squared_error)(OUTPUTS, jnp.zeros(shape))


@pytest.mark.parametrize("targets", [jnp.zeros(3, int), jnp.zeros((2, 3), int), jnp.zeros(2)])
def test_cross_entropy_refuses_other_targets(targets):
    with pytest.raises(ValueError, match="targets must be 2 integer labels, got shape"):
        bare(losses.cross_entropy)(OUTPUTS, targets)


@pytest.mark.parametrize("shape", [(2, 1), (1,), (3,), (), (2, 3)])
def test_accuracy_refuses_another_number_of_labels(shape):
    with pytest.raises(ValueError, match="targets must be 2 labels, got shape"):
        bare(losses.accuracy)(OUTPUTS, jnp.zeros(shape, int))


ENTROPY = losses.cross_entropy


class Weighted:
    """A loss that is an object without a hash."""

    __hash__ = None

    def __call__(self, outputs, targets):
        return 2 * ENTROPY(outputs, targets)


# Losses and metrics that are given the labels 0 to 2 of a set as they are.
WRAPPED = {
    "itself": ENTROPY,
    "mean": losses.mean(ENTROPY),
    "accuracy": losses.accuracy,
    "lambda": lambda outputs, targets: ENTROPY(outputs, targets),
    "partial": functools.partial(ENTROPY),
    "mean of a lambda": losses.mean(lambda outputs, targets: ENTROPY(outputs, targets)),
    "jit": jax.jit(ENTROPY),
    "jit of accuracy": jax.jit(losses.accuracy),
    "checkpoint": jax.checkpoint(ENTROPY),
    "vmap": lambda outputs, targets: jax.vmap(
        lambda output, target: ENTROPY(output[None], target[None])
    )(outputs, targets).sum(),
    "map": lambda outputs, targets: jax.lax.map(
        lambda both: ENTROPY(both[0][None], both[1][None]), (outputs, targets)
    ).sum(),
    "object": Weighted(),
    "perplexity": lambda outputs, targets: jnp.exp(ENTROPY(outputs, targets) / len(outputs)),
}


@pytest.mark.parametrize("loss", WRAPPED)
def test_labels_outside_the_classes_are_found_in_any_loss(loss):
    shape = jax.ShapeDtypeStruct((4, 3), jnp.float32)
    losses.check_labels(WRAPPED[loss], shape, jnp.asarray([0, 2, 1, 0]))
    for label in (-1, 3):
        targets = np.asarray([0, 2, label, 0])
        message = f"targets must be labels of 3 classes, 0 to 2: got {label}"
        with pytest.raises(ValueError, match=message):
            losses.check_labels(WRAPPED[loss], shape, targets)
        # Nothing can be raised for traced labels: the loss is NaN.
        traced = jax.jit(lambda *given: WRAPPED[loss](*given))
        assert jnp.isnan(traced(jnp.zeros((4, 3)), targets))
        jax.jit(lambda y: losses.check_labels(WRAPPED[loss], shape, y))(targets)


def test_a_loss_may_change_its_targets():
    """It is asked about what the cross-entropy within it is given."""
    shape = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    from_one = lambda outputs, targets: ENTROPY(outputs, targets - 1)  # noqa: E731
    one_hot = lambda outputs, targets: ENTROPY(outputs, targets.argmax(-1))  # noqa: E731
    within = lambda outputs, targets: ENTROPY(outputs, targets["label"])  # noqa: E731

    def padded(outputs, targets):
        each = jax.vmap(lambda o, t: ENTROPY(o[None], t[None]))(outputs, targets)
        return jnp.where(targets >= 0, each, 0).sum()

    def counts(outputs, targets):
        return jnp.sum(outputs[:, 0] - targets * jnp.log(outputs[:, 0]))  # NaN at 0

    fits = [
        (from_one, [1, 2, 3]),
        (jax.jit(from_one), [1, 2, 3]),
        (one_hot, np.eye(3, dtype=int)),
        (within, {"label": jnp.asarray([0, 1, 2]), "other": jnp.asarray([7, 8, 9])}),
        (padded, [0, -100, 2]),
        (counts, [0, 7, 2]),
        (lambda outputs, targets: outputs.sum(), {"name": jnp.asarray([5, 5, 5])}),
    ]
    for loss, targets in fits:
        targets = jnp.asarray(targets) if isinstance(targets, list) else targets
        losses.check_labels(loss, shape, targets)
    for loss in (from_one, jax.jit(from_one)):
        with pytest.raises(ValueError, match="labels of 3 classes, 0 to 2: got -1"):
            losses.check_labels(loss, shape, jnp.asarray([0, 1, 2]))
    with pytest.raises(ValueError, match="labels of 3 classes, 0 to 2: got 3"):
        losses.check_labels(within, shape, {"label": jnp.asarray([0, 1, 3])})


def test_labels_of_every_place_are_checked_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(losses, "PART", 24)  # two examples of 4 places and 3 classes
    shapes = set()

    def noted(outputs, targets):
        shapes.add(outputs.shape)
        return ENTROPY(outputs, targets)

    places = jax.ShapeDtypeStruct((5, 4, 3), jnp.float32)
    losses.check_labels(noted, places, jnp.full((5, 4), 2))
    assert shapes == {(2, 4, 3), (1, 4, 3)}
    for loss in (ENTROPY, noted):
        with pytest.raises(ValueError, match="targets must be labels of 3 classes, 0 to 2: got 3"):
            losses.check_labels(loss, places, jnp.full((5, 4), 2).at[4, 3].set(3))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32, jnp.int64])
def test_labels_of_any_integer_type(dtype):
    """There may be more classes than the type can count."""
    outputs, targets = jnp.zeros((2, 300)), jnp.asarray([0, 100], dtype)
    assert jax.jit(ENTROPY)(outputs, targets) == pytest.approx(2 * np.log(300))
    assert jax.jit(losses.accuracy)(outputs, targets) == 0.5


def test_labels_seen_by_the_losses_themselves_are_checked():
    for loss in (ENTROPY, losses.mean(ENTROPY), losses.accuracy):
        for label in (-1, 3):
            with pytest.raises(ValueError, match=f"labels of 3 classes, 0 to 2: got {label}"):
                loss(OUTPUTS, jnp.asarray([0, label]))


def test_a_mean_of_a_mean_is_refused():
    with pytest.raises(ValueError, match="a mean already: a mean of it would divide by N twice"):
        losses.mean(losses.mean(ENTROPY))


def test_outputs_without_classes_are_refused():
    with pytest.raises(ValueError, match=r"must be \(N, classes\) or more, got shape \(3,\)"):
        bare(losses.cross_entropy)(jnp.zeros(3), jnp.zeros((), int))
    # Nor are their labels held against classes that there are not.
    for shape in ((3,), ()):
        outputs = jax.ShapeDtypeStruct(shape, jnp.float32)
        losses.check_labels(losses.cross_entropy, outputs, jnp.asarray([0, 5, 1]))


def test_the_curvature_of_a_loss_is_bounded_by_its_hessian():
    for loss, bound in ((losses.squared_error, 1.0), (losses.cross_entropy, 0.5)):
        targets = jnp.zeros((1, 2)) if bound == 1 else jnp.zeros(1, int)
        hessian = jax.hessian(loss)(jnp.zeros((1, 2)), targets).reshape(2, 2)
        assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(bound)  # attained
        assert losses.smoothness(loss, 10) == bound
        assert losses.smoothness(losses.mean(loss), 10) == bound / 10
    with pytest.raises(ValueError, match=r"no bound on the curvature of .* is known"):
        losses.smoothness(jnp.sum, 10)


@pytest.mark.parametrize("loss", [losses.squared_error, losses.mean(losses.squared_error)])
@pytest.mark.parametrize("size", [None, 1, 2, 5])
def test_a_gradient_in_slices_is_that_of_all_examples(loss, size):
    """Five examples: slices of equal size and others, and the mean is over all of them."""
    x, y = jnp.arange(5.0)[:, None], jnp.asarray([1.0, 0.0, 2.0, 4.0, -1.0])[:, None]

    seen = []

    def slope(loss, x, y):
        seen.append(len(x))
        return jax.grad(lambda w: loss(w * x, y))(0.3)

    found = losses.loss_over_slices(slope, loss, size, x, y)
    by_hand = np.sum((0.3 * x - y) * x) / (5 if isinstance(loss, losses.Mean) else 1)
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)
    assert max(seen) == (size or 5)
    # Of another loss the parts may not add up: it sees all.
    worst = losses.loss_over_slices(slope, lambda o, y: jnp.max(o - y), size, x, y)
    np.testing.assert_allclose(worst, x[4, 0], rtol=1e-12)


def test_accuracy_counts_the_labels_of_all_tokens():
    outputs = jax.nn.one_hot(jnp.asarray([[0, 1, 2, 1], [2, 2, 0, 0]]), 3)
    labels = jnp.asarray([[0, 1, 0, 1], [2, 1, 0, 0]])
    assert float(losses.accuracy(outputs, labels)) == 6 / 8
    with pytest.raises(ValueError, match="targets must be 2 x 4 labels, got shape"):
        bare(losses.accuracy)(outputs, labels[:, 0])
