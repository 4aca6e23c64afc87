"""Schedules with one long period, damped solves, and the statistics that compare their runs."""

import numpy as np
import pytest
import xarray as xr
from curves import along, assert_statistics, runs
from iterlin.training.schedules import as_schedule
from iterlin_study.runs import merging
from test_when_to_relinearise import stops

from book.beyond import damp_early_helpers, how_long_helpers, how_wide_helpers
from book.beyond import early_or_late_helpers as helpers

NAN = np.nan
SEEDS = {"seed": range(4)}


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


def beside_short(found, test):
    """The runs and those of short periods, with this test accuracy; looks count from 0."""
    short = merging.named(runs(SEEDS, test, train_accuracy=1.0), "short", ())
    ds = xr.merge([found, short]).rename(evaluation="look")
    return ds.assign_coords(look=range(ds.sizes["look"]))


def test_what_solves_lose_is_against_short_periods_of_the_same_seed():
    seeds = np.array([0.0, 0.01, 0.02, 0.03])[:, None]
    test = along(2, [0.6, 0.75, 0.79]) * np.array([0.5, 1.0]) + seeds
    ds = runs({"damped": [0, 1, 2]} | SEEDS, test, train_accuracy=0.98)
    found = damp_early_helpers.add_statistics(beside_short(ds, np.array([0.9, 0.8]) + seeds))
    expected = {"cost_0": 20, "cost_1": 5, "cost_2": 1, "half_minus_1": 5, "half_minus_2": 9}
    assert_statistics(found, expected | {"lowest_fit": 98})


def test_the_cost_of_the_place_is_taken_where_the_loss_is_the_same():
    # At the first place a factor of 10 in the loss costs 2 points, at the second half a point.
    dims, order = ("place", "length", "seed"), [2, 0, 1]
    losses = np.array([[[1.0, 1], [10, 10], [100, 100]], [[0.1, 0.1], [10, 0.5], [100, 0.9]]])
    costs = np.log10(losses) * np.array([2.0, 0.5])[:, None, None]
    cost, loss = (xr.DataArray(values[:, order], dims=dims) for values in (costs, losses))
    # Seed 0: 1.5 and 3 points more at losses of 10 and 100. Seed 1: no loss between the first's.
    np.testing.assert_allclose(how_long_helpers.cost_of_place(cost, loss), [2.25, NAN])


def test_what_a_long_period_loses_is_seen_right_after_it():
    losses, dead = np.arange(1.0, 65.0).reshape(2, 2, 4, 4), np.full((2, 2, 4), -1)
    dead[1, 1, 2] = 7
    test = along(2, [[0.7, 0.5], [0.8, 0.75]]).reshape(2, 2, 1, 1) * np.ones(4)
    others = {"train_loss": losses, "moved": losses, "train_accuracy": 1.0, "diverged_at": dead}
    ds = runs({"place": [1, 3], "length": [30, 100]} | SEEDS, test, **others)
    found = how_long_helpers.add_statistics(beside_short(ds, np.full(4, 0.8)))
    expected = {"cost_1_30": 10, "cost_1_100": 30, "cost_3_30": 0, "cost_3_100": 5}
    assert_statistics(found, expected)
    assert found.lowest_fit[0] == 75
    seen = [losses[0, 1, 2, 1], losses[1, 1, 2, 3]]
    np.testing.assert_array_equal(found.loss_after[:, 1, 2], seen)


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
