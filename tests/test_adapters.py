"""Modules of Flax and Equinox, taken apart, against the frameworks' own calls; noise."""

import warnings
from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from iterlin.linearization import require_independent
from iterlin.losses import mean, squared_error
from iterlin.networks.adapters import from_equinox, from_linen, from_nnx
from iterlin.parameters import split, warn_of_statistics

RATE, STEPS = 0.4, 3
rng = np.random.default_rng(0)
X = jnp.asarray(rng.normal(1.0, 2.0, size=(6, 3)))
Y = jnp.asarray(rng.normal(size=(6, 2)))


class NNX(nnx.Module):
    """Normalisation of the inputs, a layer, normalisation, dropout twice, a layer."""

    def __init__(self, norm, rate, rngs):
        # Its statistics are float32, whatever the inputs are.
        settings = {"momentum": 0.8, "dtype": jnp.float32, "rngs": rngs}
        sizes = (3, 4) if norm else ()
        self.norms = nnx.List([nnx.BatchNorm(size, **settings) for size in sizes])
        self.drops = nnx.List([nnx.Dropout(rate, rngs=rngs) for _ in range(2 if rate else 0)])
        self.first = nnx.Linear(3, 4, rngs=rngs, param_dtype=float)
        self.last = nnx.Linear(4, 2, rngs=rngs, param_dtype=float)

    def __call__(self, x):
        h = jnp.tanh(self.first(self.norms[0](x) if self.norms else x))
        h = self.norms[1](h) if self.norms else h
        for drop in self.drops:
            h = drop(h)
        return self.last(h)


class Linen(nn.Module):
    norm: bool
    rate: float

    @nn.compact
    def __call__(self, x, train):
        def normalized(h):
            return nn.BatchNorm(use_running_average=not train, momentum=0.8)(h) if self.norm else h

        h = normalized(jnp.tanh(nn.Dense(4, param_dtype=float)(normalized(x))))
        for _ in range(2 if self.rate else 0):
            h = nn.Dropout(self.rate, deterministic=not train)(h)
        return nn.Dense(2, param_dtype=float)(h)


class Equinox(eqx.Module):
    """An array that is no parameter beside those that are."""

    first: eqx.nn.Linear
    last: eqx.nn.Linear
    order: jax.Array

    def __init__(self, key):
        self.first, self.last = eqx.nn.Linear(3, 4, key=key), eqx.nn.Linear(4, 2, key=key)
        self.order = jnp.arange(3)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x[self.order])))


class NormalizedEquinox(Equinox):
    norms: list

    def __init__(self, key):
        super().__init__(key)
        settings = {"axis_name": "batch", "mode": "batch", "momentum": 0.8}
        self.norms = [eqx.nn.BatchNorm(size, **settings) for size in (3, 4)]

    def __call__(self, x, state):
        h, state = self.norms[0](x[self.order], state)
        h, state = self.norms[1](jnp.tanh(self.first(h)), state)
        return self.last(h), state


class NoisyEquinox(Equinox):
    drop: eqx.nn.Dropout

    def __init__(self, key):
        super().__init__(key)
        self.drop = eqx.nn.Dropout(RATE)

    def __call__(self, x, key=None):
        keys = (None, None) if key is None else jax.random.split(key)
        h = jnp.tanh(self.first(x[self.order]))
        for each in keys:
            h = self.drop(h, key=each)
        return self.last(h)


def noiseless(module, x):
    return jax.vmap(eqx.nn.inference_mode(module))(x)


class Case(NamedTuple):
    """A module taken apart; its own call in training; with these (mean, variance) in evaluation."""

    net: tuple
    trained: object
    evaluated: object = None
    layers: object = None  # statistics -> [(mean, variance)] of the two normalisations
    first: object = None  # params -> kernel and bias of the first layer


def nnx_case(norm, rate):
    module = NNX(norm, rate, nnx.Rngs(0))

    def trained(x):
        copy = nnx.clone(module)
        copy.train()
        return copy(x)

    def evaluated(x, found):
        copy = nnx.clone(module)
        copy.eval()
        for layer, (mean_, var) in zip(copy.norms, found, strict=True):
            layer.mean.set_value(mean_)
            layer.var.set_value(var)
        return copy(x)

    def layers(statistics):
        return [(statistics["norms"][i]["mean"], statistics["norms"][i]["var"]) for i in (0, 1)]

    def first(params):
        return params["first"]["kernel"], params["first"]["bias"]

    return Case(from_nnx(module), jax.jit(trained), jax.jit(evaluated), layers, first)


def linen_case(norm, rate):
    module = Linen(norm, rate)
    variables = module.init(jax.random.key(0), X, train=False)
    streams = {"streams": "dropout"} if rate else {}

    def trained(x):
        return module.apply(variables, x, train=True, mutable=["batch_stats"])[0]

    def evaluated(x, found):
        names = [f"BatchNorm_{i}" for i in range(len(found))]
        statistics = {
            name: {"mean": mean_, "var": var}
            for name, (mean_, var) in zip(names, found, strict=True)
        }
        return module.apply({**variables, "batch_stats": statistics}, x, train=False)

    def layers(statistics):
        return [tuple(statistics[f"BatchNorm_{i}"][k] for k in ("mean", "var")) for i in (0, 1)]

    def first(params):
        return params["Dense_0"]["kernel"], params["Dense_0"]["bias"]

    net = from_linen(module, variables, train=True, **streams)
    return Case(net, jax.jit(trained), jax.jit(evaluated), layers, first)


def equinox_case(norm, rate):
    key = jax.random.key(0)
    if norm:
        module, state = eqx.nn.make_with_state(NormalizedEquinox)(key)
    else:
        module, state = (NoisyEquinox if rate else Equinox)(key), None
    axes = {"out_axes": (0, None), "axis_name": "batch"}

    def fresh():
        return jax.tree.map(lambda leaf: leaf, state)  # one that is used cannot be used again

    def trained(x):
        if not norm:
            return jax.vmap(module)(x)
        return jax.vmap(lambda x: module(x, fresh()), **axes)(x)[0]

    def evaluated(x, found):
        if not norm:
            return noiseless(module, x)
        known = fresh()
        for layer, pair in zip(module.norms, found, strict=True):
            known = known.set(layer.batch_state_index, pair)
        net = eqx.nn.inference_mode(module)
        return jax.vmap(lambda x: net(x, known), **axes)(x)[0]

    def layers(statistics):
        return [statistics.get(layer.batch_state_index) for layer in module.norms]

    def first(params):
        return params.first.weight.T, params.first.bias

    net = from_equinox(module, state)
    return Case(net, jax.jit(trained), jax.jit(evaluated), layers, first)


CASES = {"nnx": nnx_case, "linen": linen_case, "equinox": equinox_case}
each_framework = pytest.mark.parametrize("make", CASES.values(), ids=CASES)


def close(ours, theirs, tolerance=1e-6):
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def trained_by(net, period, **settings):
    algorithm = il.Algorithm(net.f, mean(squared_error), 0.1, **net.settings, **settings)
    return il.train(
        algorithm, net.params, (X, Y), schedule=il.every(period), num_steps=STEPS, progress=False
    )[0]


@each_framework
def test_a_plain_module_is_a_function_of_its_parameters(make):
    net, trained, evaluated, *_ = make(False, 0)
    assert net.settings == {}
    close(jax.jit(net.f)(net.params, X), trained(X), 1e-12)
    close(jax.jit(net.evaluated)(net.params, X), evaluated(X, []), 1e-12)
    f, params = jax.jit(net.f), net.params
    require_independent(f, params, X)
    before = squared_error(f(params, X), Y)
    for period in (1, 5):
        assert squared_error(f(trained_by(net, period).params, X), Y) < before
    assert il.empirical_ntk(f, params, X, trace=True).shape == (6, 6)


@each_framework
def test_normalisation_is_the_framework_s_own_in_training_and_in_evaluation(make):
    net, trained, evaluated, layers, _ = make(True, 0)
    normalization = net.settings["normalization"]
    close(jax.jit(net.f)(net.params, X), trained(X))
    outputs, batch = jax.jit(normalization.apply)(net.params, X)
    close(outputs, trained(X))
    assert jax.tree.structure(batch) == jax.tree.structure(normalization.initial)
    close(jax.jit(normalization.evaluate)(net.params, batch, X), evaluated(X, layers(batch)))
    assert net.evaluated is net.evaluated  # or kernels would compile anew
    looked_at = jax.jit(net.evaluated)
    close(looked_at(net.params, X), evaluated(X, [(jnp.zeros(n), jnp.ones(n)) for n in (3, 4)]))
    require_independent(looked_at, net.params, X)
    with pytest.raises(ValueError, match="couples its examples"):
        require_independent(jax.jit(net.f), net.params, X)


def by_hand(case):
    """Mean and biased variance of the batch in both normalisations."""
    kernel, bias = case.first(case.net.params)
    moments = [(X.mean(0), X.var(0))]
    h = jnp.tanh((X - X.mean(0)[None]) / jnp.sqrt(X.var(0) + 1e-5)[None] @ kernel + bias[None])
    return [*moments, (h.mean(0), h.var(0))]


@each_framework
def test_the_batch_s_statistics_have_no_momentum_and_no_derivative(make):
    case = make(True, 0)
    apply = case.net.settings["normalization"].apply
    params = case.net.params
    batch, moved = jax.jit(lambda p: jax.jvp(lambda p: apply(p, X)[1], (p,), (p,)))(params)
    close(jax.tree.leaves(case.layers(batch))[0], X.mean(0))
    for found, expected in zip(case.layers(batch), by_hand(case), strict=True):
        close(found[0], expected[0])
        close(found[1], expected[1])
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(moved))


@each_framework
@pytest.mark.parametrize("period", [1, 5])
def test_running_statistics_after_steps_are_those_of_the_rule(make, period):
    """Within a period the batch's own stay; those of the inputs do whatever the period."""
    case = make(True, 0)
    state = trained_by(case.net, period)
    kept = 0.9**STEPS
    for layer, ((mean_, var), own) in enumerate(
        zip(case.layers(state.statistics), by_hand(case), strict=True)
    ):
        same = layer == 0 or period > STEPS
        assert np.allclose(mean_, (1 - kept) * own[0], rtol=1e-5, atol=1e-6) == same
        assert np.allclose(var, kept + (1 - kept) * own[1], rtol=1e-5) == same
    f = jax.jit(case.net.f)
    assert squared_error(f(state.params, X), Y) < squared_error(f(case.net.params, X), Y)


@each_framework
def test_noise_comes_from_the_key_alone(make):
    net, _, evaluated, *_ = make(False, RATE)
    f, params = jax.jit(net.f), net.params
    assert net.settings == {"keyed": True}
    close(f(params, X), evaluated(X, []), 1e-12)
    close(net.evaluated(params, X), f(params, X, None), 1e-12)
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


def test_linen_streams_have_keys_of_their_own_and_match_its_apply():
    net, *_ = linen_case(False, RATE)
    key = jax.random.key(3)
    module = Linen(False, RATE)
    own = module.apply(
        {"params": net.params}, X, train=True, rngs={"dropout": jax.random.split(key, 1)[0]}
    )
    close(net.f(net.params, X, key), own, 1e-12)


@pytest.mark.parametrize("make", [nnx_case, linen_case])
def test_normalised_modules_with_noise_take_a_key_in_training(make):
    net, *_, layers, _ = make(True, RATE)
    normalization = net.settings["normalization"]
    assert net.settings["keyed"]
    key = jax.random.key(0)
    f, evaluate = jax.jit(net.f), jax.jit(normalization.evaluate)
    outputs, batch = jax.jit(normalization.apply)(net.params, X, key)
    close(outputs, f(net.params, X, key))
    close(layers(batch)[0][0], X.mean(0))
    close(f(net.params, X), evaluate(net.params, normalization.initial, X))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("make", [nnx_case, linen_case])
def test_modules_with_noise_are_trained_with_the_keys_of_the_run(make, normalised):
    net, *_, layers, _ = make(normalised, RATE)
    algorithm = il.Algorithm(net.f, mean(squared_error), 0.1, **net.settings)
    key = jax.random.key(5)
    run = {"schedule": 2, "num_steps": 1, "key": key, "progress": False}
    state, _ = il.train(algorithm, net.params, (X, Y), **run)
    drawn = jax.random.fold_in(jax.random.fold_in(key, 2**31 - 2), 0)

    def loss(params):
        if not normalised:
            return mean(squared_error)(net.f(params, X, drawn), Y)
        return mean(squared_error)(net.settings["normalization"].apply(params, X, drawn)[0], Y)

    slope = jax.grad(loss)(net.params)
    jax.tree.map(lambda a, b, g: close(a, b - 0.1 * g), state.params, net.params, slope)
    if normalised:
        close(layers(state.statistics)[0][0], 0.1 * X.mean(0), 1e-5)


def test_equinox_s_own_modules_take_a_key_where_there_is_dropout():
    key = jax.random.key(0)
    layers = [eqx.nn.Linear(3, 4, key=key), eqx.nn.Lambda(jnp.tanh)]
    plain = eqx.nn.Sequential(layers)
    net = from_equinox(plain)
    assert net.settings == {}
    close(net.f(net.params, X), jax.vmap(plain)(X), 1e-12)
    noisy = from_equinox(eqx.nn.Sequential([*layers, eqx.nn.Dropout(RATE)]))
    assert noisy.settings == {"keyed": True}
    close(noisy.f(noisy.params, X), net.f(net.params, X), 1e-12)
    drawn = np.asarray(noisy.f(noisy.params, X, key))
    kept = drawn != 0
    assert 0.3 < kept.mean() < 0.9
    close(drawn[kept] * (1 - RATE), np.asarray(net.f(net.params, X))[kept])


def test_trained_parameters_and_an_equinox_module_make_the_trained_module():
    module = Equinox(jax.random.key(0))
    net = from_equinox(module)
    trained = trained_by(net, 2).params
    outputs = jax.vmap(eqx.combine(trained, module))(X)
    close(outputs, net.f(trained, X), 1e-12)
    assert squared_error(outputs, Y) < squared_error(jax.vmap(module)(X), Y)


def test_a_mask_may_be_a_module_that_can_be_called():
    params = equinox_case(False, 0).net.params
    mask = eqx.tree_at(lambda m: m.first.bias, jax.tree.map(lambda _: True, params), False)
    moving, fixed = split(params, mask)
    assert len(jax.tree.leaves(moving)) == 3
    assert jax.tree.leaves(fixed)[0] is params.first.bias


def test_a_linen_layer_with_fixed_statistics_keeps_them():
    class Fixed(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=True)(x))

    module = Fixed()
    net = from_linen(module, module.init(jax.random.key(0), X))
    normalization = net.settings["normalization"]
    _, batch = normalization.apply(net.params, X)
    jax.tree.map(lambda a, b: close(a, b, 0), batch, normalization.initial)
    close(net.f(net.params, X), net.evaluated(net.params, X), 1e-6)


class FixedThenLive(nn.Module):
    """Statistics that stay, and below them those of the batch."""

    @nn.compact
    def __call__(self, x, train):
        h = nn.BatchNorm(use_running_average=True)(x)
        return nn.BatchNorm(use_running_average=not train, momentum=0.9)(h * h)


def test_fixed_statistics_are_looked_at_and_the_next_are_the_batch_s():
    module = FixedThenLive()
    variables = module.init(jax.random.key(0), X, train=False)
    known = {"mean": X.mean(0).astype("f"), "var": X.var(0).astype("f")}
    variables["batch_stats"]["BatchNorm_0"] = known
    net = from_linen(module, variables, train=True)
    outputs, batch = net.settings["normalization"].apply(net.params, X)
    expected, _ = module.apply(variables, X, train=True, mutable=["batch_stats"])
    close(outputs, expected)
    h = ((X - X.mean(0)[None]) / jnp.sqrt(X.var(0) + 1e-5)[None]) ** 2
    close(batch["BatchNorm_1"]["mean"], h.mean(0), 1e-5)
    close(batch["BatchNorm_1"]["var"], h.var(0), 1e-5)
    jax.tree.map(lambda a, b: close(a, b, 0), batch["BatchNorm_0"], known)


class One(eqx.Module):
    norm: eqx.nn.BatchNorm

    def __init__(self, mode, momentum):
        self.norm = eqx.nn.BatchNorm(3, "batch", mode=mode, momentum=momentum, dtype=jnp.float32)

    def __call__(self, x, state):
        return self.norm(x, state)


def nnx_one(momentum):
    return from_nnx(nnx.BatchNorm(3, momentum=momentum, rngs=nnx.Rngs(0)))


def linen_one(momentum):
    module = nn.BatchNorm(momentum=momentum, use_running_average=None)
    variables = module.init(jax.random.key(0), X.astype("f"), use_running_average=False)
    return from_linen(module, variables, use_running_average=False)


def equinox_one(mode):
    return lambda momentum: from_equinox(*eqx.nn.make_with_state(One)(mode, momentum))


@pytest.mark.parametrize("momentum", [0.99, 0.999])
@pytest.mark.parametrize(
    "make",
    [nnx_one, linen_one, equinox_one("batch"), equinox_one("ema")],
    ids=["nnx", "linen", "equinox", "equinox ema"],
)
def test_small_variances_survive_a_large_momentum(make, momentum):
    x = (4e-3 * X).astype(jnp.float32)
    net = make(momentum)
    _, batch = net.settings["normalization"].apply(net.params, x)
    mean_, var = jax.tree.leaves(batch)
    np.testing.assert_allclose(mean_, x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(var, x.var(0), rtol=1e-4)


def test_statistics_of_another_form_are_taken_as_they_are():
    class Spectral(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.SpectralNorm(nn.Dense(2))(x, update_stats=train)

    module, x = Spectral(), X.astype(jnp.float32)
    variables = module.init(jax.random.key(0), x, train=False)
    net = from_linen(module, variables, train=True)
    outputs, batch = net.settings["normalization"].apply(net.params, x)
    expected, after = module.apply(variables, x, train=True, mutable=["batch_stats"])
    close(outputs, expected)
    jax.tree.map(close, batch, after["batch_stats"])


def test_evaluation_is_that_of_the_module_also_without_statistics_or_keys():
    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, x, train=True, factor=1):
            return factor * nn.Dense(2)(x) * (10 if train else 1)

    module = Scaled()
    variables = module.init(jax.random.key(0), X)
    net = from_linen(module, variables, train=True, factor=3)
    evaluated = module.apply(variables, X, train=False, factor=3)
    close(net.evaluated(net.params, X), evaluated, 1e-12)
    close(net.f(net.params, X), 10 * net.evaluated(net.params, X))


def test_a_mutated_or_retrained_nnx_module_is_left_as_it_was():
    module = NNX(True, RATE, nnx.Rngs(0))
    kinds = (nnx.Param, nnx.BatchStat)
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(module, kinds)))
    net = from_nnx(module)
    jax.jit(net.settings["normalization"].apply)(net.params, X, jax.random.key(0))
    after = nnx.to_pure_dict(nnx.state(module, kinds))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert not module.norms[0].use_running_average
    assert module.norms[0].momentum == 0.8


class Weightless(nnx.Module):
    def __call__(self, x):
        return x


class Counting(nnx.Module):
    def __init__(self):
        self.weight, self.seen = nnx.Param(jnp.ones(2)), nnx.BatchStat(jnp.zeros(2))


@pytest.mark.parametrize(
    ("adapter", "arguments", "message"),
    [
        (from_nnx, (nn.Dense(2),), "takes a flax.nnx.Module, got Dense"),
        (from_nnx, (Weightless(),), "no nnx.Param to train"),
        (from_nnx, (Counting(),), "without a momentum"),
        (from_linen, (Weightless(), {"params": {}}), "takes a flax.linen.Module, got"),
        (from_linen, (nn.Dense(2), {"kernel": 1}), "must be what module.init gives"),
        (from_linen, (nn.Dense(2), None), "must be what module.init gives"),
        (from_equinox, (jnp.tanh,), "takes an equinox.Module that can be called"),
        (from_equinox, (eqx.nn.Identity(),), "no floating point array to train"),
        (from_equinox, (NormalizedEquinox(jax.random.key(0)),), "equinox.nn.make_with_state"),
    ],
)
def test_what_is_no_such_module_is_refused(adapter, arguments, message):
    with pytest.raises(ValueError, match=message):
        adapter(*arguments)


def test_a_linen_stream_that_is_not_named_is_asked_for():
    module = Linen(False, RATE)
    net = from_linen(module, module.init(jax.random.key(0), X, train=False), train=True)
    with pytest.raises(ValueError, match='streams="dropout"'):
        net.f(net.params, X)


def test_statistics_among_the_parameters_are_warned_of():
    module = Linen(True, 0)
    variables = module.init(jax.random.key(0), X, train=False)
    with pytest.warns(UserWarning, match=r"batch_stats/BatchNorm_0/mean.*from_linen.*trainable"):
        warn_of_statistics(variables)
    state = nnx.state(NNX(True, 0, nnx.Rngs(0)))
    with pytest.warns(UserWarning, match=r"norms/0/mean.*from_nnx"):
        warn_of_statistics(state)
    for count, listed in (
        (4, r"\(batch_stats/0, .*batch_stats/3\)"),
        (5, r"batch_stats/3, \.\.\.\)"),
    ):
        with pytest.warns(UserWarning, match=listed):
            warn_of_statistics({"batch_stats": [jnp.ones(2)] * count})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_statistics({**variables, "batch_stats": None})
        warn_of_statistics(
            jax.tree.map_with_path(
                lambda path, leaf: None if "mean" in str(path) or "var" in str(path) else leaf,
                state,
            )
        )
        warn_of_statistics({"batch_stats_of_mine": jnp.ones(2)})
        warn_of_statistics(nnx.state(NNX(True, 0, nnx.Rngs(0)), nnx.Param))
