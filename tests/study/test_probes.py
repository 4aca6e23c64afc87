"""Probes against scikit-learn, their certificate, and what standardising and choosing promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from curves import assert_statistics
from iterlin.training import losses
from iterlin_study.networks import convnets
from iterlin_study.runs import probes
from problems import bare, normal, start
from refusals import fails
from sklearn.linear_model import LogisticRegression

from book.experiments.probes_helpers import add_statistics

# Compiled once for each shape.
fit = jax.jit(bare(probes.fit), static_argnames="classes")
probe = jax.jit(probes.probe, static_argnames=("l2", "classes", "tolerance", "max_iterations"))
lenet_features = jax.jit(probes.lenet_features, static_argnames="padding")
lenet_activations = jax.jit(convnets.lenet_activations, static_argnames="padding")


def problem(size=60, features=7, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, features))
    y = np.argmax(x @ rng.normal(size=(features, classes)) + rng.normal(size=(size, classes)), 1)
    return jnp.asarray(x), jnp.asarray(y)


@jax.jit
def objective(weights, x, y, l2):
    return losses.cross_entropy(x @ weights, y) / len(y) + l2 / 2 * jnp.sum(weights**2)


slope = jax.jit(jax.grad(objective))


def test_fit_is_that_of_scikit_learn_and_its_gradient_vanishes():
    x, y = problem()
    found = fit(x, y, jnp.asarray([1.0, 0.1, 0.01]), classes=4, tolerance=1e-16)
    for weights, l2 in zip(found.weights, (1.0, 0.1, 0.01), strict=True):
        settings = {"fit_intercept": False, "tol": 1e-10, "max_iter": 2000}
        oracle = LogisticRegression(C=1 / (len(y) * l2), **settings).fit(x, y)
        np.testing.assert_allclose(weights, oracle.coef_.T, atol=1e-6)
        assert np.abs(slope(weights, x, y, l2)).max() < 1e-7


def test_gap_bounds_the_distance_to_the_minimum_and_a_fit_that_is_cut_short_says_so():
    x, y = problem()
    l2 = jnp.asarray([0.01])
    best = objective(fit(x, y, l2, classes=4, tolerance=1e-16).weights[0], x, y, 0.01)
    taken = []
    for tolerance in (1.0, 1e-4):
        found = fit(x, y, l2, classes=4, tolerance=tolerance)
        above = float(objective(found.weights[0], x, y, 0.01) - best)
        assert -1e-12 <= above <= float(found.gap[0]) <= tolerance
        taken.append(int(found.iterations[0]))
    assert taken == sorted(taken)
    assert taken[0] < taken[-1]
    gradient = slope(found.weights[0], x, y, 0.01)
    np.testing.assert_allclose(found.gap[0], jnp.sum(gradient**2) / (2 * 0.01), rtol=1e-6)
    cut = fit(x, y, jnp.asarray([1e-4]), classes=4, tolerance=1e-9, max_iterations=3)
    assert int(cut.iterations[0]) == 3
    assert float(cut.gap[0]) > 1e-9


def sets(seed=0):
    x, y = problem(90, 6, 4, seed)
    return [(x[i : i + 30], y[i : i + 30]) for i in (0, 30, 60)]


def test_a_probe_ignores_the_scale_of_features_and_those_constant_in_training():
    found = probe(*sets(), classes=4)
    scale = jnp.asarray([1e-12, 1.0, 20.0, -3.0, 0.5, 7.0])
    # Of the first two the mean is rounded, and some deviation from it is left.
    constant = jnp.asarray([[7e9 / 11, -7e9 / 11, 0.0]])
    moved = []
    for (x, y), elsewhere in zip(sets(), (0.0, 1e12, 1e12), strict=True):
        added = constant + elsewhere * jnp.cos(jnp.arange(3.0 * len(x))).reshape(-1, 3)
        moved.append((jnp.concatenate([(x + 3) * scale[None, :], added], 1), y))
    np.testing.assert_allclose(found[:3], probe(*moved, classes=4)[:3], rtol=1e-12)


def test_a_probe_fits_the_standardised_features_and_one_constant_column():
    train, validation, test = sets()
    x = np.asarray(train[0])
    x = np.c_[(x - x.mean(0)) / x.std(0), np.ones(len(x))]
    # Cut short, the bound on what is left depends on every column.
    cut = {"classes": 4, "max_iterations": 1}
    found = probe(train, validation, test, l2=(0.1, 1.0), **cut)
    by_hand = fit(jnp.asarray(x), train[1], jnp.asarray([1.0, 0.1]), **cut)
    np.testing.assert_allclose(found.gap, np.max(by_hand.gap), rtol=1e-9)


def test_validation_chooses_the_penalty_and_not_test():
    train, validation, test = sets()
    penalties = (1e-3, 0.1, 10.0)
    alone = {l2: probe(train, validation, test, l2=(l2,), classes=4) for l2 in penalties}
    best = max(float(found.validation) for found in alone.values())
    expected = max(l2 for l2, found in alone.items() if float(found.validation) == best)
    found = probe(train, validation, test, l2=penalties, classes=4)
    assert float(found.l2) == pytest.approx(expected)
    assert float(found.test) == float(alone[expected].test)


def test_linearly_separable_features_are_learnt_and_others_than_finite_give_no_accuracy():
    y = jnp.arange(30) % 3
    x = jax.nn.one_hot(y, 3) + 0.01 * jnp.sin(jnp.arange(90.0)).reshape(30, 3)
    assert float(probe((x, y), (x, y), (x, y), classes=3).test) == 1.0
    for train, test in ((x * jnp.nan, x), (x, x * jnp.inf), (x, x.at[2, 1].set(jnp.nan))):
        assert np.isnan(probe((train, y), (x, y), (test, y), classes=3).test)


def network(size):
    """Parameters of a small LeNet, and images."""
    model = convnets.lenet((8, 8, 1), channels=3, kernel_size=3, padding="SAME", hidden=(5,))
    return start(model.init), normal(size, 8, 8, 1)


def test_features_are_the_flat_activations():
    size = probes.SLICE + 2
    params, x = network(size)
    found = lenet_features(params, x, padding="SAME")
    for name, layer in lenet_activations(params, x, padding="SAME").items():
        np.testing.assert_allclose(found[name], layer.reshape(size, -1), rtol=1e-6, atol=1e-7)


def test_wrong_penalties_and_labels_are_refused():
    train, validation, (x, y) = sets()
    fails("l2 must", probes.probe, *sets(), l2=[0.1, 0.0], classes=4)
    fails("got 4", probes.probe, train, validation, (x, y + 4), classes=4)


def test_layers_are_probed_by_their_features():
    params, x = network(60)
    y = jnp.asarray(np.random.default_rng(2).integers(0, 10, 60))
    parts = {"train": slice(40), "validation": slice(40, 50), "test": slice(50, 60)}
    sets = {name: (x[part], y[part]) for name, part in parts.items()}
    found = probes.of_layers(params, sets, l2=[1.0, 0.1], padding="SAME")
    features = lenet_features(params, x, padding="SAME")
    for layer in probes.LAYERS:
        of_layer = {name: (features[layer][part], y[part]) for name, part in parts.items()}
        expected = probe(**of_layer, l2=(1.0, 0.1))
        assert float(found[layer].test) == float(expected.test)
        assert float(found[layer].l2) == float(expected.l2)


def test_gaps_are_at_the_end_over_training_and_at_equal_movement():
    dims = ("period", "seed", "layer", "snapshot")
    accuracies = np.empty((2, 4, 2, 3))
    accuracies[0], accuracies[1] = [50, 70, 80], [50, 60, 65]
    moved = np.array([[[0.0, 0.4, 0.8]] * 4, [[0.0, 0.1, 0.2]] * 4])
    live = {"probe_accuracy": (dims, accuracies), "time": ("snapshot", [0.0, 2.0, 8.0])}
    live["filters_moved"] = ("period", "seed", "snapshot"), moved
    axes = {"period": [1, 50], "seed": range(4), "layer": ["conv1", "conv2"]}
    found = add_statistics(xr.Dataset(live, axes))
    # K = 1 has moved 0.2 at the time 1: an eighth of training, with 60 % there.
    expected = {"final_gap": 15, "area_gap": 0.25 * 5 + 0.75 * 12.5, "match": 60 - 65}
    expected = {f"{name}_{k}": value for name, value in expected.items() for k in axes["layer"]}
    assert_statistics(found, {"fraction_reached": 1 / 8} | expected)
