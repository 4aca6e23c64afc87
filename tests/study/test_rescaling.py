"""Orders, ends and instabilities, on made-up errors and curves."""

import numpy as np
import xarray as xr
from curves import along, runs

from book.experiments.rescaling_helpers import add_ends, add_orders, compared, unstable

SIZES = [0.1, 0.01, 0.001]


def test_orders_are_the_exponents_of_the_errors():
    eta = np.array(SIZES)
    errors = np.array([[3 * seed * eta**0.9, seed * eta**0.6] for seed in (1.0, 2.0, 3.0, 4.0)])
    dims = ("order_seed", "steps", "order_step_size")
    found = add_orders(xr.Dataset(), xr.DataArray(errors, {"order_step_size": eta}, dims))
    for name, order, off in (("full_batch", 0.9, -0.1), ("minibatch", 0.6, 0.1)):
        np.testing.assert_allclose(found[f"order_{name}"], order)
        np.testing.assert_allclose(found[f"order_{name}_off"], off)


def boundary(**histories):
    axes = {"multiple": [0.5, 2.0], "period": [1, 50], "seed": range(4)}
    return runs(axes, np.zeros(3), **histories)


def test_curves_are_compared_with_those_of_the_smallest_step_size():
    axes = {"step_size": SIZES, "time_period": [0.0, 0.1, 0.5], "seed": range(4)}
    test = along(3, [0.5, 0.8, 0.9]) * np.array([0.1, 1.0, 0.5])
    collapse = runs(axes, test)
    kernel = np.array([2.0, 3.0, 1.0])
    still = boundary(train_loss_proxy=1.0, kernel_eigenvalue=kernel)
    found = compared(collapse, still, [0.0, 0.5, 1.0])
    sizes = {"coarse_step_size": SIZES[:2]}
    np.testing.assert_allclose(found.distance_test_accuracy.sel(sizes)[..., 0, 0], [40, 10], 1e-5)
    np.testing.assert_allclose(found.largest_distance, 40, 1e-5)
    np.testing.assert_allclose(found.largest_ratio.sel(multiple=2.0), 3)
    heavy = runs({"time_period": axes["time_period"], "seed": range(4)}, [0.1, 1.0, 0.6])
    ends = add_ends(found, heavy, 0.01)
    for name in ("plain", "short", "long"):
        np.testing.assert_allclose(ends[f"collapse_{name}"], 100 * (0.25 - 0.45), 1e-5)
        np.testing.assert_allclose(ends[f"momentum_{name}"], 100 * (0.6 - 0.4), 1e-5)


def test_a_run_is_unstable_whose_loss_grew_tenfold_or_that_diverged():
    loss = np.ones((2, 2, 4, 3))
    loss[0, 0, :, 1] = 9.0
    loss[0, 1, :, 1] = 11.0
    loss[1, 0, :, 1:] = np.nan
    loss[1, 1] = np.nan  # missing
    found = unstable(boundary(train_loss_proxy=loss))[..., 0]
    np.testing.assert_array_equal(found, [[0, 1], [1, np.nan]])
    np.testing.assert_array_equal(unstable(boundary(train_loss_proxy=1.0, diverged_at=7)), 1)
