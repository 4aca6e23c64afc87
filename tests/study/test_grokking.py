"""Addition modulo p: networks, features, decay; when runs generalise, and what claims judge."""

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr
from curves import assert_statistics
from iterlin_study.report import derived
from iterlin_study.runs import grids, merging

from book.beyond import grokking_helpers, grokking_layers_helpers, grokking_period_helpers
from book.beyond import grokking_schedules_helpers as schedules
from book.beyond import grokking_solves_helpers as solves
from book.beyond.grokking_layers_helpers import grid


def test_the_network_is_one_hidden_layer_of_squares_on_one_hot_inputs():
    params = grokking_helpers.initial(jax.random.key(0), 5, 7)
    pairs, _ = grokking_helpers.table_of_sums(5)
    weights = np.concatenate([params["left"], params["right"]])
    inputs = np.concatenate([np.eye(5)[pairs[:, 0]], np.eye(5)[pairs[:, 1]]], 1)
    expected = (inputs @ weights) ** 2 @ np.asarray(params["out"])
    found = grokking_helpers.network(params, pairs)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_units_of_one_frequency_are_concentrated_and_noise_is_not():
    angles = 2 * np.pi * np.outer(np.arange(11), [1, 3, 3]) / 11
    power = grokking_helpers.spectrum(jnp.cos(angles + 0.3))
    np.testing.assert_allclose(grokking_helpers.concentration(power), 1, rtol=1e-5)
    np.testing.assert_array_equal(power.argmax(0), [0, 2, 2])
    noise = jax.random.normal(jax.random.key(0), (11, 500))
    assert grokking_helpers.concentration(grokking_helpers.spectrum(noise)) < 0.6


def test_accuracy_on_the_other_pairs_follows_from_that_on_all():
    right = np.array([1, 0, 1, 1, 0, 1, 0, 0, 1])
    means = {"all_accuracy": right.mean(), "train_accuracy": right[:4].mean()}
    means |= {f"{name}_proxy": 0.5 for name in means}
    found = grokking_helpers.with_test_accuracy(xr.Dataset(means), 4, 9)
    np.testing.assert_allclose(found.test_accuracy, right[4:].mean())


def test_a_run_generalises_at_the_first_look_above_the_level():
    accuracy = xr.DataArray([[0.1, 0.96, 0.5, 0.99], [0.1, 0.2, 0.3, 0.4]], dims=["seed", "look"])
    others = ["updates", "step", "alignment", "concentration"]
    ds = xr.Dataset({name: ("look", [0.0, 3.0, 6.0, 9.0]) for name in others})
    ds = ds.assign(test_accuracy=accuracy, step=100 * ds.step)
    found = grokking_helpers.generalised(ds)
    np.testing.assert_array_equal(found.alignment, [3, np.nan])
    needs = schedules.with_needs(ds)
    for reached in (found.reached, needs.reached):
        assert reached.values.tolist() == [True, False]
    # A run that falls short counts in full.
    for updates in (found.updates, needs.needed):
        assert updates.values.tolist() == [3, 9]
    for steps in (found.step, needs.needed_steps):
        assert steps.values.tolist() == [300, 900]


def test_the_longest_period_leaves_out_the_infinite_one():
    times = {"time": [0.0, 1.0, 2.0, np.inf]}
    reached = xr.DataArray([[True, True, False, True], [False] * 4], times, ["seed", "time"])
    np.testing.assert_array_equal(grokking_helpers.longest(reached), [1, np.nan])


def test_weight_decay_alone_shrinks_what_the_loss_does_not_see():
    # Only the embeddings of numbers that occur are seen; the row of number 4 is not.
    problem = grokking_helpers.addition(5, 6, 1.0, 10)
    pairs, sums = problem.train
    seen = (pairs < 4).all(1)
    problem = problem.but(train=(pairs[seen], sums[seen]))
    run = grids.Run(0, np.inf, 0.01, (0, 30), optimizer="adamw", decay=0.5)
    problem = problem.but(observe=lambda state: {"row": state.params["left"][4]})
    [result], _ = grids.run_all(problem, [run])
    first, last = result.history["row"][:, 0], result.history["row"][:, -1]
    np.testing.assert_allclose(last, first * (1 - 0.01 * 0.5) ** 30, rtol=1e-5)


@pytest.mark.parametrize(
    ("best", "low", "high", "edge"),
    [
        ([1.0, 0.97, 0.93, 0.2], 200, 400, np.sqrt(200 * 400)),
        ([0.5] * 4, 0, 100, np.nan),  # outside the grid
        ([1.0] * 4, 800, np.inf, np.nan),
    ],
)
def test_the_edge_is_where_the_best_accuracy_crosses_the_level(best, low, high, edge):
    accuracy = xr.DataArray([[0.0] * 4, best], dims=["look", "place"])
    periods = xr.DataArray([100, 200, 400, 800], dims="place")
    found = grokking_period_helpers.edges(accuracy, periods)
    np.testing.assert_allclose([found.low, found.high, found.edge], [low, high, edge])


def test_the_exponent_of_a_power_law_lies_inside_what_its_cells_allow():
    decays = np.array([0.5, 1.0, 2.0])
    edges = np.outer(1000 * decays**-1.3, np.ones(5))
    edge = xr.DataArray(edges, {"decay": decays}, ["decay", "seed"])
    found = xr.Dataset({"low": edge / 1.05, "high": edge * 1.05, "edge": edge})
    slopes, (mean, lower, upper) = grokking_period_helpers.exponents(found)
    np.testing.assert_allclose(slopes, -1.3)
    # The cell's width, log10(1.05) on both sides, over the weights of the outer decays.
    half = np.log10(1.05) / np.log10(2)
    np.testing.assert_allclose([mean, lower, upper], [-1.3, -1.3 - half, -1.3 + half])
    found["edge"][0, 0] = np.nan  # outside the grid
    slopes, (_, *limits) = grokking_period_helpers.exponents(found)
    assert limits == [-np.inf, np.inf]
    assert grokking_period_helpers.over_all_seeds(slopes)[1].tolist() == [0, *limits]


def test_exponents_at_small_and_at_large_decays_are_told_apart():
    # Periods fall like 1 / decay up to decay 1 and like decay^-1.5 from there on.
    decays = np.array([0.3, 0.7, 1.0, 2.0])
    first = 20_000 * decays ** np.where(decays > 1, -1.5, -1.0)
    best = np.broadcast_to([[1.0], [0.9]], (4, 2, 4))[..., None]
    runs = xr.Dataset({"test_accuracy": (("decay", "place", "seed", "look"), best)})
    runs = runs.assign(train_accuracy_proxy=runs.test_accuracy).assign_coords(decay=decays)
    runs["period"] = ("decay", "place"), np.outer(first, [1, 2])
    both = xr.merge([runs, merging.named(runs.sel(decay=[1.0, 2.0]), "scaled", ["decay"])])
    found = grokking_period_helpers.add_statistics(both, 0.001)
    np.testing.assert_allclose(found.low_off, 0, atol=1e-6)
    np.testing.assert_allclose(found.low_minus_high, 0.5, atol=1e-6)


def test_the_transformer_tells_first_from_second_number_and_treats_pairs_alone():
    params = schedules.transformer_params(jax.random.key(0), 5, 8, 8)
    pairs = np.array([[1, 3], [3, 1], [0, 4]], np.int32)
    transformer = jax.jit(schedules.transformer)
    logits = transformer(params, pairs)
    assert not np.allclose(logits[0], logits[1])
    np.testing.assert_allclose(transformer(params, pairs[:1]), logits[:1], rtol=1e-6)


def test_a_seed_draws_a_training_set_and_all_other_sums():
    _, (pairs, sums), (others, _) = grokking_layers_helpers.seeded(5, 4, 0.6, seed=3)
    assert len(pairs) == 15
    assert {tuple(pair) for pair in (*pairs, *others)} == set(np.ndindex(5, 5))
    assert (sums == pairs.sum(1) % 5).all()


def test_parts_are_judged_by_the_best_look_and_the_first_at_the_level():
    helpers, seeds = grokking_layers_helpers, {"seed": range(4)}

    def of_part(part, time, seed):
        best = 0.99 if part == helpers.ALL else 0.1 * (1 + time)
        looks = {"test_accuracy": [0.0, best, 0.05], "train_accuracy_proxy": [0.5, 0.98, 1.0]}
        looks["step"] = [0, 100, 200]
        return xr.Dataset({name: ("look", values) for name, values in looks.items()})

    def of_half(half, half_time, seed):
        looks = [0.0, 0.96, 0.5] if half == helpers.BOTH else [0.0, 0.3, 0.97 - 0.1 * half_time]
        return xr.Dataset({"half_test_accuracy": ("look", looks)})

    layers = grid(of_part, {"part": [helpers.ALL, *helpers.FITTING], "time": [0.0, 1.0]} | seeds)
    halves = grid(of_half, {"half": list(helpers.HALVES), "half_time": [0.1, 1.0]} | seeds)
    expected = {"all_best": 99, "part_best": 20, "alone_fit": 100}
    expected |= {"single_best": 96, "single_later": 100}
    assert_statistics(helpers.add_statistics(layers.merge(halves)), expected)


@pytest.mark.parametrize("loss", list(solves.LOSSES))
def test_the_squares_of_the_weights_are_weight_decay(loss):
    start, sets = solves.sets_of(5, 4, 0.6, seed=1)
    start = jax.tree.map(lambda leaf: leaf.astype(float), start)
    run = {"schedule": 3, "num_steps": 7}
    rows = solves.with_weights(sets["train"], 4)
    found, _ = il.train(solves.flow(loss, 0.2, 0.1), start, rows, **run)
    descent = optax.chain(optax.add_decayed_weights(0.2), optax.sgd(0.1))
    network, of_row = grokking_helpers.network, solves.LOSSES[loss]
    mean = il.Algorithm(network, lambda out, y: of_row(out, y).mean(), descent)
    expected, _ = il.train(mean, start, sets["train"], **run)
    for name, leaf in found.params.items():
        np.testing.assert_allclose(leaf, expected.params[name], rtol=1e-12, atol=1e-14)


def test_solves_are_judged_by_the_longest_period_and_the_judged_penalties():
    def run(loss, time, seed, decay=0.1):
        good = loss == solves.SQUARED and decay < 1
        looks = [0.0, 0.1, 0.96, 0.5] if good else [0.0, 0.1, 0.3, 0.4]
        if time < 1:
            looks = [0.0, 0.1, 0.2, 0.98]
        return xr.Dataset({"test_accuracy": ("look", looks)})

    axes = {"loss": list(solves.LOSSES), "time": [0.5, 3.0], "seed": range(4)}
    adamw = grid(run, axes).rename(time="adamw_time", test_accuracy="adamw_test_accuracy")
    adamw["adamw_test_accuracy_proxy"] = adamw.adamw_test_accuracy
    flows = grid(run, axes | {"decay": [0.1, 1.0]})
    flows["train_accuracy_proxy"] = 0 * flows.test_accuracy + 0.98
    found = solves.add_statistics(flows.merge(adamw), judged=0.5)
    expected = {"solved_best": 96, "solved_updates": 1, "flow_fit": 98, "adamw_short_best": 98}
    assert_statistics(found, expected | {"adamw_squared_best": 96, "adamw_entropy_best": 40})
    # A run that does not train has no linearised network that generalises.
    np.testing.assert_allclose(derived.proxy_at_long_period(found), 40)
    assert (found.updates.sel(loss=solves.ENTROPY, time=3.0) == 3).all()
