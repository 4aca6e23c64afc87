"""Modules of Flax and Equinox, taken apart, against the frameworks' own calls and training."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import freeze
from iterlin.linearise.linearization import output_shape, require_independent
from iterlin.linearise.parameters import warn_about_batch_stats
from iterlin.networks.adapters import Adapted, from_equinox, from_linen, from_nnx
from iterlin.training.losses import mean, squared_error
from problems import bare
from refusals import fails, refused

RATE, MOMENTA = 0.4, (0.99, 0.5)
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(1.0, 2.0, size=(6, 3)), jnp.float32)
Y = jnp.asarray(rng.normal(size=(6, 2)), jnp.float32)
LOSS = mean(squared_error)


class NNX(nnx.Module):
    """Normalisation of the inputs, a layer, normalisation, dropout twice, a layer."""

    def __init__(self, momenta, rate, rngs):
        sizes = zip((3, 4), momenta, strict=True) if momenta else ()
        self.norms = nnx.List([nnx.BatchNorm(n, momentum=m, rngs=rngs) for n, m in sizes])
        self.drops = nnx.List([nnx.Dropout(rate, rngs=rngs) for _ in range(2 if rate else 0)])
        self.first, self.last = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)
        self.factor = nnx.Variable(2.0)  # a number that is no array

    def __call__(self, x):
        h = jnp.tanh(self.first(self.norms[0](x) if self.norms else x))
        h = self.norms[1](h) if self.norms else h
        for drop in self.drops:
            h = drop(h)
        return self.factor.get_value() * self.last(h)


class Linen(nn.Module):
    momenta: tuple
    rate: float

    @nn.compact
    def __call__(self, x, train):
        def normalized(h, index):
            if not self.momenta:
                return h
            return nn.BatchNorm(not train, momentum=self.momenta[index])(h)

        h = normalized(jnp.tanh(nn.Dense(4)(normalized(x, 0))), 1)
        for _ in range(2 if self.rate else 0):
            h = nn.Dropout(self.rate, deterministic=not train)(h)
        return nn.Dense(2)(h)


class Equinox(eqx.Module):
    """An array that is no parameter beside those that are; takes a state if it is normalised."""

    first: eqx.nn.Linear
    last: eqx.nn.Linear
    norms: list
    order: jax.Array

    def __init__(self, momenta, key):
        settings = {"key": key, "dtype": jnp.float32}
        self.first, self.last = eqx.nn.Linear(3, 4, **settings), eqx.nn.Linear(4, 2, **settings)
        settings = {"axis_name": "batch", "mode": "batch", "dtype": jnp.float32}
        sizes = zip((3, 4), momenta, strict=True) if momenta else ()
        self.norms = [eqx.nn.BatchNorm(n, momentum=m, **settings) for n, m in sizes]
        self.order = jnp.arange(3)

    def __call__(self, x, state=None):
        if not self.norms:
            return self.last(jnp.tanh(self.first(x[self.order])))
        h, state = self.norms[0](x[self.order], state)
        h, state = self.norms[1](jnp.tanh(self.first(h)), state)
        return self.last(h), state


class NoisyEquinox(eqx.Module):
    net: Equinox
    drop: eqx.nn.Dropout = eqx.nn.Dropout(RATE)

    def __call__(self, x, key=None):
        keys = (None, None) if key is None else jax.random.split(key)
        for each in keys:
            x = self.drop(x, key=each)
        return self.net(x)


class Case(NamedTuple):
    """A module taken apart, and what the framework itself does with it on X."""

    net: Adapted
    start: tuple  # parameters and running statistics
    called: object  # (params, statistics, training) -> outputs and the next statistics
    evaluated: object  # (what net.module returned) -> outputs


def nnx_case(momenta=(), rate=0.0):
    module = NNX(momenta, rate, nnx.Rngs(0))
    graph, *start, rest = nnx.split(module, nnx.Param, nnx.BatchStat, ...)

    def called(params, statistics, training):
        net = nnx.merge(graph, params, statistics, rest, copy=True)
        net.train() if training else net.eval()
        return net(X), nnx.state(net, nnx.BatchStat)

    called = jax.jit(called, static_argnums=2)
    return Case(from_nnx(module), start, called, lambda net: net(X))


def linen_case(momenta=(), rate=0.0):
    module = Linen(momenta, rate)
    variables = jax.jit(partial(module.init, train=False))(jax.random.key(0), X)
    start = variables["params"], variables.get("batch_stats", {})

    def called(params, statistics, training):
        known = {"params": params, "batch_stats": statistics}
        outputs, after = module.apply(known, X, train=training, mutable=["batch_stats"])
        return outputs, after.get("batch_stats", {})

    called = jax.jit(called, static_argnums=2)
    streams = {"streams": "dropout"} if rate else {}
    net = from_linen(module, freeze(variables), train=True, **streams)
    return Case(net, start, called, lambda known: module.apply(known, X, train=False))


def equinox_case(momenta=(), rate=0.0):
    module, state = eqx.nn.make_with_state(Equinox)(momenta, jax.random.key(0))
    module, state = NoisyEquinox(module) if rate else module, state if momenta else None
    params, fixed = eqx.partition(module, eqx.is_inexact_array)

    def called(params, state, training):
        net = eqx.nn.inference_mode(eqx.combine(params, fixed), not training)
        if state is None:
            return jax.vmap(net)(X), None
        return jax.vmap(net, (0, None), (0, None), axis_name="batch")(X, state)

    def evaluated(found):
        net, state = found if momenta else (found, None)
        return called(eqx.filter(net, eqx.is_inexact_array), state, False)[0]

    called = eqx.filter_jit(called)
    copied = jax.tree.map(lambda leaf: leaf, state)  # a state that was used cannot be used again
    return Case(from_equinox(module, state), (params, copied), called, evaluated)


CASES = {"nnx": nnx_case, "linen": linen_case, "equinox": equinox_case}
each_framework = pytest.mark.parametrize("make", CASES.values(), ids=CASES)


def close(ours, theirs, tolerance=1e-6):
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def trained_by(net, period=1, num_steps=3, optimizer=0.1):
    """The final state and the predictions of the network in evaluation."""
    algorithm = il.Algorithm(net.f, LOSS, optimizer, **net.settings)
    run = {"schedule": period, "num_steps": num_steps, "key": jax.random.key(5)}
    state, _ = il.train(algorithm, net.params, (X, Y), progress=False, **run)
    return state, jax.jit(algorithm.network(state))(state.params, X)


@each_framework
def test_a_run_is_that_of_the_framework_s_own_loop(make):
    """Weights, running statistics and predictions, each layer with the momentum it was given."""
    (net, (params, statistics), called, evaluated), optimizer = make(MOMENTA), optax.adam(0.01)

    @jax.jit
    def step(params, statistics, memory):
        def loss(params):
            outputs, after = called(params, statistics, True)
            return LOSS(outputs, Y), after

        slope, after = jax.grad(loss, has_aux=True)(params)
        update, memory = optimizer.update(slope, memory)
        return optax.apply_updates(params, update), after, memory

    memory = optimizer.init(params)
    for _ in range(10):
        params, statistics, memory = step(params, statistics, memory)
    state, predicted = trained_by(net, 1, 10, optimizer)
    close(state.params, params, 2e-5)
    close(state.statistics, statistics, 2e-5)
    close(predicted, evaluated(net.module(state)))
    theirs, _ = called(params, statistics, False)
    close(predicted, theirs, 1e-4)


@each_framework
def test_a_plain_module_is_a_function_of_its_parameters(make):
    net, start, called, _ = make()
    f, params = jax.jit(net.f), net.params
    assert net.settings == {}
    close(f(params, X), called(*start, True)[0])
    close(jax.jit(net.evaluated)(params, X), called(*start, False)[0])
    require_independent(f, params, X)
    assert il.empirical_ntk(f, params, X, trace=True).shape == (6, 6)


@each_framework
def test_only_training_couples_examples_and_statistics_have_no_derivative(make):
    net, start, called, _ = make(MOMENTA)
    apply, initial = net.settings["normalization"].apply, net.settings["normalization"].initial
    f, looked_at = jax.jit(net.f), jax.jit(net.evaluated)
    outputs, after = called(*start, True)
    close(f(net.params, X), outputs)
    require_independent(looked_at, net.params, X)
    fails("couples its examples", require_independent, f, net.params, X)

    def statistics(params):
        found = jax.tree.leaves(apply(params, initial, X)[1])
        return [leaf for leaf in found if leaf.dtype == X.dtype]

    found, moved = jax.jit(lambda p: jax.jvp(statistics, (p,), (p,)))(net.params)
    close(found, [leaf for leaf in jax.tree.leaves(after) if leaf.dtype == X.dtype])
    assert all(np.all(np.asarray(leaf) == 0) for leaf in moved)
    close(looked_at(net.params, X), called(*make(MOMENTA).start, False)[0])


def test_a_trained_nnx_module_can_be_trained_again_and_the_given_one_is_unchanged():
    def held(module):
        return nnx.to_pure_dict(nnx.state(module, (nnx.Param, nnx.BatchStat)))

    given = NNX(MOMENTA, RATE, nnx.Rngs(0))
    before, net = jax.tree.map(np.asarray, held(given)), from_nnx(given)
    state, predicted = trained_by(net)
    module = net.module(state)
    close(module(X), predicted)
    close(from_nnx(module).evaluated(state.params, X), predicted)
    module.train()
    assert np.abs(module(X) - predicted).max() > 1e-3
    close(held(given), before, 0)
    assert not given.norms[0].use_running_average


@each_framework
def test_noise_comes_from_the_key_alone(make):
    net, *_, evaluated = make((), RATE)
    f, params = jax.jit(net.f), net.params
    assert net.settings == {"keyed": True}
    state, predicted = trained_by(net)
    close(evaluated(net.module(state)), predicted)
    close(net.evaluated(params, X), f(params, X, None))
    first, again, other = (f(params, X, jax.random.key(seed)) for seed in (1, 1, 2))
    close(first, again, 0)
    assert np.abs(first - other).max() > 1e-3
    alike = jnp.tile(X[:1], (6, 1))
    assert np.abs(np.diff(f(params, alike, jax.random.key(1)), axis=0)).max() > 1e-3


def test_nnx_layers_and_examples_draw_apart():
    class Drops(nnx.Module):
        def __init__(self, rngs):
            self.weight = nnx.Param(jnp.ones(()))
            self.one, self.two = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return jnp.stack([self.weight * self.one(x), self.weight * self.two(x)])

    f, params, _ = from_nnx(Drops(nnx.Rngs(0)))
    one, two = f(params, jnp.ones((40, 50)), jax.random.key(0))
    assert set(np.unique(one)) == set(np.unique(two)) == {0.0, 2.0}
    assert abs(np.mean((one == 0) & (two == 0)) - 0.25) < 0.05  # four standard deviations
    assert abs(np.mean(one) - 1) < 0.1


def test_linen_streams_are_named_have_keys_of_their_own_and_match_its_apply():
    net, key, module = linen_case((), RATE).net, jax.random.key(3), Linen((), RATE)
    rngs = {"dropout": jax.random.split(key, 1)[0]}
    own = module.apply({"params": net.params}, X, train=True, rngs=rngs)
    close(net.f(net.params, X, key), own)
    net = from_linen(module, {"params": net.params}, train=True)
    fails('streams="dropout"', net.f, net.params, X)


class Counted(nn.Module):
    """Updates a collection that is no running statistics."""

    @nn.compact
    def __call__(self, x):
        calls = self.variable("counter", "calls", lambda: 0)
        calls.value += 1
        return calls.value * nn.Dense(2)(x)


def test_linen_variables_may_be_of_other_collections():
    variables = Counted().init(jax.random.key(0), X)
    net = from_linen(Counted(), variables)
    close(net.f(net.params, X), Counted().apply(variables, X, mutable=["counter"])[0])


def test_noise_and_normalisation_are_trained_with_the_keys_of_the_run():
    net = nnx_case(MOMENTA, RATE).net
    normalization = net.settings["normalization"]
    drawn = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 2**31 - 2), 0)

    def loss(params):
        outputs, after = normalization.apply(params, normalization.initial, X, drawn)
        return LOSS(outputs, Y), after

    slope, after = jax.jit(jax.grad(loss, has_aux=True))(net.params)
    state, _ = trained_by(net, 2, 1)
    close(state.params, jax.tree.map(lambda p, g: p - 0.1 * g, net.params, slope))
    close(state.statistics, after)


def test_equinox_s_own_modules_take_a_key_where_there_is_dropout():
    key = jax.random.key(0)
    plain = eqx.nn.Sequential([eqx.nn.Linear(3, 4, key=key), eqx.nn.Lambda(jnp.tanh)])
    noisy = from_equinox(eqx.nn.Sequential([*plain.layers, eqx.nn.Dropout(RATE)]))
    assert (from_equinox(plain).settings, noisy.settings) == ({}, {"keyed": True})
    outputs, drawn = noisy.f(noisy.params, X), np.asarray(noisy.f(noisy.params, X, key))
    close(outputs, jax.jit(jax.vmap(plain))(X))
    kept = drawn != 0
    assert 0.3 < kept.mean() < 0.9
    close(drawn[kept] * (1 - RATE), np.asarray(outputs)[kept])


ADAPTED = from_nnx(NNX((), 0, nnx.Rngs(0)))
COMPILED = eqx.filter_jit(lambda params, x: x @ params["weight"].T)  # no module
test_other_objects_are_refused = refused(
    lambda call, *given: bare(call)(*given),
    (from_nnx, nn.Dense(2), "takes a flax.nnx.Module, got Dense$"),
    (from_nnx, nnx.Dropout(RATE), "no nnx.Param to train"),
    (from_linen, nn.Dense(2), {"kernel": 1}, "must be what module.init gives"),
    (from_equinox, jnp.tanh, "takes an equinox.Module that can be called"),
    (from_equinox, Equinox(MOMENTA, jax.random.key(0)), "nn.make_with_state"),
    (output_shape, ADAPTED, ADAPTED.params, X, r"^f must .* Adapted; .* give .f, and .params"),
    (il.empirical_ntk, COMPILED, {"weight": jnp.ones((3, 2))}, X, r"^f\(params, x\) of inp[^;]*$"),
)


@each_framework
def test_what_an_adapted_module_cannot_take_is_refused(make):
    """A function around it would be ignored: training takes the modes in `normalization`."""
    net = make(MOMENTA).net
    with pytest.raises(ValueError, match="f is not the function that normalization was made with"):
        il.Algorithm(lambda params, x: 0 * net.f(params, x), LOSS, 0.1, **net.settings)
    with pytest.raises(ValueError, match="the module fails on parameters of another structure"):
        net.f((net.params, jnp.ones(2)), X)
    with pytest.raises(ValueError, match=r"^[^\n]*the module fails on x of shape \([^\n]*$"):
        net.f(net.params, X[0] if make is equinox_case else X[:, :2])


def test_settings_that_are_forgotten_are_warned_of():
    net = from_nnx(NNX(MOMENTA, 0.5, nnx.Rngs(0)))
    with pytest.warns(UserWarning, match="keyed and normalization.*net.settings"):
        il.Algorithm(net.f, LOSS, 0.1)
    with pytest.warns(UserWarning, match="needs keyed:"):
        il.Algorithm(net.f, LOSS, 0.1, normalization=net.settings["normalization"])
    il.Algorithm(net.f, LOSS, 0.1, **net.settings)  # warnings are errors in tests


def test_statistics_among_the_parameters_are_warned_of():
    variables = Linen(MOMENTA, 0).init(jax.random.key(0), X, train=False)
    with pytest.warns(UserWarning, match=r"batch_stats/BatchNorm_0/mean.*from_linen.*trainable"):
        warn_about_batch_stats(variables)
    module = NNX(MOMENTA, 0, nnx.Rngs(0))
    with pytest.warns(UserWarning, match=r"norms/0/mean.*from_nnx"):
        warn_about_batch_stats(nnx.state(module))
    f = lambda p, x: Linen(MOMENTA, 0).apply(p, x, train=False)  # noqa: E731
    algorithm, run = il.Algorithm(f, LOSS, 0.1), {"schedule": 1, "num_steps": 1}
    for engine in ("steps", "flow"):
        with pytest.warns(UserWarning, match="batch_stats/BatchNorm_0/mean"):
            il.train(algorithm, variables, (X, Y), engine=engine, **run)
    # Warnings are errors in tests: of these there is none.
    warn_about_batch_stats({"batch_stats_of_mine": jnp.ones(2), "batch_stats": None})
    warn_about_batch_stats(nnx.state(module, nnx.Param))


@pytest.mark.parametrize(
    ("module", "adapter"),
    [
        (NNX((), 0, nnx.Rngs(0)), "from_nnx"),
        (nnx.Sequential(jnp.tanh), "from_nnx"),  # its call takes any arguments
        (nn.Dense(2), "from_linen"),
        (eqx.nn.Linear(3, 2, key=jax.random.key(0)), "from_equinox"),
    ],
)
def test_a_module_in_the_place_of_a_network_is_told_its_adapter(module, adapter):
    for call in (
        lambda: il.Algorithm(module, LOSS, 0.1),
        lambda: il.empirical_ntk(module, {"weight": jnp.ones((3, 2))}, X),
    ):
        fails(rf"^f[^\n]*; il.{adapter} gives f[^\n]*$", call)
