"""Modules of Flax (NNX and Linen) and of Equinox as pure functions f(params, x) on a batch::

    net = from_nnx(module)
    algorithm = Algorithm(net.f, loss, optimizer, **net.settings)
    state, history = train(algorithm, net.params, data, schedule=100, num_steps=1000)
    trained = net.module(state)

Each framework is imported only when one of its modules is given. A haiku network needs no adapter:
``haiku.without_apply_rng(haiku.transform(net))`` has init and apply.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from iterlin.linearise import examples
from iterlin.networks.normalization import Normalization
from iterlin.training.state import TrainState

# A module as a function: run(params, statistics, x, key, training) -> (outputs, statistics), the
# running statistics after the batch as the module itself updates them.
Run = Callable[[PyTree, PyTree, PyTree, Array | None, bool], tuple[Array, PyTree]]


@dataclass(frozen=True, eq=False)
class Adapted:
    """A module taken apart; ``f, params, settings = adapted`` gives what `Algorithm` needs.

    f(params, x) -> outputs: the network in training, with the batch normalisation of x. A module
    with dropout or other noise gives f(params, x, key), which is evaluation without a key.
    params: the parameters to begin with, in nested dicts (Flax) or as the module (Equinox).
    settings: the other arguments of `Algorithm`: "normalization" where the module has running
    statistics, and "keyed" where f takes a key.
    evaluated(params, x) -> outputs: the network in evaluation, with the running statistics that the
    module came with. It treats examples independently, as kernels and Jacobians require.
    module(state) -> the module in evaluation, with the parameters and the running statistics of a
    `TrainState`: for NNX a module, for Linen the variables, for Equinox the module, or
    (module, state) if it came with a state.
    """

    f: Callable[..., Array]
    params: PyTree
    settings: dict[str, Any]
    evaluated: Callable[[PyTree, PyTree], Array]
    module: Callable[[TrainState], Any]

    def __iter__(self) -> Iterator:
        return iter((self.f, self.params, self.settings))


def from_nnx(module) -> Adapted:
    """Take a `flax.nnx.Module` apart; its call must take the inputs alone, module(x).

    The parameters are `nnx.Param`, the running statistics `nnx.BatchStat`, which the module updates
    itself, with its own momentum. All other state stays as it is, except keys: if the module holds
    any, f takes a key and draws them from it. Training and evaluation are ``module.train()`` and
    ``module.eval()``. The module that is given is not changed.

    Raises ValueError if this is not such a module or has no parameters; ImportError if flax is not
    installed. f raises ValueError if the module fails on its inputs.

    >>> from flax import nnx
    >>> f, params, settings = il.from_nnx(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> f(params, jnp.ones((5, 2))).shape, settings
    ((5, 3), {})
    """
    from flax import nnx

    if not isinstance(module, nnx.Module):
        raise ValueError(f"from_nnx takes a flax.nnx.Module, got {module!r}")
    states = nnx.state(module, nnx.Param, nnx.BatchStat, ...)
    # Dicts, not the module's variables: a trace could not write to those of another.
    params, initial, rest = map(nnx.to_pure_dict, states)
    if not params:
        raise ValueError("the module has no nnx.Param to train")
    keyed = any(_is_key(leaf) for leaf in jax.tree.leaves(rest))
    copy = nnx.clone(module)
    copy.train()
    in_training = nnx.graphdef(copy)
    copy.eval()
    in_evaluation = nnx.graphdef(copy)

    def run(params, statistics, x, key, training):
        graph = in_training if training else in_evaluation
        net = nnx.merge(graph, params, statistics, _rekeyed(rest, key))
        return net(x), nnx.to_pure_dict(nnx.state(net, nnx.BatchStat))

    def module_of(params, statistics):
        return nnx.merge(in_evaluation, params, statistics, rest)

    return _adapted(run, params, initial, keyed, module_of)


def from_linen(module, variables, *, streams: str | tuple[str, ...] = (), **settings) -> Adapted:
    """Take apart a `flax.linen.Module` with its variables, as ``module.init`` gives them.

    settings are the arguments of the module's call in training, such as train=True or
    deterministic=False; for evaluation, bools are negated. streams: the names of the keys that the
    module draws from, "dropout" for `nn.Dropout`. The collection "params" holds the parameters,
    "batch_stats" the running statistics, which the module updates itself, with its own momentum.
    Other collections stay as they are.

    Raises ValueError if this is not such a module, or the variables have no "params"; ImportError
    if flax is not installed. f raises ValueError if the module fails on its inputs, or asks for a
    key that `streams` does not name.

    >>> from flax import linen
    >>> module, x = linen.BatchNorm(), jnp.ones((5, 2))
    >>> variables = module.init(jax.random.key(0), x, use_running_average=False)
    >>> f, params, settings = il.from_linen(module, variables, use_running_average=False)
    >>> f(params, x).shape, list(settings)
    ((5, 2), ['normalization'])
    """
    from flax import errors, linen

    if not isinstance(module, linen.Module):
        raise ValueError(f"from_linen takes a flax.linen.Module, got {module!r}")
    if not isinstance(variables, Mapping) or "params" not in variables:
        raise ValueError('variables must be what module.init gives: {"params": ..., ...}')
    streams = (streams,) if isinstance(streams, str) else tuple(streams)
    opposite = {k: not v if isinstance(v, bool) else v for k, v in settings.items()}

    def variables_of(params, statistics):
        collections = {"params": params, "batch_stats": statistics}
        return {**variables, **{k: v for k, v in collections.items() if k in variables}}

    def run(params, statistics, x, key, training):
        each = [] if key is None else jax.random.split(key, len(streams))
        keys = dict(zip(streams, each, strict=key is not None))
        call = {"rngs": keys, "mutable": ["batch_stats"], **(settings if training else opposite)}
        try:
            outputs, after = module.apply(variables_of(params, statistics), x, **call)
        except errors.InvalidRngError as error:
            raise ValueError(
                f'name the streams of its keys, as in from_linen(..., streams="dropout") ({error})'
            ) from None
        return outputs, after.get("batch_stats", {})

    initial = variables.get("batch_stats", {})
    return _adapted(run, variables["params"], initial, bool(streams), variables_of)


def from_equinox(module, state=None, *, axis_name: str = "batch") -> Adapted:
    """Take apart an `equinox.Module` for one example, module(x): f is its `jax.vmap` over a batch.

    The parameters are its floating point arrays; all else stays as it is. A layer that the module
    holds in two places becomes two layers, as everywhere in Equinox (see `equinox.nn.Shared`). If
    the module's call takes `key` (of Equinox's own modules: if there is dropout in it), so does f,
    and each example gets a key of its own. A module made by ``equinox.nn.make_with_state`` comes
    with its `state` and is called as module(x, state) in a vmap of `axis_name`. The state is what
    training keeps as running statistics, and the module updates it itself, in the mode and with the
    momentum of each `equinox.nn.BatchNorm`.

    Raises ValueError if this is not such a module, has no array to train, or has layers with a
    state that is not given; ImportError if equinox is not installed. f raises ValueError if the
    module fails on its inputs.

    >>> import equinox as eqx
    >>> module = eqx.nn.MLP(2, 3, 16, 1, key=jax.random.key(0))
    >>> f, params, settings = il.from_equinox(module)
    >>> f(params, jnp.ones((5, 2))).shape, settings
    ((5, 3), {})
    """
    import equinox as eqx

    if not isinstance(module, eqx.Module) or not callable(module):
        raise ValueError(f"from_equinox takes an equinox.Module that can be called, got {module!r}")
    params, fixed = eqx.partition(module, eqx.is_inexact_array)
    if not jax.tree.leaves(params):
        raise ValueError("the module has no floating point array to train")

    def holds(kind):
        found = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kind))
        return any(isinstance(node, kind) for node in found)

    if state is None and holds(eqx.nn.StateIndex):
        raise ValueError(
            "the module has layers with a state: make it as `module, state = "
            "equinox.nn.make_with_state(Net)(...)` and give from_equinox both"
        )
    initial, others = eqx.partition(state, eqx.is_array)
    # All of Equinox's own modules take a key, most of them for nothing.
    noisy = holds(eqx.nn.Dropout) or not type(module).__module__.startswith("equinox.")
    keyed = noisy and "key" in inspect.signature(type(module).__call__).parameters

    def run(params, statistics, x, key, training):
        net = eqx.nn.inference_mode(eqx.combine(params, fixed), not training)
        each = None if key is None else jax.random.split(key, examples.num_examples(x))
        keys = {"key": each} if keyed else {}
        if state is None:
            return jax.vmap(lambda x, keys: net(x, **keys))(x, keys), None
        before = eqx.combine(statistics, others)
        axes = {"out_axes": (0, None), "axis_name": axis_name}
        outputs, after = jax.vmap(lambda x, keys: net(x, before, **keys), **axes)(x, keys)
        return outputs, eqx.filter(after, eqx.is_array)

    def module_of(params, statistics):
        net = eqx.nn.inference_mode(eqx.combine(params, fixed))
        return net if state is None else (net, eqx.combine(statistics, others))

    return _adapted(run, params, initial, keyed, module_of)


def _adapted(run: Run, params: PyTree, initial: PyTree, keyed: bool, module_of) -> Adapted:
    def called(params, statistics, x, key, training):
        try:
            return run(params, statistics, x, key, training)
        except Exception as error:
            shapes, line = jax.tree.map(np.shape, x), str(error).partition("\n")[0]
            raise ValueError(
                f"the module fails on x of shape {shapes}, whose first axis is the batch "
                f"({type(error).__name__}: {line})"
            ) from error

    def apply(params, statistics, x, key=None):
        outputs, after = called(params, statistics, x, key, not keyed or key is not None)
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, statistics)
        return outputs, jax.lax.stop_gradient(after)

    def f(params, x, key=None):
        return apply(params, initial, x, key)[0]

    def evaluate(params, statistics, x):
        return called(params, statistics, x, None, False)[0]

    def evaluated(params, x):
        return evaluate(params, initial, x)

    def module(state):
        return module_of(state.params, state.statistics or initial)

    settings = {"keyed": True} if keyed else {}
    if jax.tree.leaves(initial):
        settings["normalization"] = Normalization(initial, apply, evaluate)
    return Adapted(f, params, settings, evaluated, module)


def _is_key(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _rekeyed(tree: PyTree, key: Array | None) -> PyTree:
    """The tree with each key in it drawn from another one."""
    if key is None:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    keys = (jax.random.fold_in(key, index) for index in range(len(leaves)))
    drawn = [
        jax.random.split(key, leaf.shape) if _is_key(leaf) else leaf
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)
