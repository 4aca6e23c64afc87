"""Losses are sums with the right gradients; shapes that would broadcast are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.training import losses
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


def test_mean_divides_by_the_examples_alone_and_once():
    targets = jnp.zeros_like(OUTPUTS)
    mean = losses.mean(losses.squared_error)
    assert float(mean(OUTPUTS, targets)) == float(losses.squared_error(OUTPUTS, targets)) / 2
    with pytest.raises(ValueError, match="a mean already: a mean of it would divide by N twice"):
        losses.mean(mean)


def test_only_known_losses_are_sums():
    total = losses.cross_entropy
    assert losses.as_sum(total) is losses.as_sum(losses.mean(total)) is total
    assert losses.as_sum(lambda outputs, targets: jnp.max(outputs)) is None


def test_accuracy_counts_all_labels():
    assert float(losses.accuracy(OUTPUTS, jnp.asarray([0, 0]))) == 0.5
    outputs = jax.nn.one_hot(jnp.asarray([[0, 1, 2, 1], [2, 2, 0, 0]]), 3)
    labels = jnp.asarray([[0, 1, 0, 1], [2, 1, 0, 0]])
    assert float(losses.accuracy(outputs, labels)) == 6 / 8


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (
            losses.squared_error,
            jnp.zeros(2),
            r"targets have shape \(2,\).* outputs have .*\(2, 3\)",
        ),
        (losses.squared_error, jnp.zeros((1, 3)), r"targets have shape \(1, 3\).*must be equal"),
        (losses.cross_entropy, jnp.zeros((2, 3), int), "targets must be 2 integer labels, got sh"),
        (losses.cross_entropy, jnp.zeros(2), "targets must be 2 integer labels, got shape"),
        (losses.accuracy, jnp.zeros((2, 1), int), "targets must be 2 labels, got shape"),
        (losses.cross_entropy, jnp.array([0, -1]), "labels of 3 classes, 0 to 2: got -1"),
        (losses.accuracy, jnp.array([0, 3]), "labels of 3 classes, 0 to 2: got 3"),
    ],
)
def test_other_targets_are_refused(loss, targets, message):
    with pytest.raises(ValueError, match=message):
        bare(loss)(OUTPUTS, targets)


ENTROPY = losses.cross_entropy


class Weighted:
    """A loss that is an object without a hash."""

    __hash__ = None

    def __call__(self, outputs, targets):
        return 2 * ENTROPY(outputs, targets)


# Losses and metrics that are given the labels 0 to 2 of a set as they are.
WRAPPED = {
    "mean": losses.mean(ENTROPY),
    "accuracy": losses.accuracy,
    "lambda": lambda outputs, targets: ENTROPY(outputs, targets),
    "mean of a lambda": losses.mean(lambda outputs, targets: ENTROPY(outputs, targets)),
    "jit of accuracy": jax.jit(losses.accuracy),
    "map": lambda outputs, targets: jax.lax.map(
        lambda both: ENTROPY(both[0][None], both[1][None]), (outputs, targets)
    ).sum(),
    "object": Weighted(),
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
    from_one = jax.jit(lambda outputs, targets: ENTROPY(outputs, targets - 1))
    within = lambda outputs, targets: ENTROPY(outputs, targets["label"])  # noqa: E731

    def padded(outputs, targets):
        each = jax.vmap(lambda o, t: ENTROPY(o[None], t[None]))(outputs, targets)
        return jnp.where(targets >= 0, each, 0).sum()

    def counts(outputs, targets):
        return jnp.sum(outputs[:, 0] - targets * jnp.log(outputs[:, 0]))  # NaN at 0

    labels = jnp.asarray([0, 1, 2])
    losses.check_labels(from_one, shape, labels + 1)
    losses.check_labels(within, shape, {"label": labels, "other": labels + 7})
    losses.check_labels(padded, shape, jnp.asarray([0, -100, 2]))
    losses.check_labels(counts, shape, jnp.asarray([0, 7, 2]))
    with pytest.raises(ValueError, match="labels of 3 classes, 0 to 2: got -1"):
        losses.check_labels(from_one, shape, labels)
    with pytest.raises(ValueError, match="labels of 3 classes, 0 to 2: got 3"):
        losses.check_labels(within, shape, {"label": labels + 1})


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


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint32])
def test_labels_of_any_integer_type(dtype):
    """There may be more classes than the type can count."""
    outputs, targets = jnp.zeros((2, 300)), jnp.asarray([0, 100], dtype)
    assert jax.jit(ENTROPY)(outputs, targets) == pytest.approx(2 * np.log(300))
    assert jax.jit(losses.accuracy)(outputs, targets) == 0.5


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
