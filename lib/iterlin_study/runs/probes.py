"""Linear probes: accuracy of a linear classifier on the features of a layer (Alain & Bengio 2017).

A probe is a multinomial logistic regression on standardised features. Its penalty makes the problem
strongly convex, so that the norm of the gradient bounds the distance from the minimum.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import check_class_labels, check_positive
from iterlin.training import losses
from jaxtyping import Array, Float, Int, PyTree

from iterlin_study.networks.convnets import lenet_activations

# Examples whose features are computed at a time.
SLICE = 250
# Layers of a LeNet that have a probe.
LAYERS = ("conv1", "conv2")


class Fit(NamedTuple):
    """Logistic regressions of D features to O classes, one for each of L penalties.

    gap: a bound on the difference between the objective and its minimum. iterations: of L-BFGS.
    """

    weights: Float[Array, "L D O"]
    gap: Float[Array, " L"]
    iterations: Int[Array, " L"]


class Probe(NamedTuple):
    """Accuracies in [0, 1] of the probe whose penalty l2 gives the highest validation accuracy.

    These three are NaN if a feature of train or test is not finite. gap: the largest `Fit.gap` over
    all penalties.
    """

    test: Float[Array, ""]
    validation: Float[Array, ""]
    l2: Float[Array, ""]
    gap: Float[Array, ""]


def fit(
    x: Float[Array, "N D"],
    y: Int[Array, " N"],
    l2: Float[Array, " L"],
    *,
    classes: int = 10,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
) -> Fit:
    """Fit a logistic regression for each penalty: mean cross-entropy of x W, plus l2/2 ||W||^2.

    L-BFGS starts at W = 0 for the first penalty and at the previous solution for each further one,
    so large penalties should come first. A constant column in x gives a bias, which is penalised
    like the other weights. L-BFGS stops when the objective is at most `tolerance` above its
    minimum: it is l2-strongly convex, so ||gradient||^2 / (2 l2) bounds the difference.
    max_iterations: the largest number of iterations for each penalty.
    """
    entropy = losses.mean(losses.cross_entropy)
    solver = optax.lbfgs(memory_size=20)

    def minimize(start, penalty):
        def objective(weights):
            outputs = jnp.matmul(x, weights, precision="highest")
            return entropy(outputs, y) + penalty / 2 * jnp.sum(weights**2)

        value_and_gradient = optax.value_and_grad_from_state(objective)

        def seen(state):
            """Return the bound on the gap, and the number of iterations."""
            gradient = optax.tree.get(state, "grad")
            return jnp.sum(gradient**2) / (2 * penalty), optax.tree.get(state, "count")

        def going(carry):
            gap, count = seen(carry[1])
            return (count == 0) | ((gap > tolerance) & (count < max_iterations))

        def step(carry):
            weights, state = carry
            value, gradient = value_and_gradient(weights, state=state)
            updates, state = solver.update(
                gradient, state, weights, value=value, grad=gradient, value_fn=objective
            )
            return optax.apply_updates(weights, updates), state

        weights, state = jax.lax.while_loop(going, step, (start, solver.init(start)))
        return weights, Fit(weights, *seen(state))

    start = jnp.zeros((x.shape[1], classes), x.dtype)
    return jax.lax.scan(minimize, start, jnp.asarray(l2, x.dtype))[1]


def probe(
    train: tuple[Array, Array],
    validation: tuple[Array, Array],
    test: tuple[Array, Array],
    *,
    l2: Sequence[float] = (0.01, 0.1, 1.0),
    classes: int = 10,
    **settings,
) -> Probe:
    """Fit a probe to the training set, with the penalty that is best on the validation set.

    Features (N, D) are shifted and scaled to mean 0 and variance 1 on the training set. Features
    that are constant there are dropped, and a constant column is added. Among penalties of equal
    validation accuracy, the largest one is chosen. settings: further arguments of `fit`.

    Raises ValueError if a penalty is not positive or, unless JAX traces the labels, a label is
    outside the classes.
    """
    for penalty in l2:
        check_positive("l2", penalty)
    for name, (_, y) in (("train", train), ("validation", validation), ("test", test)):
        check_class_labels(f"targets of {name}", y, classes)
    penalties = jnp.asarray(sorted(l2, reverse=True))
    mean, std = train[0].mean(0), train[0].std(0)
    # Rounding can leave a constant feature with a small standard deviation.
    constant = std <= 10 * jnp.finfo(std.dtype).eps * jnp.abs(mean)
    scale = jnp.where(constant, 0.0, 1 / jnp.where(constant, 1.0, std))

    def standardised(x):
        x = (x - mean[None, :]) * scale[None, :]
        return jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1)

    found = fit(standardised(train[0]), train[1], penalties, classes=classes, **settings)

    def accuracies(x, y):
        features = standardised(x)
        return jax.vmap(lambda w: losses.accuracy(features @ w, y))(found.weights)

    on_validation, on_test = accuracies(*validation), accuracies(*test)
    chosen = jnp.argmax(on_validation)
    finite = jnp.all(jnp.isfinite(found.weights)) & jnp.all(jnp.isfinite(test[0]))

    def kept(values):
        return jnp.where(finite, values[chosen], jnp.nan)

    return Probe(kept(on_test), kept(on_validation), kept(penalties), jnp.max(found.gap))


def lenet_features(
    params: PyTree, x: Float[Array, "N H W C"], *, padding: str = "VALID"
) -> dict[str, Float[Array, "N D"]]:
    """Return the activations of a `convnets.lenet` after ReLU and pooling, flattened."""

    def features(image):
        found = lenet_activations(params, image[None], padding=padding)
        return {name: layer.reshape(-1) for name, layer in found.items()}

    return jax.lax.map(features, x, batch_size=SLICE)


def of_layers(
    params: PyTree,
    sets: Mapping[str, tuple[Array, Array]],
    *,
    l2: Sequence[float],
    padding: str = "VALID",
) -> dict[str, Probe]:
    """Fit a probe to each convolutional layer of a `convnets.lenet`: {"conv1": ..., "conv2": ...}.

    sets: {"train": ..., "validation": ..., "test": ...}, images (N, H, W, C) and labels (N,).
    """
    return _of_layers(params, dict(sets), l2=tuple(l2), padding=padding)


@full_precision()
@partial(jax.jit, static_argnames=("l2", "padding"))
def _of_layers(params, sets, *, l2, padding):
    features = {name: lenet_features(params, x, padding=padding) for name, (x, _) in sets.items()}
    return {
        layer: probe(**{name: (features[name][layer], y) for name, (_, y) in sets.items()}, l2=l2)
        for layer in LAYERS
    }
