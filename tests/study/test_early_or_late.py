"""Schedules with one long period, and the statistics by which their runs are compared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from iterlin.exact.calendar import Calendar
from iterlin.training.algorithm import Algorithm
from iterlin.training.losses import squared_error
from iterlin.training.step import Step

from book.beyond.early_or_late_helpers import (
    alignments,
    at_steps,
    centred_alignment,
    ends_of_periods,
    rank_correlation,
    relative_change,
    same_class,
)

NAN = np.nan


@pytest.mark.parametrize("places", [[0], [1, 6]])
def test_a_place_outside_the_run_is_refused(places):
    with pytest.raises(ValueError, match="places must lie between 1 and 5"):
        ends_of_periods(10, 99, 5, places)


def test_the_schedule_relinearises_at_the_given_steps_alone():
    schedule = at_steps([10, 100_010, 100_020])
    run = Step(Algorithm(lambda p, x: p * x, squared_error, 0.1), schedule)
    state = run.start(jnp.ones(()), (jnp.ones(2), jnp.ones(2)), jax.random.key(0))
    plan, found, step = Calendar(schedule), [], 0
    while step < 200_000:
        step = plan.next_stop(state._replace(step=jnp.asarray(step)), 200_000)
        found.append(step)
    assert found == [10, 100_010, 100_020, 200_000]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([[1.0, 2.0], [3.0, 40.0]], [[-1.0, 0.0], [5.0, 6.0]], 1.0),
        ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0], 0.8),
        ([1.0, 2.0, NAN, 3.0], [3.0, 2.0, 9.0, 1.0], -1.0),
        ([1.0, 2.0, NAN], [3.0, 2.0, 1.0], NAN),
        ([1.0, 1.0, 1.0], [3.0, 2.0, 1.0], NAN),
    ],
)
def test_rank_correlation_leaves_out_missing_runs(one, other, expected):
    np.testing.assert_allclose(rank_correlation(np.array(one), np.array(other)), expected)


def test_alignment_ignores_a_constant_and_the_size_of_a_kernel():
    same, crossed = (same_class(np.array(labels)) for labels in ([0, 0, 1, 1], [0, 1, 0, 1]))
    np.testing.assert_allclose(centred_alignment(3 * same + 7, same), 1, rtol=1e-5)
    np.testing.assert_allclose(centred_alignment(crossed, same), 0, atol=1e-6)
    assert np.isnan(centred_alignment(same * NAN, same))


def test_changes_and_alignments_are_those_of_each_run_and_evaluation():
    rng = np.random.default_rng(0)
    vectors = xr.DataArray([[[3.0, 4.0], [3.0, 9.0]]], dims=["seed", "filter", "evaluation"])
    np.testing.assert_allclose(relative_change(vectors, "filter"), [[0, np.sqrt(37 / 18)]])
    dims = ["seed", "kernel_0", "kernel_1", "evaluation"]
    kernels = xr.DataArray(rng.normal(size=(2, 4, 4, 3)), dims=dims)
    found = alignments(kernels, kernels.isel(evaluation=0))
    assert found.dims == ("seed", "evaluation")
    one, other = kernels.values[1, :, :, 2], kernels.values[1, :, :, 0]
    np.testing.assert_allclose(found[1, 2], centred_alignment(one, other), rtol=1e-6)
    np.testing.assert_allclose(found.isel(evaluation=0), 1, rtol=1e-5)
