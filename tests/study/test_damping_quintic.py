"""The runs that the paper keeps, and the ratios of their errors."""

import numpy as np

from book.experiments.damping_quintic_helpers import add_statistics, dataset_of, kept

DAMPINGS, TIMES, SEEDS = [0.001, 1.0], [1000.0, 1.0], 40
RANGES, BIASES = ("[-4, 4]", "[-3.6, 3.8]"), ("zero", "random")


def outcome(scale):
    """Outcomes of all seeds: test errors spread about a scale; the last seed is dropped."""
    spread = np.linspace(0.5, 1.5, SEEDS)
    train = np.where(np.arange(SEEDS) < SEEDS - 1, 2.0, 3.0)
    return {"train_rmse": train, "test_rmse": scale * spread, "roughness": scale**2 * spread}


def live():
    functions = np.arange(SEEDS * 7.0).reshape(SEEDS, 7)
    by_damping = [(outcome(scale), functions) for scale in (100.0, 1.0)]
    outcomes = {(span, bias): by_damping for span in RANGES for bias in BIASES}
    of_time = {bias: [outcome(scale) for scale in (10.0, 1.0)] for bias in BIASES}
    return dataset_of(outcomes, of_time, DAMPINGS, TIMES, [1.0])


def test_dropped_runs_are_left_out():
    for suffix in ("", "_time"):
        found = kept(live(), suffix)
        assert np.isnan(found.test_rmse[..., -1]).all()
        assert np.isfinite(found.roughness[..., :-1]).all()


def test_ratios_are_of_little_damping_over_much_in_decades():
    found = add_statistics(live())
    for bias in BIASES:
        for name in ("mean", "worst", "best"):
            np.testing.assert_allclose(found[f"{name}_ratio_{bias}"], 2)
            np.testing.assert_allclose(found[f"{name}_ratio_time_{bias}"], 1)
        np.testing.assert_allclose(found[f"roughness_ratio_{bias}"], 4)


def test_the_functions_kept_are_those_of_the_first_seeds():
    found = live().function
    assert found.dims == ("range", "bias", "function_damping", "shown_seed", "point")
    np.testing.assert_array_equal(found[0, 0, 0, :, 0], 7.0 * np.arange(12))
