"""Schedules with one long period, damped solves, and the statistics that compare their runs."""

import numpy as np
import pytest
import xarray as xr
from curves import assert_statistics
from iterlin.training.schedules import as_schedule
from test_when_to_relinearise import stops

from book.beyond import damp_early_helpers, how_long_helpers, how_wide_helpers
from book.beyond import early_or_late_helpers as helpers

NAN = np.nan


@pytest.mark.parametrize("places", [[0], [1, 6]])
def test_a_place_outside_the_run_is_refused(places):
    with pytest.raises(ValueError, match="places must lie between 1 and 5"):
        helpers.ends_of_periods(10, 99, 5, places)


def test_the_schedule_relinearises_at_the_given_steps_alone():
    ends = helpers.ends_of_periods(10, 100_000, 3, [2])
    assert stops(as_schedule(ends), 200_000) == [10, 100_010, 100_020, 200_000]


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
    np.testing.assert_allclose(helpers.rank_correlation(np.array(one), np.array(other)), expected)


def test_alignment_ignores_a_constant_and_the_size_of_a_kernel():
    same, crossed = map(helpers.same_class, np.array([[0, 0, 1, 1], [0, 1, 0, 1]]))
    np.testing.assert_allclose(helpers.centred_alignment(3 * same + 7, same), 1, rtol=1e-5)
    np.testing.assert_allclose(helpers.centred_alignment(crossed, same), 0, atol=1e-6)
    assert np.isnan(helpers.centred_alignment(same * NAN, same))


def test_changes_and_alignments_are_those_of_each_run_and_evaluation():
    rng = np.random.default_rng(0)
    vectors = xr.DataArray([[[3.0, 4.0], [3.0, 9.0]]], dims=["seed", "filter", "evaluation"])
    np.testing.assert_allclose(helpers.relative_change(vectors, "filter"), [[0, np.sqrt(37 / 18)]])
    dims = ["seed", "kernel_0", "kernel_1", "evaluation"]
    kernels = xr.DataArray(rng.normal(size=(2, 4, 4, 3)), dims=dims)
    found = helpers.alignments(kernels, kernels.isel(evaluation=0))
    assert found.dims == ("seed", "evaluation")
    one, other = kernels.values[1, :, :, 2], kernels.values[1, :, :, 0]
    np.testing.assert_allclose(found[1, 2], helpers.centred_alignment(one, other), rtol=1e-6)
    np.testing.assert_allclose(found.isel(evaluation=0), 1, rtol=1e-5)


def test_what_solves_lose_is_against_short_periods_of_the_same_seed():
    dims, seeds = ("damped", "seed", "look"), np.array([0.0, 0.01, 0.02, 0.03])[:, None]
    ends = {0: 0.6, 1: 0.75, 2: 0.79}
    found = np.stack([np.array([0.1, end]) + seeds for end in ends.values()])
    short = ("seed", "look"), np.array([0.9, 0.8]) + seeds
    ds = xr.Dataset({"test_accuracy": (dims, found)}, {"damped": list(ends)})
    ds = ds.assign(short_test_accuracy=short, short_train_accuracy=(short[0], np.ones((4, 2))))
    ds["train_accuracy"] = xr.full_like(ds.test_accuracy, 0.98)
    expected = {"cost_0": 20, "cost_1": 5, "cost_2": 1, "half_minus_1": 5, "half_minus_2": 9}
    assert_statistics(damp_early_helpers.add_statistics(ds), expected | {"lowest_fit": 98})


def test_the_cost_of_the_place_is_taken_where_the_loss_is_the_same():
    # At the first place a factor of 10 in the loss costs 2 points, at the second half a point.
    dims, order = ("place", "length", "seed"), [2, 0, 1]
    losses = np.array([[[1.0, 1], [10, 10], [100, 100]], [[0.1, 0.1], [10, 0.5], [100, 0.9]]])
    costs = np.log10(losses) * np.array([2.0, 0.5])[:, None, None]
    cost, loss = (xr.DataArray(values[:, order], dims=dims) for values in (costs, losses))
    found = how_long_helpers.cost_of_place(cost, loss)
    # Seed 0: 1.5 and 3 points more at losses of 10 and 100. Seed 1: no loss between the first's.
    np.testing.assert_allclose(found, [2.25, NAN])


def test_what_a_long_period_loses_is_seen_right_after_it():
    dims, short = ("place", "length", "seed", "look"), ("seed", "look")
    shape = (2, 2, 4, 4)
    ds = xr.Dataset(coords={"place": [1, 3], "length": [30, 100], "seed": range(4)})
    losses = np.arange(1.0, 65.0).reshape(shape)
    ends = np.array([[0.7, 0.5], [0.8, 0.75]])[:, :, None, None] * np.ones(shape)
    ds = ds.assign(train_loss=(dims, losses), test_accuracy=(dims, ends), moved=(dims, losses))
    ds = ds.assign(
        train_accuracy=(dims, np.ones(shape)), diverged_at=(dims[:3], np.full(shape[:3], -1))
    )
    ds = ds.assign(short_test_accuracy=(short, np.full((4, 4), 0.8)))
    ds = ds.assign(short_train_accuracy=(short, np.ones((4, 4)))).assign_coords(look=range(4))
    ds["diverged_at"][1, 1, 2] = 7
    expected = {"cost_1_30": 10, "cost_1_100": 30, "cost_3_30": 0, "cost_3_100": 5}
    ds = how_long_helpers.add_statistics(ds)
    assert_statistics(ds, expected)
    assert ds.lowest_fit[0] == 75
    np.testing.assert_array_equal(ds.loss_after[:, 1, 2], [losses[0, 1, 2, 1], losses[1, 1, 2, 3]])


def test_widths_are_compared_at_the_same_loss():
    # A factor of 10 in the loss costs the narrow network 2 points, the wide one 1.
    losses = {"": [[1.0, 1000.0], [1.0, 10.0]], "other_": [1.0, 100.0]}
    costs = {"": [[0.0, 6.0], [0.0, 1.0]], "other_": [0.0, 4.0]}
    axes = {"": ("channels", "length"), "other_": ("other_length",)}
    seeds = xr.DataArray([0.0, 0.01, 0.02, 0.03], dims="seed")
    ends = xr.DataArray([0.0, 1.0], dims="look")
    ds = xr.Dataset(coords={"channels": [8, 50], "length": [10, 1000], "other_length": [30, 100]})
    for prefix, dims in axes.items():
        loss, cost = (xr.DataArray(of[prefix], dims=dims) for of in (losses, costs))
        ds[f"{prefix}train_loss"] = loss * (1 + seeds) * ends
        ds[f"{prefix}test_accuracy"] = (0.5 + seeds - cost / 100) * ends
        ds[f"{prefix}train_accuracy"] = xr.ones_like(ds[f"{prefix}test_accuracy"])
        ds[f"{prefix}diverged_at"] = xr.full_like(loss * seeds, -1, dtype=int)
    ds["diverged_at"][1, 0, 2] = 7
    found = how_wide_helpers.add_statistics(ds)
    expected = {"cost_8": 6, "cost_50": 1, "wider_costs_less": 5, "narrow_at_equal_loss": 1}
    assert_statistics(found, expected)
    assert found.lowest_fit[0] == 75
