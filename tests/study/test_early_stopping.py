"""Where runs are read: hand-made curves with known answers."""

import math

import numpy as np
import xarray as xr
from curves import runs
from iterlin_study.runs.early_stopping import at_loss, oracle, validated
from numpy.testing import assert_allclose

NAN = np.nan


def curves():
    """Two periods, two seeds, four evaluations; the proxy is 0.1 above the network."""
    test = np.array(
        [[[0.1, 0.5, 0.7, 0.6], [0.1, 0.4, 0.4, 0.3]], [[0.1, 0.2, NAN, NAN], [0.1, 0.3, 0.2, 0.1]]]
    )
    held_out = np.array(
        [[[0.1, 0.6, 0.5, 0.7], [0.1, 0.5, 0.4, 0.5]], [[0.2, 0.1, NAN, NAN], [0.1, 0.2, 0.3, 0.1]]]
    )
    others = {"test_accuracy_proxy": test + 0.1, "validation_accuracy": held_out}
    axes = {"period": [1.0, math.inf], "seed": [0, 1]}
    return runs(axes, test, step=[0, 10, 100, 1000], **others)


def test_the_oracle_reads_the_best_of_what_is_trained_and_validation_where_it_chooses():
    assert_allclose(oracle(curves()), [[0.7, 0.4], [0.3, 0.4]])
    assert_allclose(validated(curves()), [[0.6, 0.4], [0.2, 0.3]])
    first = xr.DataArray([10, 100], {"period": curves().period})
    assert_allclose(oracle(curves(), first_step=first), [[0.7, 0.4], [NAN, 0.3]])
    assert_allclose(validated(curves(), first_step=first), [[0.6, 0.4], [NAN, 0.3]])


def test_accuracy_at_a_training_loss_is_read_between_two_looks():
    """Losses of 1, 0.1, 0.2 and 0.01: a loss below 0.1 is read between the last two."""
    losses = [1.0, 0.1, 0.2, 0.01]
    live = runs({"seed": [0, 1]}, [0.2, 0.4, 0.3, 0.5], train_loss=[losses, [*losses[:3], NAN]])
    wanted = xr.DataArray([[2.0, 10**-0.5, 10**-1.5, 0.001]] * 2, dims=("seed", "other"))
    found = at_loss(live, wanted)
    late = 0.3 + 0.2 * math.log(0.2 / 10**-1.5) / math.log(0.2 / 0.01)
    assert_allclose(found, [[0.2, 0.3, late, 0.5], [NAN] * 4], atol=1e-9)
    # Zero, which has no logarithm, is read as the end of the curve.
    live = runs({"seed": [0]}, [0.1, 0.3, 0.6], train_loss=[1.0, 0.1, 0.0])
    found = at_loss(live, xr.DataArray([0.1, 0.0], dims="loss"))
    assert_allclose(found[0], [0.3, 0.6], atol=1e-9)
