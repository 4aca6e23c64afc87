"""Modules of Flax (NNX and Linen) and of Equinox as pure functions f(params, x) on a batch::

    f, params, settings = from_nnx(module)
    algorithm = Algorithm(f, loss, optimizer, **settings)

No framework is imported before one of its modules comes. A haiku network needs no adapter:
``haiku.without_apply_rng(haiku.transform(net))`` has init and apply.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from iterlin import examples
from iterlin.networks.normalization import Normalization

# What a module is to all of this file: run(params, statistics, x, key, training) -> (outputs,
# statistics). In training these are the batch's own; at other times they are not looked at.
Run = Callable[[PyTree, PyTree, PyTree, Array | None, bool], tuple[Array, PyTree]]


@dataclass(frozen=True, eq=False)
class Adapted:
    """A module, taken apart; ``f, params, settings = adapted`` takes what `Algorithm` needs.

    f(params, x) -> outputs, the network as it is trained: batch normalisation with the moments of
    x, for which `settings` has the rest. With dropout or other noise it is f(params, x, key), and
    without a key what it is in evaluation.
    params: the parameters to begin with, in nested dicts (Flax) or as the module (Equinox).
    settings: all else that `Algorithm` must know, as keywords: "normalization", where the module
    has running statistics, and "keyed", where f takes a key.
    evaluated(params, x) -> outputs in evaluation, with the running statistics that the module came
    with. It treats its examples independently, as kernels and Jacobians ask for.
    """

    f: Callable[..., Array]
    params: PyTree
    settings: dict[str, Any]
    evaluated: Callable[[PyTree, PyTree], Array]

    def __iter__(self) -> Iterator:
        return iter((self.f, self.params, self.settings))


def from_nnx(module) -> Adapted:
    """A `flax.nnx.Module`; its call must take the inputs alone, module(x).

    `nnx.Param` are the parameters, `nnx.BatchStat` the running statistics; all other state is kept
    as it is, but for keys: of a module that holds any, f takes one, and draws them from it.
    Training and evaluation are those of ``module.train()`` and ``module.eval()``. Running
    statistics follow `update_statistics`, with its momentum and not the module's own.

    Raises ValueError for what is no such module, one without parameters, or statistics of a layer
    that has no `momentum`; ImportError if flax is not installed.

    >>> from flax import nnx
    >>> f, params, settings = il.from_nnx(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> f(params, jnp.ones((5, 2))).shape, settings
    ((5, 3), {})
    """
    from flax import nnx

    if not isinstance(module, nnx.Module):
        raise ValueError(f"from_nnx takes a flax.nnx.Module, got {module!r}")
    for path, layer in nnx.iter_modules(module):
        owned = any(isinstance(value, nnx.BatchStat) for value in vars(layer).values())
        if owned and not hasattr(layer, "momentum"):
            raise ValueError(
                f"the layer at {'/'.join(map(str, path))} keeps statistics without a momentum: "
                "give it an attribute `momentum`, and have it keep momentum * old + (1 - momentum) "
                "* the batch's own"
            )
    states = nnx.state(module, nnx.Param, nnx.BatchStat, ...)
    # Dicts, not the module's variables: a trace could not write to those of another.
    params, initial, rest = map(nnx.to_pure_dict, states)
    if not params:
        raise ValueError("the module has no nnx.Param to train")
    keyed = any(_is_key(leaf) for leaf in jax.tree.leaves(rest))
    graphs = {}
    for training in (True, False):
        copy = nnx.clone(module)
        # With no momentum a layer's new statistics are those of the batch.
        modes = {"deterministic": not training, "use_running_average": not training}
        copy.set_attributes(**modes, momentum=0.0, raise_if_not_found=False)
        graphs[training] = nnx.graphdef(copy)

    def run(params, statistics, x, key, training):
        net = nnx.merge(graphs[training], params, statistics, _rekeyed(rest, key))
        return net(x), nnx.to_pure_dict(nnx.state(net, nnx.BatchStat))

    return _adapted(run, params, initial, keyed)


def from_linen(module, variables, *, streams: str | tuple[str, ...] = (), **settings) -> Adapted:
    """A `flax.linen.Module` with its variables, as ``module.init`` gives them.

    settings are what the module's call takes in training, such as train=True or
    deterministic=False: bools are turned round for evaluation. streams: the names of the keys it
    asks for, "dropout" for `nn.Dropout`. "params" are the parameters, "batch_stats" the running
    statistics of batch normalisation, and other collections are kept as they are. The statistics
    follow `update_statistics`, with its momentum and not the module's own.

    Raises ValueError for what is no such module, or variables without "params"; f does where the
    module asks for a key that `streams` does not name. ImportError if flax is not
    installed.

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
    rest = {name: kept for name, kept in variables.items() if name not in ("params", "batch_stats")}
    initial = variables.get("batch_stats", {})
    opposite = {k: not v if isinstance(v, bool) else v for k, v in settings.items()}

    def run(params, statistics, x, key, training):
        state = {"params": params, "batch_stats": statistics, **rest}
        each = [] if key is None else jax.random.split(key, len(streams))
        keys = dict(zip(streams, each, strict=key is not None))
        chosen = settings if training else opposite
        try:
            outputs, after = module.apply(state, x, rngs=keys, mutable=["batch_stats"], **chosen)
        except errors.InvalidRngError as error:
            raise ValueError(
                "the module asks for a key: give from_linen the names of its streams, such as "
                f'streams="dropout" ({error})'
            ) from None
        return outputs, after.get("batch_stats", {})

    return _adapted(_without_momentum(run), variables["params"], initial, bool(streams))


def from_equinox(module, state=None, *, axis_name: str = "batch") -> Adapted:
    """An `equinox.Module` for one example, module(x): f is its `jax.vmap` over the batch.

    Its floating point arrays are the parameters; all else is kept as it is. If its call takes `key`
    (of Equinox's own modules, if there is dropout in it), so does f: each example gets a key of its
    own. A module made by ``equinox.nn.make_with_state`` comes with its `state`, as it was made, and
    is called as module(x, state) in a vmap of `axis_name`. What the state holds in floating point
    are statistics of batch normalisation (mode="batch"); they follow `update_statistics`, with its
    momentum and not the module's own.

    Raises ValueError for what is no such module or has no array to train, or layers with a state
    that is not given; ImportError if equinox is not installed.

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
    initial, others = eqx.partition(state, eqx.is_inexact_array)
    # All of Equinox's own modules take a key, most of them for nothing.
    noisy = holds(eqx.nn.Dropout) or not type(module).__module__.startswith("equinox.")
    keyed = noisy and "key" in inspect.signature(type(module).__call__).parameters

    def run(params, statistics, x, key, training):
        net = eqx.nn.inference_mode(eqx.combine(params, fixed), not training)
        after = eqx.combine(statistics, others)
        each = None if key is None else jax.random.split(key, examples.count(x))
        keys = {"key": each} if keyed else {}
        if state is None:
            return jax.vmap(lambda x, keys: net(x, **keys))(x, keys), None
        axes = {"out_axes": (0, None), "axis_name": axis_name}
        outputs, after = jax.vmap(lambda x, keys: net(x, after, **keys), **axes)(x, keys)
        return outputs, eqx.filter(after, eqx.is_inexact_array)

    return _adapted(_without_momentum(run), params, initial, keyed)


def _adapted(run: Run, params: PyTree, initial: PyTree, keyed: bool) -> Adapted:
    def in_training(params, x, key):
        return run(params, initial, x, key, not keyed or key is not None)

    def f(params, x, key=None):
        return in_training(params, x, key)[0]

    def apply(params, x, key=None):
        outputs, batch = in_training(params, x, key)
        batch = jax.tree.map(lambda own, old: own.astype(old.dtype), batch, initial)
        return outputs, jax.lax.stop_gradient(batch)

    def evaluate(params, statistics, x):
        return run(params, statistics, x, None, False)[0]

    def evaluated(params, x):
        return evaluate(params, initial, x)

    settings = {"keyed": True} if keyed else {}
    if jax.tree.leaves(initial):
        settings["normalization"] = Normalization(initial, apply, evaluate)
    return Adapted(f, params, settings, evaluated)


def _without_momentum(run: Run) -> Run:
    """The same, with the batch's own statistics where `run` gives momentum * old + (1 - momentum) *
    the batch's own, and what it gives where it is not of that form.

    The momentum is the derivative, and the batch's own are had at old = 0, where nothing cancels.
    That is seen beside the actual ones, by a vmap in which all that does not depend on them is
    computed once. Statistics that no layer writes to may be looked at, and stay.
    """

    def own(params, statistics, x, key, training):
        old, tree = jax.tree.flatten(statistics)
        if not (training and old):
            return run(params, statistics, x, key, training)

        def after(*leaves):
            outputs, mixed = run(params, tree.unflatten(leaves), x, key, True)
            return jax.tree.leaves(mixed), outputs

        written = []

        def look(*leaves):
            pairs = zip(after(*leaves)[0], leaves, strict=True)
            written.extend(new is not leaf for new, leaf in pairs)

        jax.eval_shape(look, *old)
        axes = tuple(0 if w else None for w in written)
        both = jax.vmap(after, axes, axis_size=2)
        start = [
            jnp.stack([a, jnp.zeros_like(a)]) if w else a for w, a in zip(written, old, strict=True)
        ]
        direction = [jnp.full_like(a, w) for w, a in zip(written, start, strict=True)]
        found, momentum, outputs = jax.jvp(both, start, direction, has_aux=True)

        def batch(old, found, momentum):
            (new, zero), m = found, momentum[1]
            rounding = 1e2 * jnp.finfo(new.dtype).eps * (jnp.abs(old) + jnp.abs(new))
            mixed = (m < 1) & (jnp.abs(m * old + zero - new) <= rounding)
            return jnp.where(mixed, zero / jnp.where(mixed, 1 - m, 1), new)

        return outputs[0], tree.unflatten(map(batch, old, found, momentum))

    return own


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
