"""Addition modulo p: its network, its features, and when a run counts as one that generalises."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from iterlin_study.runs import grids

from book.beyond import grokking_helpers as helpers


def test_the_network_is_one_hidden_layer_of_squares_on_one_hot_inputs():
    params = helpers.initial(jax.random.key(0), 5, 7)
    pairs, _ = helpers.table_of_sums(5)
    weights = np.concatenate([params["left"], params["right"]])
    inputs = np.concatenate([np.eye(5)[pairs[:, 0]], np.eye(5)[pairs[:, 1]]], 1)
    expected = (inputs @ weights) ** 2 @ np.asarray(params["out"])
    np.testing.assert_allclose(helpers.network(params, pairs), expected, rtol=2e-5, atol=1e-6)


def test_units_of_one_frequency_are_concentrated_and_noise_is_not():
    angles = 2 * np.pi * np.outer(np.arange(11), [1, 3, 3]) / 11
    power = helpers.spectrum(jnp.cos(angles + 0.3))
    np.testing.assert_allclose(helpers.concentration(power), 1, rtol=1e-5)
    np.testing.assert_array_equal(power.argmax(0), [0, 2, 2])
    noise = jax.random.normal(jax.random.key(0), (11, 500))
    assert helpers.concentration(helpers.spectrum(noise)) < 0.6


def test_accuracy_on_the_other_pairs_follows_from_that_on_all():
    right = np.array([1, 0, 1, 1, 0, 1, 0, 0, 1])
    means = {"all_accuracy": right.mean(), "train_accuracy": right[:4].mean()}
    means |= {f"{name}_proxy": 0.5 for name in means}
    found = helpers.with_test_accuracy(xr.Dataset(means), 4, 9)
    np.testing.assert_allclose(found.test_accuracy, right[4:].mean())


def test_a_run_generalises_at_the_first_look_above_the_level():
    accuracy = xr.DataArray([[0.1, 0.96, 0.5, 0.99], [0.1, 0.2, 0.3, 0.4]], dims=["seed", "look"])
    others = ["updates", "step", "alignment", "concentration"]
    ds = xr.Dataset({name: ("look", [0.0, 3.0, 6.0, 9.0]) for name in others})
    found = helpers.generalised(ds.assign(test_accuracy=accuracy))
    assert found.reached.values.tolist() == [True, False]
    assert found.updates.values.tolist() == [3, 9]
    np.testing.assert_array_equal(found.alignment, [3, np.nan])


def test_the_longest_period_leaves_out_the_infinite_one():
    reached = xr.DataArray(
        [[True, True, False, True], [False] * 4],
        {"time": [0.0, 1.0, 2.0, np.inf]},
        ["seed", "time"],
    )
    np.testing.assert_array_equal(helpers.longest(reached), [1, np.nan])


def test_weight_decay_alone_shrinks_what_the_loss_does_not_see():
    # Only the embeddings of numbers that occur are seen; the row of number 4 is not.
    problem = helpers.addition(5, 6, 1.0, 10)
    pairs, sums = problem.train
    seen = (pairs < 4).all(1)
    problem = problem.but(train=(pairs[seen], sums[seen]))
    run = grids.Run(0, np.inf, 0.01, (0, 30), optimizer="adamw", decay=0.5)
    problem = problem.but(observe=lambda state: {"row": state.params["left"][4]})
    [result], _ = grids.run_all(problem, [run])
    first, last = result.history["row"][:, 0], result.history["row"][:, -1]
    np.testing.assert_allclose(last, first * (1 - 0.01 * 0.5) ** 30, rtol=1e-5)
