"""What is judged of runs to convergence, on made-up curves and movements."""

import jax
import numpy as np
import xarray as xr
from curves import along, assert_statistics, runs
from iterlin_study.runs import problems
from test_problems import NETWORK

from book.experiments.converged_helpers import add_statistics, from_other_weights, kept, probed

TIMES, SIZES, SEEDS = [1, 20], [30, 300], range(4)


def problem():
    sizes = {"train": 60, "validation": 20, "test": 20}
    return problems.image_problem("digits", NETWORK, **sizes, observe=problems.snapshot)


def with_snapshots(task, ds, growth):
    """The runs with params whose first filters grow to so many times what they were."""

    def vector(factor):
        params = task.init(jax.random.key(0))
        params["conv1"] = params["conv1"] | {"kernel": factor * params["conv1"]["kernel"]}
        return np.asarray(jax.flatten_util.ravel_pytree(params)[0])

    looks = np.stack([vector(factor) for factor in np.linspace(1, growth, ds.sizes["evaluation"])])
    dims = [*ds.diverged_at.dims, "snapshot_0", "evaluation"]
    shape = (*ds.diverged_at.shape, *looks.T.shape)
    return ds.assign(snapshot=(dims, np.broadcast_to(looks.T, shape)))


def live():
    """Accuracies at the end of (time, size), SGD and the frozen network; filters that grow."""
    task, ends = problem(), np.array([0.2, 1.0])
    axes = {"size": SIZES, "seed": SEEDS}
    flow = np.array([[0.48, 0.70], [0.45, 0.60]])[..., None, None] * ends
    losses = {"train_loss": [2, 0.5]}
    parts = {  # runs, and how much their filters grow
        "flow": (runs({"time": TIMES} | axes, flow, **losses), 1.5),
        "sgd": (runs(axes, along(2, [0.5, 0.8]) * ends, **losses), 2.0),
        "lazy": (runs(axes, along(2, [0.3, 0.4]) * ends), 1.0),
    }
    found = xr.merge([kept(task, with_snapshots(task, *part), n) for n, part in parts.items()])
    layers = {"layer": ["conv1", "conv2"]}
    seeds, of_flow = {"seed": SEEDS} | layers, [[[58.0, 69.0]] * 4, [[50.0, 60.0]] * 4]
    found["sgd_probe"] = xr.DataArray([[60.0, 70.0]] * 4, seeds)
    found["flow_probe"] = xr.DataArray(of_flow, {"time": TIMES} | seeds)
    other = {"size": [30], "seed": SEEDS}
    few = runs({"time": [20]} | other, 0.40 * ends)
    others = from_other_weights(few, runs(other, 0.1 * ends), runs(other, 0.48 * ends))
    return found.merge(others)


def test_gaps_shares_slopes_and_movements():
    found = add_statistics(live(), few=1, long=20, other_size=30)
    expected = {
        "few_gap_end": 10,
        "few_gap_matched": 10,
        "few_gap_oracle": 10,
        "few_share": (70 - 40) / (80 - 40),
        "few_slope": 22 - 30,
        "few_moved": 0.5,
        "few_probe_gap_conv2": 1,
        "long_gap_end": 20,
        "long_share": (60 - 40) / (80 - 40),
        "long_slope": 15 - 30,
        "long_probe_gap_conv1": 10,
        "middle_rise": -10,
        "lazy_gap": 40,
        "lazy_slope": 10 - 30,
        "other_gap": 8,
        "other_lazy_gap": 38,
        "other_change": 8 - 2,
    }
    assert_statistics(found, expected)
    assert found.attrs["diverged"] == 0


def test_a_probe_of_each_layer_is_fitted_at_the_end_of_finite_runs():
    task = problem()
    ds = with_snapshots(task, runs({"size": SIZES, "seed": [0, 1]}, [0.1, 0.2]), 1.0)
    ds["snapshot"] = ds.snapshot.where(ds.seed == 0)
    found = probed(task, ds, 40, [0.1], "SAME")
    assert found.dims == ("seed", "layer")
    assert (found[0] > 15).all()  # of ten classes
    assert np.isnan(found[1]).all()
