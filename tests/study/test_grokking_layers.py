"""Parts of a network that are trained alone: what is kept of their runs."""

import numpy as np
import xarray as xr

from book.beyond import grokking_layers_helpers as helpers


def test_a_seed_draws_a_training_set_and_all_other_sums():
    _, (pairs, sums), (others, _) = helpers.seeded(5, 4, 0.6, seed=3)
    assert len(pairs) == 15
    assert {tuple(pair) for pair in (*pairs, *others)} == set(np.ndindex(5, 5))
    assert (sums == pairs.sum(1) % 5).all()


def test_the_claim_is_judged_by_the_best_look_of_the_best_part():
    axes = {"part": [helpers.ALL, *helpers.FITTING], "time": [0.0, 1.0], "seed": range(4)}

    def run(part, time, seed):
        best = 0.99 if part == helpers.ALL else 0.1 * (1 + time)
        looks = {"test_accuracy": [0.0, best, 0.05], "train_accuracy_proxy": [0.5, 0.98, 1.0]}
        return xr.Dataset({name: ("look", values) for name, values in looks.items()})

    found = helpers.add_statistics(helpers.grid(run, axes))
    np.testing.assert_allclose(found.all_best, 99)
    np.testing.assert_allclose(found.part_best, 20)
    np.testing.assert_allclose(found.alone_fit, 100)
