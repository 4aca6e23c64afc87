"""Where runs are read: hand-made curves with known answers."""

import math

import numpy as np
import xarray as xr
from iterlin.study import early_stopping


def curves(validation=True):
    """Two periods, two seeds, four evaluations; the proxy is 0.1 above the network."""
    test = np.array(
        [
            [[0.1, 0.5, 0.7, 0.6], [0.1, 0.4, 0.4, 0.3]],
            [[0.1, 0.2, np.nan, np.nan], [0.1, 0.3, 0.2, 0.1]],
        ]
    )
    held_out = np.array(
        [
            [[0.1, 0.6, 0.5, 0.7], [0.1, 0.5, 0.4, 0.5]],
            [[0.2, 0.1, np.nan, np.nan], [0.1, 0.2, 0.3, 0.1]],
        ]
    )
    dims = ("period", "seed", "evaluation")
    variables = {"test_accuracy": (dims, test), "test_accuracy_proxy": (dims, test + 0.1)}
    if validation:
        variables["validation_accuracy"] = (dims, held_out)
        variables["validation_accuracy_proxy"] = (dims, held_out)
    variables["step"] = (dims, np.broadcast_to([0, 10, 100, 1000], test.shape))
    return xr.Dataset(variables, {"period": [1.0, math.inf], "seed": [0, 1]})


def test_the_oracle_reads_the_best_of_what_is_trained():
    best = early_stopping.oracle(curves())
    np.testing.assert_allclose(best, [[0.7, 0.4], [0.3, 0.4]])


def test_validation_chooses_the_step_and_the_test_set_is_read_there():
    chosen = early_stopping.validated(curves())
    np.testing.assert_allclose(chosen, [[0.6, 0.4], [0.2, 0.3]])
    gap = early_stopping.optimism(curves())
    np.testing.assert_allclose(gap, [[0.1, 0.0], [0.1, 0.1]], atol=1e-12)
    assert (gap >= 0).all()


def test_readings_may_begin_late():
    late = curves()
    first = xr.DataArray([10, 100], {"period": late.period})
    np.testing.assert_allclose(
        early_stopping.oracle(late, first_step=first), [[0.7, 0.4], [np.nan, 0.3]]
    )
    chosen = early_stopping.validated(late, first_step=first)
    np.testing.assert_allclose(chosen, [[0.6, 0.4], [np.nan, 0.3]])


def test_a_run_may_be_read_before_its_first_step():
    falling = curves()
    for name in ("test_accuracy", "validation_accuracy"):
        falling[name].values[:] = [0.9, 0.2, 0.3, 0.1]
        falling[f"{name}_proxy"].values[:] = [0.9, 0.2, 0.3, 0.1]
    np.testing.assert_array_equal(early_stopping.oracle(falling), np.full((2, 2), 0.9))
    np.testing.assert_array_equal(early_stopping.validated(falling), np.full((2, 2), 0.9))
    falling.validation_accuracy.values[..., 0] = 0.0  # of the proxy, too: it now says 100
    np.testing.assert_allclose(early_stopping.optimism(falling), np.full((2, 2), 0.6))


def test_without_held_out_examples_validation_says_nothing():
    assert np.isnan(early_stopping.validated(curves(validation=False))).all()
    assert np.isfinite(early_stopping.oracle(curves(validation=False))).all()


def test_without_periods_the_network_is_read():
    alone = curves().sel(period=math.inf).drop_vars("period")
    np.testing.assert_allclose(early_stopping.trained(alone, "test_accuracy"), alone.test_accuracy)


def test_accuracy_at_a_training_loss_is_read_between_two_looks():
    """Losses of 1, 0.1 and 0.01 at 0.2, 0.4 and 0.5; a rise in between changes nothing."""
    dims = ("seed", "evaluation")
    losses, accuracies = [1.0, 0.1, 0.2, 0.01], [0.2, 0.4, 0.3, 0.5]
    variables = {"train_loss": (dims, [losses, [*losses[:3], np.nan]])}
    variables["test_accuracy"] = (dims, [accuracies, accuracies])
    runs = xr.Dataset(variables, {"seed": [0, 1]})
    wanted = xr.DataArray([[2.0, 10**-0.5, 0.001]] * 2, dims=("seed", "other"))
    found = early_stopping.at_loss(runs, wanted)
    np.testing.assert_allclose(found.sel(seed=0), [0.2, 0.3, 0.5], atol=1e-9)
    assert np.isnan(found.sel(seed=1)).all()


def test_a_training_loss_of_zero_is_read_like_any_other():
    """It has no logarithm, and stands as far below the last as one of 1e-12."""
    losses, tests = [[[1.0, 0.1, 0.0]]], [[[0.1, 0.3, 0.6]]]
    dims = ("period", "seed", "evaluation")
    runs = xr.Dataset({"train_loss": (dims, losses), "test_accuracy": (dims, tests)})
    wanted = xr.DataArray([0.1, 0.0], dims="loss")
    np.testing.assert_allclose(early_stopping.at_loss(runs, wanted)[0, 0], [0.3, 0.6], atol=1e-9)
