"""Steps that are stale in part: against dense Jacobians, and the corners against `train`."""

from itertools import product

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin.networks.normalization import Normalization
from iterlin.schedules import Solved
from iterlin.study import groups, runs, staleness
from iterlin.watching import Watch
from problems import dense, flat, network

ENTROPY = il.losses.mean(il.losses.cross_entropy)
WIDTHS, STEP_SIZE, KEY = (3, 6, 5, 2), 0.3, jax.random.key(2)
LAYERS = ("0", "1", "2")


def classified(examples=12):
    """f, params and data of a small smooth network; its layers by name."""
    model = il.mlp(WIDTHS, activation="tanh", bias_scale=0.1)
    f = lambda params, x: model.apply([params[name] for name in LAYERS], x)  # noqa: E731
    params = dict(zip(LAYERS, model.init(jax.random.key(0)), strict=True))
    x = jax.random.normal(jax.random.key(1), (examples, 3))
    return f, params, (x, (x[:, 0] * x[:, 1] > 0).astype(jnp.int32))


def trained(f, params, data, residual, jacobian, schedule, num_steps, **settings):
    algorithm = il.Algorithm(f, ENTROPY, **{"optimizer": STEP_SIZE} | settings)
    mixed = staleness.partly_stale(algorithm, residual=residual, jacobian=jacobian)
    return il.train(mixed, params, data, schedule=schedule, num_steps=num_steps, key=KEY)[0]


def by_hand(f, params, data, residual, jacobian, period, num_steps):
    """The same in NumPy from dense Jacobians, one step after another."""
    x, y = data
    theta, unravel = jax.flatten_util.ravel_pytree(params)
    layer = np.concatenate([np.full(flat(params[name]).size, int(name)) for name in LAYERS])
    for step in range(num_steps):
        if step % period == 0:
            anchor = theta
            outputs, stale = np.asarray(f(unravel(anchor), x)), dense(f, unravel(anchor), x)
        now, fresh = np.asarray(f(unravel(theta), x)), dense(f, unravel(theta), x)
        seen = outputs + (stale @ (theta - anchor)).reshape(now.shape)
        seen = now if residual == "fresh" else seen
        odds = np.exp(seen - seen.max(1, keepdims=True))
        slope = (odds / odds.sum(1, keepdims=True) - np.eye(2)[np.asarray(y)]) / len(y)
        stale_layers = {"fresh": (), "stale": LAYERS}.get(jacobian, jacobian)
        columns = np.isin(layer, [int(name) for name in stale_layers])
        theta = theta - STEP_SIZE * np.where(columns, stale, fresh).T @ slope.ravel()
    return theta


JACOBIANS = ["fresh", "stale", (), ("1",), ("0", "2"), LAYERS]


@pytest.mark.parametrize("residual", ["fresh", "stale"])
@pytest.mark.parametrize(
    ("jacobian", "slice_size"), [*((j, None) for j in JACOBIANS), ("stale", 5), (("1",), 5)]
)
def test_steps_are_those_of_dense_jacobians(residual, jacobian, slice_size):
    f, params, data = classified()
    sliced = f if slice_size is None else il.in_slices(f, slice_size)
    state = trained(sliced, params, data, residual, jacobian, 4, 10)
    expected = by_hand(f, params, data, residual, jacobian, 4, 10)
    np.testing.assert_allclose(flat(state.params), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("batch_size", [None, 5])
def test_the_corners_are_gradient_descent_and_algorithm_3(batch_size):
    f, params, data = classified()
    settings = {"batch_size": batch_size, "optimizer": optax.sgd(0.1, momentum=0.9)}
    algorithm = il.Algorithm(f, ENTROPY, **settings)
    for part, period in (("fresh", 1), ("stale", 4)):
        mixed = trained(f, params, data, part, part, 4, 13, **settings)
        plain, _ = il.train(algorithm, params, data, schedule=period, num_steps=13, key=KEY)
        np.testing.assert_allclose(flat(mixed.params), flat(plain.params), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("residual", "jacobian"), [("fresh", "stale"), ("stale", "fresh"), ("stale", ("0",))]
)
def test_with_a_linearisation_at_each_step_it_is_gradient_descent_bit_for_bit(residual, jacobian):
    f, params, data = classified()
    mixed = trained(f, params, data, residual, jacobian, 1, 7)
    plain, _ = il.train(il.Algorithm(f, ENTROPY, STEP_SIZE), params, data, schedule=1, num_steps=7)
    np.testing.assert_array_equal(flat(mixed.params), flat(plain.params))


def test_a_network_linear_in_its_parameters_cannot_be_stale():
    f = lambda params, x: x @ params["only"]  # noqa: E731
    _, _, (x, y) = classified()
    params = {"only": 0.1 * jnp.ones((3, 2))}
    ends = [
        flat(trained(f, params, (x, y), *corner, 6, 12).params)
        for corner in product(("fresh", "stale"), ("fresh", ("only",), "stale"))
    ]
    for end in ends[1:]:
        np.testing.assert_allclose(end, ends[0], rtol=1e-12, atol=1e-14)


def test_penalty_and_trainable_are_those_of_the_algorithm():
    f, params, data = classified()
    settings = {"penalty": 0.05, "trainable": lambda path: not path.startswith("0")}
    mixed = trained(f, params, data, "stale", LAYERS, 5, 11, **settings)
    algorithm = il.Algorithm(f, ENTROPY, STEP_SIZE, **settings)
    plain, _ = il.train(algorithm, params, data, schedule=5, num_steps=11)
    np.testing.assert_allclose(flat(mixed.params), flat(plain.params), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(flat(mixed.params["0"]), flat(params["0"]))


def test_grids_keep_such_runs_apart_and_resume_them(tmp_path):
    f, _, data = classified()
    model = il.mlp(WIDTHS, activation="tanh", bias_scale=0.1)
    problem = groups.Problem(
        il.Algorithm(f, ENTROPY, batch_size=4),
        lambda key: dict(zip(LAYERS, model.init(key), strict=True)),
        train=data,
        watch=Watch({"test": data}, {"loss": ENTROPY}),
    )

    def losses(residual, jacobian):
        mixed = staleness.problem_with(problem, residual=residual, jacobian=jacobian)
        make = lambda seed: runs.Run(seed, 5, STEP_SIZE, (0, 12))  # noqa: E731
        return runs.grid(mixed, {"seed": range(2)}, make, folder=tmp_path).test_loss.values

    first = {jacobian: losses("fresh", jacobian) for jacobian in ("stale", "fresh", ("1",))}
    assert len(list(tmp_path.glob("*.npz"))) == 3
    for jacobian, found in first.items():
        np.testing.assert_array_equal(losses("fresh", jacobian), found)
    assert len(list(tmp_path.glob("*.npz"))) == 3
    assert len({found[:, -1].tobytes() for found in first.values()}) == 3


def test_a_step_that_is_not_finite_ends_the_run():
    f, params, data = classified()
    state = trained(f, params, data, "fresh", "stale", 50, 50, optimizer=1e308)
    assert state.diverged_at >= 0
    assert np.isfinite(flat(state.params)).all()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"residual": "old"}, "residual"),
        ({"jacobian": "old"}, "jacobian"),
        ({"jacobian": (1,)}, "jacobian must name"),
        ({"solved": Solved(5)}, "solved"),
        ({"normalization": Normalization(0.0, None, None)}, "normalization"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, named):
    f, _, _, _ = network()
    with pytest.raises(ValueError, match=named):
        staleness.PartlyStale(f, ENTROPY, 0.1, **settings)


def test_unknown_layers_are_named():
    f, params, data = classified()
    with pytest.raises(ValueError, match="jacobian names a, d"):
        trained(f, params, data, "fresh", ("d", "1", "a"), 2, 2)
