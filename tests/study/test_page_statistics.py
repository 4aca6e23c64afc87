"""What a page's claims are judged by, on made-up runs with known answers."""

import numpy as np
import pytest
import xarray as xr
from curves import along, assert_statistics, runs
from iterlin_study.runs import merging

from book.experiments import (
    batching_helpers,
    damping_cnn_helpers,
    damping_quintic_helpers,
    data_scaling_helpers,
    exact_solves_helpers,
    few_updates_helpers,
    filters_helpers,
    full_solve_helpers,
    period_sweep_helpers,
    rescaling_helpers,
    resnet_helpers,
    width_helpers,
)

SEEDS = {"seed": range(4)}


def test_batching_is_full_batch_minus_minibatch():
    batches = [batching_helpers.FULL, batching_helpers.MINI]
    full, mini = [0.1, 0.9, 0.5], [0.1, 0.6, 0.7]
    test = np.stack([np.broadcast_to(each, (3, 4, 3)) for each in (full, mini)])
    test[1, 2, :, 1:] = np.nan  # diverged: counts with the accuracy that it started from
    diverged = np.where(np.isnan(test[..., -1]), 1, -1)
    live = runs({"batch": batches, "period": [1, 5, 20]} | SEEDS, test, diverged_at=diverged)
    found = batching_helpers.add_statistics(live)
    moderate = {"best_moderate": 20, "end_moderate": -20, "largest_moderate": 30}
    large = {"best_large": 80, "end_large": 40, "largest_large": 80}
    expected = {f"difference_{name}": value for name, value in (moderate | large).items()}
    assert_statistics(found, expected)


def test_damping_gains_in_accuracy_and_costs_linearisations_until_all_is_fitted():
    test = 0.5 + along(2, [0.0, 0.2, 0.3]) * np.array([0.0, 1.0, 0.5, 0.0])
    fit = np.broadcast_to(along(2, [1.0, 1.0, 0.9]) * [0.1, 0.98, 0.995, 1.0], (3, 4, 4))
    updates = along(2, [1, 40, 400]) * np.array([0, 2, 4.75, 6])
    live = runs({"penalty": [0.001, 0.1, 1.0]} | SEEDS, test, train_accuracy=fit, updates=updates)
    found = damping_cnn_helpers.add_statistics(live, [0.001, 0.1])
    taken = found.linearizations_to_fit.transpose("penalty", "seed")
    np.testing.assert_allclose(taken[:2].T, [[5.75, 191]] * 4)
    assert np.isnan(taken[2]).all()  # it never fits
    ratio = np.log10(191 / 5.75)
    assert_statistics(found, {"gain_oracle": 20, "linearizations_ratio": ratio})


def test_data_scaling_has_slopes_a_decade_against_k_1_and_of_the_finite_period_farthest_off():
    sizes = [10, 100, 1000]

    def grid(slopes):
        decades = np.log10(sizes)[:, None, None]
        test = np.stack([(30 + slope * decades) / 100 * [0.5, 1.0] for slope in slopes.values()])
        axes = {"period": list(slopes), "size": sizes} | SEEDS
        return runs(axes, test * np.ones((1, 1, 4, 1)))

    small, large = grid({1: 8, 10: 7, 100: 12}), grid({1: 9, np.inf: 4})
    found = data_scaling_helpers.add_statistics(data_scaling_helpers.merged(small, large))
    np.testing.assert_allclose(found.slope_oracle, [[8] * 4, [7] * 4, [12] * 4])
    assert_statistics(found, {"finite_slope_oracle": 4, "lazy_slope_oracle": -5})


def test_exact_solves_have_a_cost_against_sgd_a_gain_by_damping_and_slopes():
    axes, ends = {"time": [1, 10, 100]} | SEEDS, np.array([0.1, 1.0])
    damped = runs(axes, along(2, [0.8, 0.7, 0.6]) * ends)
    flow = runs(axes, along(2, [0.75, 0.7, 0.65]) * ends)
    sgd = runs(SEEDS, 0.85 * np.array([0.1, 0.5, 1.0]))
    found = exact_solves_helpers.add_statistics({"damped": damped, "flow": flow, "sgd": sgd})
    expected = {"cost_accuracy": 25, "gain_accuracy": 20, "cost_oracle": 25, "distance": 0}
    expected |= {"damped_slope": -10, "flow_slope": -5, "slope_difference": -5}
    assert_statistics(found, expected)
    np.testing.assert_array_equal(found.look, [0, 1])
    assert found.sgd_test_accuracy.dims == ("seed", "sgd_look")


def test_few_updates_have_gaps_at_the_end_at_equal_loss_and_at_the_best_reading():
    every, few = [0.1, 0.6, 0.9, 0.8], [0.1, 0.2, 0.5, 0.6]
    test = np.stack([np.broadcast_to(each, (4, 4)) for each in (every, few)])
    loss = along(2, [1, 10]) * np.array([8.0, 4.0, 2.0, 0.4])  # the few end with the loss 4
    updates = along(2, [1, 0]) * np.arange(4) + along(2, [0, 1]) * [0, 1, 2, 2]
    lazy = merging.named(runs(SEEDS, [0.1, 0.4]), "lazy")
    live = runs({"period": [1, 100]} | SEEDS, test, train_loss=loss, updates=updates)
    found = few_updates_helpers.add_statistics(live.merge(lazy, compat="override"))
    # Where the loss is 4 both are at 0.6; from 0.4 to 0.8 the few come to 0.6.
    expected = {"gap_end": 20, "gap_matched": 0, "gap_oracle": 30, "share": 0.5, "final_updates": 2}
    assert_statistics(found, expected)


@pytest.mark.parametrize(
    ("halve_after", "halvings"), [([1], [0, 0, 0, 1, 1, 1, 1]), ([1, 1.5], [0, 0, 0, 1, 2, 2, 2])]
)
def test_sharpness_uses_the_step_size_of_the_moment(halve_after, halvings):
    live = runs({"period": [1, 100]} | SEEDS, np.zeros(7), curvature=8.0)
    live["time"] = "evaluation", 50 * np.arange(7.0)
    live.attrs |= {"step_size": 0.5, "momentum": 0.5, "halve_after": halve_after}
    found = few_updates_helpers.sharpness(live, live.isel(period=0, seed=0))
    np.testing.assert_allclose(found, 8 / 3 * 0.5 ** np.array(halvings))


def test_full_solves_are_compared_with_sgd_and_count_as_solved_at_ends_of_periods():
    names = ("SGD", "ADAM", "FIXED", "STOPPED")
    axes = {"solver": [getattr(full_solve_helpers, name) for name in names]} | SEEDS
    test = along(2, [0.9, 0.8, 0.5, 0.6]) * np.array([0.1, 1.0, 0.2, 0.3, 0.4, 0.5, 0.6])
    # Three readings a period: 1 in the middle of the first period does not solve it.
    proxy = np.broadcast_to([0.1, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0], (4, 4, 7))
    found = full_solve_helpers.add_statistics(runs(axes, test, train_accuracy_proxy=proxy), 3)
    gaps = {"sgd_fixed": 40, "sgd_stopped": 30, "adam_fixed": 30, "adam_stopped": 20}
    expected = {f"gap_{name}_oracle": value for name, value in gaps.items()}
    assert_statistics(found, expected | {"solved_share": 0.5})


def test_periods_agree_with_k_1_while_short_and_drop_at_the_largest_finite_one():
    # With a step of 0.01 the periods 5 and 10 are within eta K = 0.1.
    axes = {"period": [1.0, 5.0, 10.0, 1000.0, np.inf]} | SEEDS
    test = along(2, [0.9, 0.89, 0.94, 0.6, 0.2]) * np.ones((1, 4, 3))
    steps = np.array([0, 1000, 2000])
    newton = runs(SEEDS, [0.1, 0.7, 0.8], train_accuracy=[0.5, 1.0, 1.0], step=steps)
    found = period_sweep_helpers.add_statistics(runs(axes, test, step=steps), newton, 0.01)
    expected = {"largest_gap_oracle": -4, "trajectory_distance": 4, "drop_oracle": 30}
    # Read until the network fits; the whole run would come to 0.8.
    expected |= {"newton_accuracy_oracle": 70, "newton_whole_oracle": 80, "newton_drop_oracle": 20}
    assert_statistics(found, expected)
    assert found.newton_updates.dims == ("newton_seed", "newton_evaluation")
    # A run is read from the end of its first period on.
    late = runs(axes, [0.9, 0.8, 0.7, 0.6], step=[0, 100, 500, 1000])
    found = period_sweep_helpers.add_statistics(late, newton, 0.01)
    np.testing.assert_allclose(found.accuracy_oracle[:4, 0], [80, 80, 80, 60])


def test_resnets_come_out_of_the_record_and_gaps_are_between_their_periods():
    plain = runs({"period": [1, 24]} | SEEDS, along(2, [0.9, 0.6]) * np.array([0.5, 1.0, 0.8]))
    batch = runs({"period": [1, 12]} | SEEDS, along(2, [0.7, 0.9]) * np.array([0.5, 1.0]))
    parts = {"plain": plain, "batch": batch}
    live = xr.merge([resnet_helpers.with_name(ds, name) for name, ds in parts.items()])
    assert resnet_helpers.variants(live) == ["plain", "batch"]
    kept = [name for name in resnet_helpers.KEPT if name in batch]
    xr.testing.assert_equal(resnet_helpers.variant(live, "batch")[kept], batch[kept])
    found = resnet_helpers.add_statistics(live, ["plain", "batch", "frozen"])
    assert_statistics(found, {"gap_plain": 30, "gap_batch": -20})
    assert np.isnan(found.gap_frozen[0])


def test_wide_networks_have_gaps_below_sgd_at_the_end_and_at_equal_loss():
    ends, axes = np.array([0.5, 1.0]), {"size": [1000]} | SEEDS
    flow = np.array([0.79, 0.60])[:, None, None, None] * ends
    flows = runs({"time": [50, 1000]} | axes, flow, train_accuracy=[0.3, 1.0], train_loss=[2, 0.5])
    descent = runs(axes, 0.8 * ends, train_accuracy=[0.4, 0.96], train_loss=[2, 0.02])
    live = width_helpers.merged(flows, runs(axes, 0.65 * ends), descent)
    found = width_helpers.add_statistics(live, few=50, long=1000)
    # SGD goes from 40 to 80 % as log(loss) goes from log 2 to log 0.02; it is read at 0.5.
    way = np.log(2 / 0.5) / np.log(2 / 0.02)
    gaps = {"few_gap": 1, "long_gap": 20, "lazy_gap": 15, "few_gap_matched": 40 + 40 * way - 79}
    assert_statistics(found, gaps | {"few_fit": 100, "long_fit": 100, "first_fit": 96})


def test_quintics_are_kept_that_fit_and_have_ratios_of_little_damping_over_much_in_decades():
    def outcome(scale):
        """Of 40 seeds: test errors spread about a scale; the last seed is dropped."""
        spread, train = np.linspace(0.5, 1.5, 40), np.append(np.full(39, 2.0), 3.0)
        return {"train_rmse": train, "test_rmse": scale * spread, "roughness": scale**2 * spread}

    biases = ("zero", "random")
    by_damping = [(outcome(scale), np.zeros((40, 7))) for scale in (100.0, 1.0)]
    outcomes = {(span, bias): by_damping for span in ("[-4, 4]", "[-3.6, 3.8]") for bias in biases}
    of_time = {bias: [outcome(scale) for scale in (10.0, 1.0)] for bias in biases}
    live = damping_quintic_helpers.dataset_of(outcomes, of_time, [0.001, 1.0], [1000.0, 1.0], [1.0])
    for suffix in ("", "_time"):
        found = damping_quintic_helpers.kept(live, suffix)
        assert np.isnan(found.test_rmse[..., -1]).all()
        assert np.isfinite(found.roughness[..., :-1]).all()
    found = damping_quintic_helpers.add_statistics(live)
    for bias in biases:
        expected = {f"{name}_ratio_{bias}": 2 for name in ("mean", "worst", "best")}
        expected |= {f"{name}_ratio_time_{bias}": 1 for name in ("mean", "worst", "best")}
        assert_statistics(found, expected | {f"roughness_ratio_{bias}": 4})


def test_filters_have_a_change_a_cosine_and_the_fraction_at_which_k_1_has_moved_as_far():
    times = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    start, along, across = np.eye(3 * 3 * 4)[:3].reshape(3, 3, 3, 1, 4)
    directions = along, np.sqrt(0.75) * across + 0.5 * along  # 60 degrees apart
    lengths = np.array([times, times / 2])
    one = start + np.multiply.outer(lengths, np.ones(start.shape)) * np.array(directions)[:, None]
    found = filters_helpers.measured(np.repeat(one[:, None], 4, axis=1), times, num_columns=2)
    np.testing.assert_allclose(found.moved, np.repeat(lengths[:, None], 4, axis=1))
    np.testing.assert_allclose(found.cosine, 0.5)
    np.testing.assert_allclose(found.fraction, 0.5)
    np.testing.assert_allclose(found.column_time, [2, 4])
    np.testing.assert_allclose(found["filters"][0, 1], 4 * along[..., :3])
    expected = {"change_ratio": 0.5, "cosine_final": 0.5}
    assert_statistics(filters_helpers.add_statistics(found), expected)


SIZES = [0.1, 0.01, 0.001]


def test_orders_of_rescaling_are_the_exponents_of_the_errors():
    eta = np.array(SIZES)
    errors = np.array([[3 * seed * eta**0.9, seed * eta**0.6] for seed in (1.0, 2.0, 3.0, 4.0)])
    dims = "order_seed", "steps", "order_step_size"
    errors = xr.DataArray(errors, {"order_step_size": eta}, dims)
    expected = {"order_full_batch": 0.9, "order_full_batch_off": -0.1}
    expected |= {"order_minibatch": 0.6, "order_minibatch_off": 0.1}
    assert_statistics(rescaling_helpers.add_orders(xr.Dataset(), errors), expected)


def boundary(**histories):
    axes = {"multiple": [0.5, 2.0], "period": [1, 50]} | SEEDS
    return runs(axes, np.zeros(3), **histories)


def test_rescaled_curves_are_compared_with_those_of_the_smallest_step_size():
    times = {"time_period": [0.0, 0.1, 0.5]} | SEEDS
    test = along(3, [0.5, 0.8, 0.9]) * np.array([0.1, 1.0, 0.5])
    still = boundary(train_loss_proxy=1.0, kernel_eigenvalue=np.array([2.0, 3.0, 1.0]))
    collapse = runs({"step_size": SIZES} | times, test)
    found = rescaling_helpers.compared(collapse, still, [0.0, 0.5, 1.0])
    distances = found.distance_test_accuracy.sel(coarse_step_size=SIZES[:2])[..., 0, 0]
    np.testing.assert_allclose(distances, [40, 10], 1e-5)
    np.testing.assert_allclose(found.largest_distance, 40, 1e-5)
    np.testing.assert_allclose(found.largest_ratio.sel(multiple=2.0), 3)
    ends = rescaling_helpers.add_ends(found, runs(times, [0.1, 1.0, 0.6]), 0.01)
    for name in ("plain", "short", "long"):
        np.testing.assert_allclose(ends[f"collapse_{name}"], 100 * (0.25 - 0.45), 1e-5)
        np.testing.assert_allclose(ends[f"momentum_{name}"], 100 * (0.6 - 0.4), 1e-5)


def test_a_rescaled_run_is_unstable_whose_loss_grew_tenfold_or_that_diverged():
    loss = np.ones((2, 2, 4, 3))
    loss[0, 0, :, 1] = 9.0
    loss[0, 1, :, 1] = 11.0
    loss[1, 0, :, 1:] = np.nan
    loss[1, 1] = np.nan  # missing
    found = rescaling_helpers.unstable(boundary(train_loss_proxy=loss))[..., 0]
    np.testing.assert_array_equal(found, [[0, 1], [1, np.nan]])
    diverged = boundary(train_loss_proxy=1.0, diverged_at=7)
    np.testing.assert_array_equal(rescaling_helpers.unstable(diverged), 1)


def test_a_grid_comes_out_of_the_merged_data_set_as_it_went_in():
    parts = {"first": ([1, 5], [0.1, 0.2, 0.3]), "second": ([7], [0.4, 0.5])}
    grids = {name: runs({"period": p} | SEEDS, test) for name, (p, test) in parts.items()}
    merged = xr.merge([merging.named(ds.drop_attrs(), name) for name, ds in grids.items()])
    own = {f"{name}_{axis}" for name in parts for axis in ("period", "evaluation")}
    assert set(merged.dims) == own | {"seed"}
    for name, ds in grids.items():
        xr.testing.assert_identical(merging.of(merged, name), ds.drop_attrs())
    # Only the axes that are asked for get the name.
    named = merging.named(grids["second"], "large", ["period"])
    assert named.large_test_accuracy.dims == ("large_period", "seed", "evaluation")
