"""Weights among the outputs are weight decay; what full solves are judged by."""

import iterlin as il
import jax
import numpy as np
import optax
import pytest
import xarray as xr
from iterlin_study.report import derived

from book.beyond import grokking_solves_helpers as helpers
from book.beyond.grokking_helpers import network
from book.beyond.grokking_layers_helpers import grid


@pytest.mark.parametrize("loss", list(helpers.LOSSES))
def test_the_squares_of_the_weights_are_weight_decay(loss):
    start, sets = helpers.sets_of(5, 4, 0.6, seed=1)
    start = jax.tree.map(lambda leaf: leaf.astype(float), start)
    run = {"schedule": 3, "num_steps": 7}
    rows = helpers.with_weights(sets["train"], 4)
    found, _ = il.train(helpers.flow(loss, 0.2, 0.1), start, rows, **run)
    descent = optax.chain(optax.add_decayed_weights(0.2), optax.sgd(0.1))
    mean = il.Algorithm(network, lambda out, y: helpers.LOSSES[loss](out, y).mean(), descent)
    expected, _ = il.train(mean, start, sets["train"], **run)
    for name, leaf in found.params.items():
        np.testing.assert_allclose(leaf, expected.params[name], rtol=1e-12, atol=1e-14)


def test_the_claims_are_judged_by_the_longest_period_and_the_judged_penalties():
    def run(loss, time, seed, decay=0.1):
        good = loss == helpers.SQUARED and decay < 1
        looks = [0.0, 0.1, 0.96, 0.5] if good else [0.0, 0.1, 0.3, 0.4]
        if time < 1:
            looks = [0.0, 0.1, 0.2, 0.98]
        return xr.Dataset({"test_accuracy": ("look", looks)})

    axes = {"loss": list(helpers.LOSSES), "time": [0.5, 3.0], "seed": range(4)}
    adamw = grid(run, axes).rename(time="adamw_time", test_accuracy="adamw_test_accuracy")
    adamw["adamw_test_accuracy_proxy"] = adamw.adamw_test_accuracy
    flows = grid(run, axes | {"decay": [0.1, 1.0]})
    flows["train_accuracy_proxy"] = 0 * flows.test_accuracy + 0.98
    found = helpers.add_statistics(flows.merge(adamw), judged=0.5)
    expected = {"solved_best": 96, "solved_updates": 1, "flow_fit": 98, "adamw_short_best": 98}
    expected |= {"adamw_squared_best": 96, "adamw_entropy_best": 40}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name)
    # A run that does not train has no linearised network that generalises.
    np.testing.assert_allclose(derived.proxy_at_long_period(found), 40)
    never = found.updates.sel(loss=helpers.ENTROPY, time=3.0)
    assert (never == 3).all()
