"""Adapters of Flax (NNX and Linen) and Equinox modules: a module as a pure function f(params, x).

::

    net = from_nnx(module)
    algorithm = Algorithm(net.f, loss, optimizer, **net.settings)
    state, history = train(algorithm, net.params, data, schedule=100, num_steps=1000)
    trained = net.module(state)

A framework is imported only when one of its modules is given. A Haiku network needs no adapter:
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
from iterlin.linearise.validation import describe, is_typed_key
from iterlin.networks.normalization import Normalization
from iterlin.training.state import TrainState

# A module as a pure function, call(params, statistics, x, key, training) -> (outputs, statistics).
# The statistics that it returns are the running statistics after this batch.
ModuleCall = Callable[[PyTree, PyTree, PyTree, Array | None, bool], tuple[Array, PyTree]]


@dataclass(frozen=True, eq=False)
class Adapted:
    """A module as pure functions; ``f, params, settings = adapted`` gives what `Algorithm` needs.

    Attributes:
        f: Function from (params, x) to outputs (N, ...), the network in training. Batch
            normalisation uses the statistics of the batch x. A module with dropout or other noise
            takes (params, x, key), and without a key f is the network in evaluation.
        params: Initial parameters, in nested dicts (Flax) or as the module (Equinox).
        settings: Further arguments of `Algorithm`: "normalization" if the module has running
            statistics, and "keyed" if f takes a key.
        evaluated: Function from (params, x) to outputs (N, ...), the network in evaluation, with
            the running statistics that the module had when it was adapted. It treats examples
            independently, as kernels and Jacobians require.
        module: Function from a `TrainState` to the module in evaluation, with the parameters and
            the running statistics of the state: for NNX a module, for Linen the variables, for
            Equinox the module, or (module, state) if a state was given.
    """

    f: "ModuleFunction"
    params: PyTree
    settings: dict[str, Any]
    evaluated: Callable[[PyTree, PyTree], Array]
    module: Callable[[TrainState], Any]

    def __iter__(self) -> Iterator:
        return iter((self.f, self.params, self.settings))


@dataclass(frozen=True, eq=False)
class ModuleFunction:
    """A module in training as a function f(params, x, key=None).

    Attributes:
        call: The function.
        settings: `Adapted.settings`, of which `Algorithm` warns if it gets f without them.
    """

    call: Callable[..., Array]
    settings: dict[str, Any]

    def __call__(self, params: PyTree, x: PyTree, key: Array | None = None) -> Array:
        """Return the outputs (N, ...)."""
        return self.call(params, x, key)


def from_nnx(module) -> Adapted:
    """Adapt a `flax.nnx.Module`.

    Parameters are its `nnx.Param`, running statistics its `nnx.BatchStat`, which the module updates
    itself, with its own momentum. If the module holds random keys, f takes a key and derives them
    from it. All other state stays fixed. Training and evaluation mode are those of
    ``module.train()`` and ``module.eval()``. The given module is not changed.

    Args:
        module: A module that is called as module(x) on inputs x of N examples.

    Returns:
        The adapted module.

    Raises:
        ValueError: If module is not a `flax.nnx.Module` or has no parameters. f raises ValueError
            if the module fails on its inputs.
        ImportError: If Flax is not installed.

    >>> from flax import nnx
    >>> f, params, settings = il.from_nnx(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> f(params, jnp.ones((5, 2))).shape, settings
    ((5, 3), {})
    """
    from flax import nnx

    if not isinstance(module, nnx.Module):
        raise ValueError(f"from_nnx takes a flax.nnx.Module, got {describe(module)}")
    states = nnx.state(module, nnx.Param, nnx.BatchStat, ...)
    # Pure dicts, because a module cannot write to its variables inside another trace.
    params, initial, rest = map(nnx.to_pure_dict, states)
    if not params:
        raise ValueError("the module has no nnx.Param to train")
    keyed = any(is_typed_key(leaf) for leaf in jax.tree.leaves(rest))
    copy = nnx.clone(module)
    copy.train()
    training_graph = nnx.graphdef(copy)
    copy.eval()
    evaluation_graph = nnx.graphdef(copy)

    def call(params, statistics, x, key, training):
        graph = training_graph if training else evaluation_graph
        net = nnx.merge(graph, params, statistics, _with_new_keys(rest, key))
        return net(x), nnx.to_pure_dict(nnx.state(net, nnx.BatchStat))

    def module_of(params, statistics):
        return nnx.merge(evaluation_graph, params, statistics, rest)

    return _adapted(call, params, initial, keyed, module_of)


def from_linen(module, variables, *, streams: str | tuple[str, ...] = (), **settings) -> Adapted:
    """Adapt a `flax.linen.Module` and its variables.

    The collection "params" holds the parameters, and "batch_stats" the running statistics, which
    the module updates itself, with its own momentum. Other collections stay fixed.

    Args:
        module: A module that is called on inputs x of N examples.
        variables: The variables, as ``module.init`` returns them.
        streams: Names of the random streams of the module, such as "dropout" for `nn.Dropout`.
        **settings: Arguments of the module's call in training, such as train=True or
            deterministic=False. In evaluation bools are negated.

    Returns:
        The adapted module.

    Raises:
        ValueError: If module is not a `flax.linen.Module`, or the variables have no "params". f
            raises ValueError if the module fails on its inputs, or uses a random stream that
            `streams` does not name.
        ImportError: If Flax is not installed.

    >>> from flax import linen
    >>> module, x = linen.BatchNorm(), jnp.ones((5, 2))
    >>> variables = module.init(jax.random.key(0), x, use_running_average=False)
    >>> f, params, settings = il.from_linen(module, variables, use_running_average=False)
    >>> f(params, x).shape, list(settings)
    ((5, 2), ['normalization'])
    """
    from flax import errors, linen
    from flax.core import unfreeze

    if not isinstance(module, linen.Module):
        raise ValueError(f"from_linen takes a flax.linen.Module, got {describe(module)}")
    if not isinstance(variables, Mapping) or "params" not in variables:
        raise ValueError('variables must be what module.init gives: {"params": ..., ...}')
    variables = unfreeze(dict(variables))
    streams = (streams,) if isinstance(streams, str) else tuple(streams)
    evaluation_settings = {k: not v if isinstance(v, bool) else v for k, v in settings.items()}

    def variables_of(params, statistics):
        collections = {"params": params, "batch_stats": statistics}
        return {**variables, **{k: v for k, v in collections.items() if k in variables}}

    def call(params, statistics, x, key, training):
        keys = {}
        if key is not None:
            keys = dict(zip(streams, jax.random.split(key, len(streams)), strict=True))
        arguments = settings if training else evaluation_settings
        arguments = {"rngs": keys, "mutable": linen.DenyList("params"), **arguments}
        try:
            outputs, after = module.apply(variables_of(params, statistics), x, **arguments)
        except errors.InvalidRngError as error:
            raise ValueError(
                f'name its random streams, as in from_linen(..., streams="dropout") ({error})'
            ) from None
        return outputs, after.get("batch_stats", {})

    initial = variables.get("batch_stats", {})
    return _adapted(call, variables["params"], initial, bool(streams), variables_of)


def from_equinox(module, state=None, *, axis_name: str = "batch") -> Adapted:
    """Adapt an `equinox.Module` for one example; f applies it to a batch by `jax.vmap`.

    Parameters are its floating point arrays, and everything else stays fixed. A layer that the
    module holds in two places becomes two layers, as everywhere in Equinox (see
    `equinox.nn.Shared`). If the module takes `key`, so does f, and each example gets its own key; a
    module of Equinox itself counts as taking a key only if it contains dropout.

    Args:
        module: A module that is called as module(x), or as module(x, state) if a state is given.
        state: The state of a module made by ``equinox.nn.make_with_state``. It becomes the running
            statistics. The module updates it itself, in the mode and with the momentum of each
            `equinox.nn.BatchNorm`.
        axis_name: Name of the batch axis in the vmap of a module with a state.

    Returns:
        The adapted module.

    Raises:
        ValueError: If module is not an `equinox.Module` that can be called, has no array to train,
            or has layers with a state and no state is given. f raises ValueError if the module
            fails on its inputs.
        ImportError: If Equinox is not installed.

    >>> import equinox as eqx
    >>> module = eqx.nn.MLP(2, 3, 16, 1, key=jax.random.key(0))
    >>> f, params, settings = il.from_equinox(module)
    >>> f(params, jnp.ones((5, 2))).shape, settings
    ((5, 3), {})
    """
    import equinox as eqx

    if not isinstance(module, eqx.Module) or not callable(module):
        raise ValueError(
            f"from_equinox takes an equinox.Module that can be called, got {describe(module)}"
        )
    params, fixed = eqx.partition(module, eqx.is_inexact_array)
    if not jax.tree.leaves(params):
        raise ValueError("the module has no floating point array to train")

    def contains(kind):
        nodes = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kind))
        return any(isinstance(node, kind) for node in nodes)

    if state is None and contains(eqx.nn.StateIndex):
        raise ValueError(
            "the module has layers with a state: make it as `module, state = "
            "equinox.nn.make_with_state(Net)(...)` and give from_equinox both"
        )
    initial, others = eqx.partition(state, eqx.is_array)
    # All modules of Equinox itself take a key, and most of them ignore it.
    noisy = contains(eqx.nn.Dropout) or not type(module).__module__.startswith("equinox.")
    keyed = noisy and "key" in inspect.signature(type(module).__call__).parameters

    def call(params, statistics, x, key, training):
        net = eqx.nn.inference_mode(eqx.combine(params, fixed), not training)
        split = None if key is None else jax.random.split(key, examples.num_examples(x))
        keys = {"key": split} if keyed else {}
        if state is None:
            return jax.vmap(lambda x, keys: net(x, **keys))(x, keys), None
        before = eqx.combine(statistics, others)
        axes = {"out_axes": (0, None), "axis_name": axis_name}
        outputs, after = jax.vmap(lambda x, keys: net(x, before, **keys), **axes)(x, keys)
        return outputs, eqx.filter(after, eqx.is_array)

    def module_of(params, statistics):
        net = eqx.nn.inference_mode(eqx.combine(params, fixed))
        return net if state is None else (net, eqx.combine(statistics, others))

    return _adapted(call, params, initial, keyed, module_of)


def _adapted(
    call: ModuleCall,
    params: PyTree,
    initial: PyTree,
    keyed: bool,
    module_of: Callable[[PyTree, PyTree], Any],
) -> Adapted:
    """Make the functions of `Adapted` from a module as a pure function.

    initial: initial running statistics. keyed: whether the module takes a key. module_of: function
    from (params, statistics) to the module in evaluation.
    """

    own = params

    def checked_call(params, statistics, x, key, training):
        try:
            return call(params, statistics, x, key, training)
        except Exception as error:
            shapes, line = jax.tree.map(np.shape, x), str(error).partition("\n")[0]
            where = f"on x of shape {shapes}, whose first axis is the batch"
            if jax.tree.structure(params) != jax.tree.structure(own):
                where = "on parameters of another structure than its own"
            raise ValueError(
                f"the module fails {where} ({type(error).__name__}: {line})"
            ) from error

    def apply(params, statistics, x, key=None):
        outputs, after = checked_call(params, statistics, x, key, not keyed or key is not None)
        after = jax.tree.map(
            lambda new, old: jnp.asarray(new, jnp.result_type(old)), after, statistics
        )
        return outputs, jax.lax.stop_gradient(after)

    settings: dict[str, Any] = {"keyed": True} if keyed else {}
    f = ModuleFunction(lambda params, x, key: apply(params, initial, x, key)[0], settings)

    def evaluate(params, statistics, x):
        return checked_call(params, statistics, x, None, False)[0]

    def evaluated(params, x):
        return evaluate(params, initial, x)

    def module(state):
        return module_of(state.params, state.statistics or initial)

    if jax.tree.leaves(initial):
        settings["normalization"] = Normalization(initial, apply, evaluate, f)
    return Adapted(f, params, settings, evaluated, module)


def _with_new_keys(tree: PyTree, key: Array | None) -> PyTree:
    """Replace each PRNG key in a pytree by one derived from `key`, unless that is None."""
    if key is None:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    keys = (jax.random.fold_in(key, index) for index in range(len(leaves)))
    replaced = [
        jax.random.split(key, leaf.shape) if is_typed_key(leaf) else leaf
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, replaced)
