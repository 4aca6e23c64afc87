"""Parts of a network that are trained alone: what is kept of their runs."""

import numpy as np
import xarray as xr

from book.beyond import grokking_layers_helpers as helpers


def test_a_seed_draws_a_training_set_and_all_other_sums():
    _, (pairs, sums), (others, _) = helpers.seeded(5, 4, 0.6, seed=3)
    assert len(pairs) == 15
    assert {tuple(pair) for pair in (*pairs, *others)} == set(np.ndindex(5, 5))
    assert (sums == pairs.sum(1) % 5).all()


def test_the_claims_are_judged_by_the_best_look_and_the_first_at_the_level():
    seeds = {"seed": range(4)}

    def of_part(part, time, seed):
        best = 0.99 if part == helpers.ALL else 0.1 * (1 + time)
        looks = {"test_accuracy": [0.0, best, 0.05], "train_accuracy_proxy": [0.5, 0.98, 1.0]}
        looks["step"] = [0, 100, 200]
        return xr.Dataset({name: ("look", values) for name, values in looks.items()})

    def of_half(half, half_time, seed):
        looks = [0.0, 0.96, 0.5] if half == helpers.BOTH else [0.0, 0.3, 0.97 - 0.1 * half_time]
        return xr.Dataset({"test_accuracy": ("look", looks)})

    axes = {"part": [helpers.ALL, *helpers.FITTING], "time": [0.0, 1.0]} | seeds
    layers = helpers.grid(of_part, axes)
    halves = helpers.grid(of_half, {"half": list(helpers.HALVES), "half_time": [0.1, 1.0]} | seeds)
    found = layers.merge(halves.rename(test_accuracy="half_test_accuracy"))
    found = helpers.add_statistics(found)
    np.testing.assert_allclose(found.all_best, 99)
    np.testing.assert_allclose(found.part_best, 20)
    np.testing.assert_allclose(found.alone_fit, 100)
    np.testing.assert_allclose(found.single_best, 96)
    np.testing.assert_allclose(found.single_later, 100)
