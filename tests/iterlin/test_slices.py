"""Functions evaluated a few examples at a time are the same functions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from iterlin import Algorithm, Step, cached_ntk, jacobian_products, losses
from iterlin.exact.linear_model import from_kernel
from iterlin.linearise import slices
from iterlin.networks.normalization import Normalization
from iterlin.training.schedules import Solved, every, when_solved
from problems import flat, network, normal
from refusals import refused

KEY = jax.random.key(5)


def independent(params, x):
    h = jnp.tanh(jnp.einsum("nij,jo->nio", x, params["w"]))
    return h.sum(1) * params["s"][None, :]


@pytest.mark.parametrize(("count", "size"), [(7, 3), (3, 4)])
def test_slices_change_nothing(count, size):
    x, params = normal(count, 2, 3), {"w": normal(3, 4), "s": normal(4)}
    whole = jacobian_products(independent, params, x)
    sliced = jacobian_products(slices.in_slices(independent, size), params, x)
    v, u = jax.tree.map(jnp.cos, params), normal(count, 4)
    np.testing.assert_allclose(sliced.outputs, whole.outputs, atol=1e-13)
    np.testing.assert_allclose(sliced.jvp(v), whole.jvp(v), atol=1e-13)
    np.testing.assert_allclose(flat(sliced.vjp(u)), flat(whole.vjp(u)), atol=1e-13)


def test_a_displacement_in_function_space_is_pulled_back_in_slices():
    x, params, g = normal(7, 2, 3), {"w": normal(3, 4), "s": normal(4)}, normal(7, 4)
    kernel = cached_ntk(independent, params, x).product
    models = [from_kernel(independent, params, x, kernel, slice_size=size) for size in (None, 3)]
    whole, sliced = (flat(model.displacement(g)) for model in models)
    np.testing.assert_allclose(sliced, whole, atol=1e-13)
    pulled = jacobian_products(independent, params, x).vjp(g)
    np.testing.assert_allclose(whole, flat(pulled), atol=1e-13)


def noisy(params, x, key):
    return params["scale"] * (x if key is None else x + jax.random.normal(key, x.shape))


@pytest.mark.parametrize(("count", "parts"), [(7, (3, 3, 1)), (3, (3,)), (2, (2,))])
def test_slices_are_of_the_size_asked_for_and_each_draws_by_a_key_of_its_own(count, parts):
    params, x = {"scale": jnp.asarray(2.0)}, jnp.arange(2.0 * count).reshape(count, 2)
    both = lambda params, x, key: {"drawn": noisy(params, x, key), "sum": x.sum(1)}  # noqa: E731
    f = slices.in_slices(both, 3)
    keys = [KEY] if len(parts) == 1 else jax.random.split(KEY, 3)
    drawn = [jax.random.normal(k, (n, 2)) for k, n in zip(keys, parts, strict=False)]
    found, still = f(params, x, KEY), f(params, x, None)
    np.testing.assert_allclose(found["drawn"], 2 * (x + jnp.concatenate(drawn)), rtol=1e-12)
    np.testing.assert_array_equal(still["drawn"], 2 * x)
    np.testing.assert_array_equal(found["sum"], x.sum(1))


def largest(outputs, y):
    """A loss that is no sum, which only whole batches have."""
    return jnp.max((outputs - y[:, None]) ** 2)


@pytest.mark.parametrize(
    ("loss", "period"),
    [(losses.cross_entropy, 1), (losses.mean(losses.squared_error), 3), (largest, 3)],
)
def test_a_sliced_network_takes_the_same_steps(loss, period):
    net, params, x, y = network((3, 6, 2), examples=20)
    y = y if losses.as_sum(loss) is losses.squared_error else jnp.argmax(y, 1)
    data = x, y, jnp.arange(19)

    def run(f):
        algorithm = Algorithm(f, loss, optax.sgd(0.01), penalty=0.1)
        step = Step(algorithm, every(period), batch_size=12, target_loss=1e-9)
        return step.advance(step.start(params, data, jax.random.key(2)), data, 7)

    whole, sliced = run(net), run(slices.in_slices(net, 5))
    np.testing.assert_allclose(flat(sliced.params), flat(whole.params), rtol=1e-12, atol=1e-14)
    assert np.abs(flat(whole.params) - flat(params)).max() > 1e-3


@pytest.mark.parametrize("coupled", ["normalization", "key"])
def test_a_sliced_network_is_normalised_and_drawn_for_by_the_whole_batch(coupled):
    x = jnp.cos(jnp.arange(14.0)).reshape(7, 2)
    params, data = {"scale": jnp.asarray(2.0)}, (x, x**2)

    def apply(params, statistics, x):
        return params["scale"] * (x - x.mean(0)[None, :]), statistics + x.mean(0)

    if coupled == "key":
        sliced, settings = slices.in_slices(noisy, 3), {"keyed": True}
        whole = lambda params, x, key: sliced(params, x, key)  # noqa: E731
    else:
        whole = lambda params, x: params["scale"] * x  # noqa: E731
        batch = Normalization(jnp.zeros(2), apply, evaluate=apply)
        sliced, settings = slices.in_slices(whole, 3), {"normalization": batch}

    def stepped(f):
        step = Step(Algorithm(f, losses.squared_error, 0.01, **settings), every(1))
        return jax.jit(step)(step.start(params, data, KEY), data)

    found, expected = stepped(sliced), stepped(whole)
    assert float(found.params["scale"]) == pytest.approx(float(expected.params["scale"]))
    np.testing.assert_allclose(flat(found.statistics), flat(expected.statistics), rtol=1e-12)


def step_of(loss, params, data):
    algorithm = Algorithm(slices.in_slices(lambda p, x: x @ p, 4), loss, optax.sgd(0.1))
    step = Step(algorithm, every(2))
    state = step.start(params, data, KEY)
    return lambda params: step(state._replace(params=params), data)


def solved_of(loss, params, data):
    """A step whose batch is one example, so that the rule alone sees all of them."""
    rule = Solved(1, None, 0.1, slice_size=4)
    step = Step(Algorithm(lambda p, x: x @ p, loss, 0.1), when_solved(rule), batch_size=1)
    state = step.start(params, data, KEY)
    return lambda params: step(state._replace(params=params), data).solved


@pytest.mark.parametrize("function", [step_of, solved_of])
def test_a_step_and_the_rule_solved_keep_no_more_than_a_slice(function):
    """From inputs to gradient no activations of all examples exist, for a loss that is a sum."""
    params, data = jnp.ones((3, 7)), (jnp.ones((64, 3)), jnp.zeros(64, jnp.int32))

    def is_whole(loss):
        return "64,7]" in str(jax.make_jaxpr(function(loss, params, data))(params))

    assert not is_whole(losses.cross_entropy)
    assert not is_whole(losses.mean(losses.cross_entropy))
    assert is_whole(largest)


test_bad_sizes_are_refused = refused(
    lambda call: call(),
    (lambda: slices.in_slices(independent, 0), "size must be a positive integer, got 0"),
    (
        lambda: slices.in_slices(lambda p, x: p * x.sum(), 2)(1.0, jnp.ones(4)),
        "outputs of .* a single",
    ),
    (lambda: slices.sum_over_slices(jnp.dot, 2, jnp.ones(4), jnp.ones(5)), r": 4, .*: 5"),
)
