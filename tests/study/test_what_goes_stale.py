"""Steps that are stale in part: against dense Jacobians, and the corners against `train`."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from curves import assert_statistics, runs
from problems import dense, flat, start

from book.beyond import what_goes_stale_helpers as helpers

ENTROPY = il.losses.mean(il.losses.cross_entropy)
WIDTHS, STEP_SIZE, KEY = (3, 6, 5, 2), 0.3, jax.random.key(2)
LAYERS = ("0", "1", "2")
MODEL = il.mlp(WIDTHS, activation="tanh", bias_scale=0.1)


def f(params, x):
    return MODEL.apply([params[name] for name in LAYERS], x)


PARAMS = dict(zip(LAYERS, start(MODEL.init), strict=True))
X = jnp.asarray(np.random.default_rng(1).normal(size=(12, 3)))
DATA = X, (X[:, 0] * X[:, 1] > 0).astype(jnp.int32)


def trained(residual, jacobian, schedule, num_steps, f=f, of_run=None, **settings):
    algorithm = il.Algorithm(f, ENTROPY, **{"optimizer": STEP_SIZE} | settings)
    mixed = helpers.partly_stale(algorithm, residual=residual, jacobian=jacobian)
    of_run = {"schedule": schedule, "num_steps": num_steps, "key": KEY} | (of_run or {})
    return il.train(mixed, PARAMS, DATA, **of_run)[0]


def by_hand(residual, jacobian, period, num_steps):
    """The same in NumPy from dense Jacobians, one step after another."""
    x, y = DATA
    theta, unravel = jax.flatten_util.ravel_pytree(PARAMS)
    layer = np.concatenate([np.full(flat(PARAMS[name]).size, int(name)) for name in LAYERS])
    for step in range(num_steps):
        if step % period == 0:
            anchor = theta
            outputs, stale = np.asarray(f(unravel(anchor), x)), dense(f, unravel(anchor), x)
        now, fresh = np.asarray(f(unravel(theta), x)), dense(f, unravel(theta), x)
        seen = outputs + (stale @ (theta - anchor)).reshape(now.shape)
        seen = now if residual == "fresh" else seen
        odds = np.exp(seen - seen.max(1, keepdims=True))
        slope = (odds / odds.sum(1, keepdims=True) - np.eye(2)[np.asarray(y)]) / len(y)
        stale_layers = {"fresh": (), "stale": LAYERS}.get(jacobian, jacobian)
        columns = np.isin(layer, [int(name) for name in stale_layers])
        theta = theta - STEP_SIZE * np.where(columns, stale, fresh).T @ slope.ravel()
    return theta


@pytest.mark.parametrize(
    ("residual", "jacobian", "slice_size"),
    [("stale", "fresh", None), ("fresh", "stale", None), ("stale", ("0", "2"), 5)],
)
def test_steps_are_those_of_dense_jacobians(residual, jacobian, slice_size):
    sliced = f if slice_size is None else il.in_slices(f, slice_size)
    state = trained(residual, jacobian, 4, 10, f=sliced)
    expected = by_hand(residual, jacobian, 4, 10)
    np.testing.assert_allclose(flat(state.params), expected, rtol=1e-11, atol=1e-13)


def test_the_corners_are_gradient_descent_and_algorithm_3():
    """The latter with the algorithm's penalty and of its trainable part."""
    optimizer, of_run = optax.sgd(0.1, momentum=0.9), {"batch_size": 5, "key": KEY}
    of_part = {"penalty": 0.05, "trainable": lambda path: not path.startswith("0")}
    for part, period, settings in (("fresh", 1, {}), ("stale", 4, of_part)):
        settings |= {"optimizer": optimizer}
        algorithm = il.Algorithm(f, ENTROPY, **settings)
        mixed = trained(part, part, 4, 13, of_run=of_run, **settings)
        plain, _ = il.train(algorithm, PARAMS, DATA, schedule=period, num_steps=13, **of_run)
        np.testing.assert_allclose(flat(mixed.params), flat(plain.params), rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(flat(mixed.params["0"]), flat(PARAMS["0"]))


def test_unknown_layers_are_named():
    with pytest.raises(ValueError, match="jacobian names a, d"):
        trained("fresh", ("d", "1", "a"), 2, 2)


def runs_of(axes, test, train=1.0, losses=(2.0, 1.0, 0.5), diverged=-1):
    """Runs with these final test accuracies, seeds first; a falling loss, SGD's curve below."""
    curve = np.stack([0 * test + 0.2, 0 * test + 0.5, test], -1)
    return runs(axes, curve, train_accuracy=train, train_loss=losses, diverged_at=diverged)


def test_costs_and_effects_of_runs_with_known_ends():
    seeds, best = {"seed": range(4)}, np.array([0.8, 0.9, 0.8, 0.9])
    sgd = runs_of(seeds, best)
    corner = {**seeds, "corner": ["jacobian", "residual", "both"], "time": [1.0, 10.0]}
    ends = best[:, None, None] - np.array([[0.1], [0.05], [0.2]])
    lost = np.full((4, 3, 2), -1)
    lost[:, 0, 1] = 5  # a stale Jacobian alone diverges at the longer period
    corners = runs_of(corner, np.tile(ends, (1, 1, 2)), losses=(2, 1.5, 1), diverged=lost)
    block = {**seeds, "block": ["a", "b", "dense", "head"]}
    blocks = runs_of(block, best[:, None] - [0.01, 0.05, 0.02, 0.0], train=0.7)
    found = helpers.judged(sgd, corners, blocks, 1.0)
    expected = {"jacobian_end": 12.5, "residual_end": 7.5, "interaction_end": 5}
    expected |= {"difference_end": -5, "cost_both": 20, "residual_share": 7.5 / 20}
    expected |= {"second_less_first": 4, "second_less_dense": 3, "second_less_head": 5}
    expected |= {"jacobian_far_fit": helpers.GUESSING, "both_far_fit": 100}
    assert_statistics(found, expected)
    # SGD had 50 % where its loss was 1, at which the corners end: 30 and 40 points below its end.
    both = found.cost.sel(corner="both", time=1) - found.cost_matched.sel(corner="both", time=1)
    np.testing.assert_allclose(both, [30, 40, 30, 40])
    np.testing.assert_allclose(found.interaction_matched[0], 5 + 35)
    np.testing.assert_allclose(found.cost.sel(corner="jacobian", time=10), [70, 80, 70, 80])
    np.testing.assert_allclose(found.block_fit, 70)
