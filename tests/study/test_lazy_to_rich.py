"""Flows and steps of scaled outputs against training by the library; fits of exact laws."""

from itertools import pairwise

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from curves import assert_statistics
from problems import flat, start

from book.beyond import lazy_to_rich_helpers as helpers

X = jnp.asarray(np.random.default_rng(1).normal(size=(9, 3)))
Y = jnp.sign(X[:, :1] * X[:, 1:2])
SETTINGS = {"parameterization": "ntk", "output_bias": False}
TANH, RELU = (il.mlp((3, 16, 1), activation=name, **SETTINGS) for name in ("tanh", "relu"))
START = start(TANH.init)


@jax.jit
def compiled(params, settings):
    return helpers.flows(TANH.apply, params, (X, Y), **settings)


def flow(start=START, *, scale, time, target=1e-9, most=6):
    return compiled(start, {"scale": scale, "time": time, "target": target, "most": most})


def trained(scale, step_size, period, num_steps):
    """The network and where Algorithm 3 ends, by the library."""
    f = il.centred(TANH.apply, START, scale)
    loss = il.losses.mean(il.losses.squared_error)
    algorithm = il.Algorithm(f, loss, optimizer=step_size / scale**2)
    settings = {"schedule": period, "num_steps": num_steps, "progress": False}
    return f, il.train(algorithm, START, (X, Y), **settings)[0].params


def test_a_flow_is_the_limit_of_gradient_steps_on_each_linear_problem():
    """An oracle that takes 2,000 explicit steps a linearisation, with Algorithm 3."""
    scale, time, steps = 0.7, 2.0, 2_000
    found = flow(scale=scale, time=time, most=3)
    _, expected = trained(scale, time / steps, steps, 3 * steps)
    np.testing.assert_allclose(flat(found.params), flat(expected), atol=2.5e-3)
    assert float(jnp.max(jnp.abs(flat(found.params) - flat(START)))) > 0.1
    assert int(found.linearizations) == 3


def test_steps_are_gradient_descent():
    settings = {"scale": 2.0, "step_size": 0.1, "target": 1e-9, "most": 30, "block": 10}
    found = jax.jit(lambda start: helpers.steps(TANH.apply, start, (X, Y), **settings))(START)
    f, expected = trained(2.0, 0.1, 1, 30)
    np.testing.assert_allclose(flat(found.params), flat(expected), atol=1e-12)
    assert int(found.linearizations) == 30
    np.testing.assert_allclose(found.error, jnp.mean((f(expected, X) - Y) ** 2), atol=1e-12)


def test_drifts_are_those_of_the_kernels_at_the_anchors():
    ends = [START, *(flow(scale=0.5, time=3.0, most=n).params for n in (1, 2, 3))]
    kernels = [il.ntk_matrix(TANH.apply, end, X) for end in ends]
    drifts = [il.kernel_drift(a, b) for a, b in pairwise(kernels)]
    found = flow(scale=0.5, time=3.0, most=3)
    expected = {"first": drifts[0], "mean": np.mean(drifts), "largest": np.max(drifts)}
    expected["total"] = il.kernel_drift(kernels[0], kernels[2])  # from where the third began
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, f"drift_{name}"), value, rtol=1e-8)
    aligned = il.kernel_alignment(kernels[2], Y @ Y.T)
    np.testing.assert_allclose(found.alignment, aligned, rtol=1e-8)


def test_the_size_of_a_homogeneous_network_is_a_scale():
    """f(s theta) = s^2 f(theta): weights times s are alpha = s^2, with s^2 times as much time."""
    size, small = 2.0, start(RELU.init)
    larger = jax.tree.map(lambda leaf: size * leaf, small)

    @jax.jit
    def run(start, scale):
        settings = {"scale": scale, "time": scale, "target": 1e-9, "most": 4}
        return helpers.flows(RELU.apply, start, (X, Y), **settings)

    by_size, by_scale = run(larger, 1.0), run(small, size**2)
    np.testing.assert_allclose(flat(by_size.params), size * flat(by_scale.params), rtol=1e-7)
    for name in ("drift_first", "drift_largest", "drift_total", "alignment", "error"):
        np.testing.assert_allclose(getattr(by_size, name), getattr(by_scale, name), rtol=1e-6)


def test_a_run_ends_at_its_target():
    found = flow(scale=1.0, time=0.5, target=0.3, most=1000)
    assert float(found.error) <= 0.3
    assert 1 < int(found.linearizations) < 1000
    once = flow(scale=1.0, time=jnp.inf, target=0.3, most=1)
    f = il.centred(TANH.apply, START, 1.0)
    proxy = il.linearize(f, START)(once.params, X)
    assert float(jnp.mean((proxy - Y) ** 2)) == pytest.approx(0.3 * helpers.SOLVED, rel=1e-6)
    assert float(once.drift_total) == 0


def test_a_monotone_function_is_explained_and_noise_is_not():
    rng = np.random.default_rng(0)
    x = rng.permutation(np.geomspace(1e-4, 1e4, 200))
    assert helpers.variance_explained(x, -np.sqrt(x)) == pytest.approx(1)
    assert helpers.variance_explained(x, rng.normal(size=200)) < 0.2
    assert helpers.variance_explained([1, 2, np.nan, 3], [1, 2, 9, np.nan]) == pytest.approx(1)
    assert np.isnan(helpers.variance_explained([1, 2], [5, 5]))
    # The variance within equal x is left.
    x = np.repeat([1.0, 2.0], 50)
    y = np.where(x > 1, 3.0, 0.0) + np.tile([1.0, -1.0], 50)
    assert helpers.variance_explained(x, y) == pytest.approx(1.5**2 / (1.5**2 + 1))


def test_where_a_power_law_crosses_and_its_power():
    x = np.geomspace(0.1, 1e3, 6)
    assert helpers.crossing(x, x**2.5, 40.0) == pytest.approx(40 ** (1 / 2.5))
    assert np.isnan([helpers.crossing(x, x, level) for level in (1e4, 1e-3)]).all()
    assert helpers.crossing([1.0, 2.0, 8.0], [0.2, 0.5, 0.5], 0.5) == pytest.approx(2.0)
    assert helpers.power([*x, np.nan], [*(3 * x**-1.5), 1.0]) == pytest.approx(-1.5)
    assert np.isnan(helpers.power([1.0, np.nan], [1.0, 2.0]))


def lawful(width=64, seeds=4):
    """Runs whose drift is 0.001 tau / alpha and 1 / width, and whose accuracy falls with it."""
    dials = [(0.1, width, 1.0), (1.0, width, 1.0), (10.0, width, 1.0), (1.0, 2 * width, 1.0)]
    scale, widths, sizes = (np.array(column) for column in zip(*dials, strict=True))
    times = np.array([0.0, 2, 8, 32, 128, 512, 2048, np.inf])
    taken = np.tile(np.minimum(times, 5000), (len(dials), 1))
    taken[:, 0] = 0.2 * np.minimum(1, scale)  # a step at K = 1
    drift = 1e-3 * taken / scale[:, None] * (width / widths)[:, None]
    total = 1 / (1 + drift)
    found = {"drift_largest": drift, "drift_first": drift, "drift_total": total}
    found |= {"accuracy": 100 * total**3, "alignment": total, "fitted": 0 * total + 100}
    runs = xr.Dataset(
        {
            name: (("task", "dial", "time", "seed"), np.tile(v[None, ..., None], (1, 1, 1, seeds)))
            for name, v in found.items()
        },
        {"task": ["xor"], "time": times, "seed": range(seeds), "moment": np.geomspace(0.01, 1e4)},
        {"width": width},
    ).assign_coords(scale=("dial", scale), width=("dial", widths), size_of_weights=("dial", sizes))
    runs["reach"] = ("task", "seed", "moment"), np.tile(3 * runs.moment.values, (1, seeds, 1))
    return runs


def test_statistics_of_runs_that_follow_the_laws():
    found = helpers.add_statistics(lawful(), 0.2)
    critical = helpers.common_dials(found.sel(task="xor")).critical
    for level, times in ((0.01, (1, 10, 100)), (0.1, (10, 100, 1000))):
        expected = np.tile(np.transpose([times]), (1, 4))
        np.testing.assert_allclose(critical.sel(level=level), expected, rtol=1e-6)
    for name in ("power_1", "power_10", "reach_power_1", "reach_power_10", "first_power"):
        np.testing.assert_allclose(found[f"xor_{name}"], 0, atol=1e-6)
    for ending in ("accuracy", "grid_accuracy", "alignment", "grid_alignment"):
        assert_statistics(found, {f"xor_r2_total_{ending}": 1, f"xor_r2_drift_{ending}": 1})
    middle, rich, lazy = 100 * np.array([1 + 2e-4, 1 + 1e-3 * 5000 / 0.1, 1 + 2e-5]) ** -3.0
    expected = {"xor_rich": middle - rich, "xor_lazy": middle - lazy}
    assert_statistics(found, expected | {"xor_width_power": -1, "xor_fitted": 100})


def test_the_flow_predicts_critical_times_from_one_of_them():
    """v grows as the square root of tau: the critical time as the square of alpha."""
    runs = helpers.common_dials(lawful().sel(task="xor"))
    runs["reach"] = np.sqrt(runs.moment) * xr.ones_like(runs.seed)
    times = np.array([np.nan, 5.0, np.nan])  # at scales 0.1, 1, 10
    scales = np.array([0.5, 2.0, 1e3])
    predicted = helpers.flow_prediction(runs, times, scales)
    np.testing.assert_allclose(predicted, [1.25, 20.0, np.nan], rtol=1e-6)
    assert np.isnan(helpers.flow_prediction(runs, np.full(3, np.nan), scales)).all()
