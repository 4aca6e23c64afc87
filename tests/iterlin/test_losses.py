"""Losses are sums with the right gradients; shapes that would broadcast are refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin.training import losses
from problems import bare, normal
from refusals import fails, refused

OUTPUTS = jnp.asarray([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])


def test_squared_error_is_half_the_sum_and_its_gradient_the_residual():
    targets = jnp.asarray([[0.0, 1.0, 0.5], [2.0, 2.0, 2.0]])
    assert float(losses.squared_error(OUTPUTS, targets)) == (1 + 9 + 0 + 4 + 1 + 1) / 2
    gradient = jax.jit(jax.grad(losses.squared_error))(OUTPUTS, targets)
    np.testing.assert_array_equal(gradient, OUTPUTS - targets)


def test_cross_entropy_is_the_sum_and_its_gradient_softmax_minus_one_hot():
    labels = jnp.asarray([2, 1])
    weights = np.exp(np.asarray(OUTPUTS))
    softmax = weights / weights.sum(1, keepdims=True)
    expected = -np.log(softmax[0, 2]) - np.log(softmax[1, 1])
    assert float(losses.cross_entropy(OUTPUTS, labels)) == pytest.approx(expected, rel=1e-12)
    gradient = jax.jit(jax.grad(losses.cross_entropy))(OUTPUTS, labels)
    one_hot = np.array([[0, 0, 1], [0, 1, 0]])
    np.testing.assert_allclose(gradient, softmax - one_hot, atol=1e-12)


def test_mean_is_over_the_targets_or_the_examples():
    targets = jnp.zeros_like(OUTPUTS)
    mean, total = losses.mean(losses.squared_error), losses.squared_error(OUTPUTS, targets)
    assert float(mean(OUTPUTS, targets)) == pytest.approx(float(total) / 6, rel=1e-12)
    of_examples = losses.mean(losses.squared_error, over="examples")
    assert float(of_examples(OUTPUTS, targets)) == pytest.approx(float(total) / 2, rel=1e-12)
    fails("a mean already: a mean of it would divide by N twice", losses.mean, mean)
    with pytest.raises(ValueError, match="unknown over 'tokens'; allowed: examples, targets"):
        losses.mean(losses.squared_error, over="tokens")
    of_tree = losses.mean(lambda outputs, y: jnp.sum(y["weight"] * outputs))
    fails("not one array: give mean", of_tree, OUTPUTS, {"weight": targets})


LOGITS = normal(3, 4, 5)
TOKENS = jnp.asarray([[0, 4, 2, -100], [1, 1, -100, -100], [3, -1, 0, 2]])
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 3.0])
PADDED = partial(losses.cross_entropy, ignore=(-100, -1))


def test_the_masked_mean_is_that_of_optax_over_the_real_tokens():
    real = TOKENS >= 0
    terms = optax.softmax_cross_entropy_with_integer_labels(LOGITS, jnp.where(real, TOKENS, 0))
    found = losses.mean(PADDED)(LOGITS, TOKENS)
    assert float(found) == pytest.approx(float(terms[real].mean()), rel=1e-12)
    of_examples = losses.mean(PADDED, over="examples")(LOGITS, TOKENS)
    assert float(of_examples) == pytest.approx(float(terms[real].sum() / 3), rel=1e-12)
    right = jnp.argmax(LOGITS, -1) == TOKENS
    counted = losses.accuracy(LOGITS, TOKENS, ignore=(-100, -1))
    assert float(counted) == pytest.approx(float(right[real].mean()), rel=1e-12)


def test_class_weights_weight_the_terms_and_their_mean():
    """As `torch.nn.functional.cross_entropy(weight=...)` defines the mean."""
    real = np.asarray(TOKENS) >= 0
    weights = WEIGHTS[np.asarray(TOKENS)[real]]
    terms = -np.asarray(jax.nn.log_softmax(LOGITS))[real, np.asarray(TOKENS)[real]]
    loss = partial(PADDED, class_weights=WEIGHTS)
    assert float(loss(LOGITS, TOKENS)) == pytest.approx(np.sum(weights * terms), rel=1e-12)
    mean = float(losses.mean(loss)(LOGITS, TOKENS))
    assert mean == pytest.approx(np.sum(weights * terms) / weights.sum(), rel=1e-12)
    for wrong in (WEIGHTS[:3], -WEIGHTS):
        with pytest.raises(ValueError, match="class_weights must be"):
            losses.cross_entropy(LOGITS, jnp.zeros((3, 4), int), class_weights=wrong)


def test_ignored_labels_have_no_gradient_whatever_the_outputs_there():
    broken = jnp.where((TOKENS == -100)[..., None], jnp.nan, LOGITS)
    slope = jax.jit(jax.value_and_grad(losses.mean(PADDED)))
    value, gradient = slope(broken, TOKENS)
    assert float(value) == float(slope(LOGITS, TOKENS)[0])
    assert jnp.all(gradient[TOKENS < 0] == 0)
    assert jnp.all(jnp.isfinite(gradient))
    value, gradient = slope(LOGITS, jnp.full_like(TOKENS, -100))
    assert value == 0
    assert jnp.all(gradient == 0)


@pytest.mark.parametrize("loss", [PADDED, losses.mean(PADDED), partial(losses.accuracy, ignore=-1)])
def test_other_labels_are_still_checked_where_some_are_ignored(loss):
    shape = jax.ShapeDtypeStruct(LOGITS.shape, LOGITS.dtype)
    losses.check_labels(loss, shape, jnp.where(TOKENS == -100, -1, TOKENS))
    for label in (-2, 5):
        wrong = jnp.where(TOKENS < 0, -1, TOKENS).at[0, 0].set(label)
        fails(f"labels of 5 classes, 0 to 4: got {label}", losses.check_labels, loss, shape, wrong)
        assert jnp.isnan(jax.jit(lambda *given: loss(*given))(LOGITS, wrong))


test_other_targets_are_refused = refused(
    lambda loss, targets: bare(loss)(OUTPUTS, targets),
    (losses.squared_error, jnp.zeros(2), r"targets have shape \(2,\).* have .*\(2, 3\)"),
    (losses.cross_entropy, jnp.zeros((2, 3), int), "targets must be 2 integer labels, got sh"),
    (losses.accuracy, jnp.zeros((2, 1), int), "targets must be 2 labels, got shape"),
    (losses.accuracy, jnp.array([0, 3]), "labels of 3 classes, 0 to 2: got 3"),
)

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
        fails(message, losses.check_labels, WRAPPED[loss], shape, targets)
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
    fails("labels of 3 classes, 0 to 2: got -1", losses.check_labels, from_one, shape, labels)
    with pytest.raises(ValueError, match="labels of 3 classes, 0 to 2: got 3"):
        losses.check_labels(within, shape, {"label": labels + 1})


def test_labels_of_every_part_are_checked(monkeypatch):
    monkeypatch.setattr(losses, "PART", 24)  # two examples of 4 places and 3 classes
    places, labels = jax.ShapeDtypeStruct((5, 4, 3), jnp.float32), jnp.full((5, 4), 2)
    losses.check_labels(ENTROPY, places, labels)
    for loss in (ENTROPY, lambda outputs, targets: ENTROPY(outputs, targets)):
        with pytest.raises(ValueError, match="targets must be labels of 3 classes, 0 to 2: got 3"):
            losses.check_labels(loss, places, labels.at[4, 3].set(3))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.uint32])
def test_labels_of_any_integer_type(dtype):
    """There may be more classes than the type can count; 156 of uint8 is not -100, ignored."""
    outputs, targets = jnp.zeros((2, 300)), jnp.asarray([0, 100], dtype)
    assert jax.jit(ENTROPY)(outputs, targets) == pytest.approx(2 * np.log(300))
    assert jax.jit(losses.accuracy)(outputs, targets) == 0.5
    largest = jnp.full(2, min(jnp.iinfo(dtype).max, 156), dtype)
    assert jax.jit(partial(ENTROPY, ignore=-100))(outputs, largest) == 2 * jnp.log(300)


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
        hessian = jax.jit(jax.hessian(loss))(jnp.zeros((1, 2)), targets).reshape(2, 2)
        assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(bound)  # attained
        assert losses.smoothness(loss, targets) == bound
        assert losses.smoothness(losses.mean(loss), targets) == bound / targets.size
    weighted = losses.mean(partial(PADDED, class_weights=WEIGHTS))
    hessian = jax.jit(jax.hessian(weighted))(LOGITS, TOKENS).reshape(60, 60)
    assert np.linalg.eigvalsh(hessian)[-1] <= losses.smoothness(weighted, TOKENS)
    fails(r"no bound on the curvature of .* is known", losses.smoothness, jnp.sum, targets)


@pytest.mark.parametrize("of", [losses.mean, lambda loss: loss])
def test_the_accuracy_of_a_rule_leaves_out_what_the_loss_ignores(of):
    outputs, labels = jnp.eye(3)[None], jnp.array([[0, 2, -100]])
    loss = of(partial(losses.cross_entropy, ignore=-100))
    assert losses.training_accuracy(loss, outputs, labels) == 0.5
    own = partial(lambda outputs, y, ignore: jnp.sum(outputs), ignore=labels > 0)
    assert float(losses.training_accuracy(own, outputs, labels)) == pytest.approx(1 / 3)


def test_a_class_of_weight_zero_has_the_gradient_of_its_terms_in_the_weight():
    labels = jnp.array([0, 1, 2])
    logits = LOGITS[0, :3]

    def weighted(weights):
        return losses.cross_entropy(logits, labels, class_weights=weights)

    zero = jnp.array([0.0, 1.0, 1.0, 1.0, 1.0])
    terms = -jax.nn.log_softmax(logits)[jnp.arange(3), labels]
    gradient = jax.jit(jax.jacfwd(weighted))(zero)
    np.testing.assert_allclose(gradient, [*terms, 0, 0], rtol=1e-12)


def test_a_mean_of_float16_is_that_of_more_examples_than_float16_counts():
    outputs, targets = jnp.full((70_000, 2), 0.5, "float16"), jnp.zeros(70_000, int)
    total = losses.mean(losses.cross_entropy)
    np.testing.assert_allclose(total(outputs, targets), np.log(2), rtol=1e-5)
    assert jnp.all(jax.jit(jax.grad(total))(outputs, targets) != 0)


@pytest.mark.parametrize("size", [1000, None], ids=["in slices", "on a mesh"])
def test_a_mean_of_float16_is_divided_before_it_is_narrowed(size):
    x, y, params = jnp.full((70_000, 2), 0.5, "float16"), jnp.zeros(70_000, int), jnp.ones((1, 2))

    def term(loss, x, y, p):
        return jax.value_and_grad(lambda p: loss(x * p, y))(p)

    mesh, shared = None if size else jax.make_mesh((1,), ("a",)), params.astype("float16")
    total = losses.mean(losses.cross_entropy)
    value, gradient = losses.loss_over_slices(term, total, size, x, y, shared, mesh=mesh)
    np.testing.assert_allclose(value, np.log(2), rtol=1e-3)
    assert gradient.dtype == jnp.float16
    np.testing.assert_allclose(gradient, [[-0.25, 0.25]], rtol=1e-2)
