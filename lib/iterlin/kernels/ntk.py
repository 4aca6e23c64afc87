"""The empirical neural tangent kernel J J^T (eq. 5) within a memory bound; measures of its change.

Examples must not be coupled by f (no batch normalisation in training mode): each row of J is
taken from its own example. The network is traced at each call, so that what it closes over is what
it is then, and compiled if no equal program was before (`programs.jit_cached`). Nothing of it is
kept alive.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.blocks import assemble_kernel
from iterlin.kernels.cached import CachedKernel, CacheSizes, cache_factors, cache_sizes
from iterlin.kernels.factors import PAIRWISE, TracedNetwork, trace_network
from iterlin.linearise import examples, parameters
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.linearization import Network, jacobian_products, require_independent
from iterlin.linearise.parameters import Trainable
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import check_bools, check_positive_integer, check_same_shape

# Bytes of rows of J alive while a matrix is formed that is kept.
WORKSPACE = 2**28


@with_auto_axes
@full_precision()
def empirical_ntk(
    f: Network,
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    *,
    trace: bool = False,
    diagonal: bool = False,
    trainable: Trainable = None,
    memory_limit: int = 2**28,
) -> Float[Array, "..."]:
    """Theta(x1, x2) = J(x1) J(x2)^T, eq. (5); nothing is divided by N or by the outputs.

    Inputs are arrays, or pytrees of arrays, that lead with N; outputs any shape ``(N, *out)``.
    Returns ``(N1, N2, *out, *out)``; with `diagonal` each output with itself alone,
    ``(N1, N2, *out)``; with `trace` the sum of these over outputs, (N1, N2). x2=None means x1, and
    then each pair of blocks is computed once. J is with respect to the parameters that are
    `trainable` (a predicate on paths such as "layers/0/weight", or a mask; None: all that are
    floating point).

    f may be any function, but its dense and convolutional layers and its embeddings never have
    their rows of J formed where less does: their inputs and cotangents, or indices and cotangents
    (see `kernels.layers`, `kernels.lookups`). A second call compiles nothing if the shapes are the
    same and f is, or another function of the same operations, unless f has derivative rules or
    callbacks of its own (custom_jvp, custom_vjp), which cannot be compared.

    `memory_limit` bounds, in bytes, the inputs, cotangents and rows of J kept at a time; the result
    and the activations of a few examples come on top. Not for f that couples examples.

    Raises ValueError if trace or diagonal is no bool, or both are asked for; for a bound that is
    not a positive integer or does not hold one output of two examples; examples of x2 that are not
    shaped as those of x1, or of another kind (integers beside floats); an f that couples its
    examples; and as `jacobian`.

    >>> net, x = il.mlp((2, 16, 3)), jnp.ones((5, 2))
    >>> params = net.init(jax.random.key(0))
    >>> il.empirical_ntk(net.apply, params, x).shape
    (5, 5, 3, 3)
    >>> last = lambda path: path.startswith("1/")  # of the paths "0/bias", "0/weight", ...
    >>> il.empirical_ntk(net.apply, params, x, x[:2], trace=True, trainable=last).shape
    (5, 2)
    """
    check_bools(trace=trace, diagonal=diagonal)
    if trace and diagonal:
        raise ValueError("trace and diagonal are two forms of the kernel: ask for one of them")
    form = "trace" if trace else "diagonal" if diagonal else "full"
    kernel, out = _kernel(f, params, x1, x2, trainable, form, memory_limit)
    shapes = {"full": (*out, *out), "diagonal": out, "trace": ()}
    return kernel.reshape(*kernel.shape[:2], *shapes[form])


@with_auto_axes
@full_precision()
def ntk_matrix(
    f: Network,
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    *,
    trainable: Trainable = None,
    memory_limit: int = 2**28,
) -> Float[Array, "N1O N2O"]:
    """`kernel_matrix` of the full `empirical_ntk`, at once: without its copy in another order.

    Rows and columns are ordered as those of the Jacobian; of outputs ``(N, *out)``, O = prod(out).
    Not divided by N or O. Raises ValueError as `empirical_ntk`.

    >>> net = il.mlp((2, 16, 3))
    >>> il.ntk_matrix(net.apply, net.init(jax.random.key(0)), jnp.ones((5, 2))).shape
    (15, 15)
    """
    kernel, _ = _kernel(f, params, x1, x2, trainable, "matrix", memory_limit)
    return kernel.reshape(kernel.shape[0] * kernel.shape[1], -1)


@with_auto_axes
@full_precision()
def cached_ntk(
    f: Network,
    params: PyTree,
    x: PyTree,
    *,
    trainable: Trainable = None,
    memory_limit: int = 2**31,
) -> CachedKernel:
    """J J^T of N examples, kept for many products with it: ``cached_ntk(...).product(v)``.

    v and its product are arrays like the outputs ``(N, *out)``; nothing is divided by N. Kept is
    what a product reads less of: the matrix, (N O)^2 numbers, or the inputs and cotangents of f's
    layers, whose number is proportional to N and of which no pairs are formed. Either is exact. f
    must not couple its examples; `trainable` as of `empirical_ntk`. Memory is that of what is kept,
    at most memory_limit bytes, and of a few examples' activations.

    Raises ValueError if neither fits into the limit, and as `empirical_ntk`.

    >>> net, x = il.mlp((2, 16, 3)), jnp.ones((5, 2))
    >>> kernel = il.cached_ntk(net.apply, net.init(jax.random.key(0)), x)
    >>> kernel.product(jnp.ones((5, 3))).shape
    (5, 3)
    """
    network, number, found = _kept(f, params, x, trainable, memory_limit)
    if found.form is None:
        size = network.result.dtype.itemsize
        raise ValueError(
            f"J J^T of {examples.num_examples(x)} examples takes {size * found.matrix} bytes as a "
            f"matrix and {size * found.factors} as factors: with what it takes to make it, more "
            f"than memory_limit={memory_limit}"
        )
    if found.form == "factors":
        return CachedKernel(factors=cache_factors(network, x, number))
    workspace = min(memory_limit, WORKSPACE)
    matrix = ntk_matrix(f, params, x, trainable=trainable, memory_limit=workspace)
    return CachedKernel(matrix=matrix)


@with_auto_axes
def cached_ntk_sizes(
    f: Network,
    params: PyTree,
    x: PyTree,
    *,
    trainable: Trainable = None,
    memory_limit: int = 2**31,
) -> CacheSizes:
    """What `cached_ntk` would keep, without computing it. Raises ValueError as `empirical_ntk`."""
    return _kept(f, params, x, trainable, memory_limit)[2]


def _kept(f, params, x, trainable, memory_limit) -> tuple[TracedNetwork, int, CacheSizes]:
    """The network traced for one example, its number of outputs, what keeping J J^T takes."""
    check_positive_integer("memory_limit", memory_limit)
    examples.num_examples(x, "x")
    moving, fixed = parameters.partition(params, trainable)
    network = _independent(f, moving, fixed, x)
    number = math.prod(network.result.shape[1:])
    found = cache_sizes(network, x, number, memory_limit)
    if found.form == "matrix" and not _can_be_made(network, x, number, memory_limit):
        held = network.result.dtype.itemsize * found.factors
        found = found._replace(form="factors" if held <= memory_limit else None)
    return network, number, found


def _can_be_made(network, x, outputs: int, memory_limit: int) -> bool:
    """Whether the factors that a kernel's matrix is made of fit into its workspace."""
    settings = {"form": "matrix", "count": examples.num_examples(x), "total": outputs}
    try:
        _largest_part(network, x, outputs, min(memory_limit, WORKSPACE), settings)
    except ValueError:
        return False
    return True


def _kernel(f, params, x1, x2, trainable, form: str, limit: int) -> tuple[Array, tuple[int, ...]]:
    """In parts of the outputs, if the factors of all of them do not fit into the bound at once.

    Returns the kernel and the shape of an example's outputs, which are counted in one axis.
    """
    check_positive_integer("memory_limit", limit)
    count = examples.num_examples(x1, "x1")
    other = count if x2 is None else examples.num_examples(x2, "x2")
    x1, x2 = (x1, None) if x2 is None else _alike(x1, x2)
    moving, fixed = parameters.partition(params, trainable)
    network = _independent(f, moving, fixed, x1 if count >= other else x2)
    out = network.result.shape[1:]
    number = math.prod(out)
    settings = {"form": form, "count": other, "total": number}
    part, size = _largest_part(network, x1, number, limit, settings)
    whole = count + (0 if x2 is None else other)
    group = whole if size * whole <= limit else max(1, limit // (2 * size))
    dtype = jnp.result_type(*network.moving)

    def factors_of(x, outputs):
        return network.factors(x, outputs, **settings)

    def between(first, second):
        same = x2 is None and first is second
        against = None if same else (x1 if x2 is None else x2, second)
        return assemble_kernel(factors_of, (x1, first), against, group, form, dtype)

    parts = [np.arange(start, min(start + part, number)) for start in range(0, number, part)]
    if form in PAIRWISE:
        axes = (2, 3) if form == "full" else (1, 3)
        rows = [jnp.concatenate([between(a, b) for b in parts], axes[1]) for a in parts]
        return jnp.concatenate(rows, axes[0]), out
    found = [between(outputs, outputs) for outputs in parts]
    return sum(found[1:], found[0]) if form == "trace" else jnp.concatenate(found, 2), out


def _alike(x1: PyTree, x2: PyTree) -> tuple[PyTree, PyTree]:
    """Both in the wider of their types, or ValueError."""
    shapes1, shapes2 = ([np.shape(leaf)[1:] for leaf in jax.tree.leaves(x)] for x in (x1, x2))
    trees = [jax.tree.structure(x) for x in (x1, x2)]
    if trees[0] != trees[1]:
        raise ValueError(f"x2 must be structured as x1, {trees[0]}, but is {trees[1]}")
    if shapes1 != shapes2:
        raise ValueError(
            f"examples of x2 must be shaped as those of x1, {shapes1}, but are {shapes2}"
        )

    def wider(*leaves):
        first, second = types = [jnp.result_type(leaf) for leaf in leaves]
        kinds = (all(jnp.issubdtype(t, k) for t in types) for k in (jnp.floating, jnp.integer))
        if first == second:
            return first
        if not any(kinds):
            raise ValueError(f"x1 and x2 must be of one kind, got {first} and {second}")
        return jnp.result_type(*types)

    def cast(leaf, dtype):
        return leaf if jnp.result_type(leaf) == dtype else leaf.astype(dtype)

    types = jax.tree.map(wider, x1, x2)
    return jax.tree.map(cast, x1, types), jax.tree.map(cast, x2, types)


def _independent(f: Network, moving: PyTree, fixed: PyTree, x: PyTree) -> TracedNetwork:
    """The network traced for a batch of one, if it does not couple its examples."""
    require_independent(parameters.bind_fixed(f, fixed), moving, x)
    return trace_network(f, moving, fixed, examples.batch_shapes(x, 1))


def _largest_part(network, x, outputs: int, memory_limit: int, settings) -> tuple[int, int]:
    """How many outputs at a time, and the bytes that one example's factors then take."""
    one = examples.batch_shapes(x, 1)

    def size(part):
        shapes = network.shapes(one, np.arange(part), **settings)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))

    part = outputs
    while (taken := 2 * size(part)) > memory_limit and part > 1:
        part = (part + 1) // 2
    if taken > memory_limit:
        raise ValueError(
            f"memory_limit of {memory_limit} bytes is below the {taken} that one output of two "
            "examples takes"
        )
    return part, max(1, taken // 2)


def ntk_product(
    f: Network, params: PyTree, x: PyTree, *, trainable: Trainable = None
) -> Callable[[Array], Array]:
    """The map v -> J J^T v on arrays like the outputs ``(N, *out)``, without forming J.

    One VJP and one JVP a product, with respect to the `trainable` parameters (as of
    `empirical_ntk`); not divided by N. f may couple its examples. Raises ValueError as
    `jacobian_products`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> product = il.ntk_product(lambda p, x: x @ p, jnp.zeros(2), x)
    >>> print(product(jnp.ones(2)))
    [16. 36.]
    """
    products = jacobian_products(f, params, x, trainable=trainable)
    return lambda v: products.jvp(products.vjp(v))


def kernel_alignment(k1: Float[Array, "..."], k2: Float[Array, "..."]) -> Float[Array, ""]:
    """<K1, K2> / (||K1|| ||K2||) in the Frobenius inner product: 1 for proportional kernels.

    Raises ValueError for kernels of different shapes.

    >>> print(f"{il.kernel_alignment(jnp.eye(2), jnp.ones((2, 2))):.3f}")
    0.707
    """
    check_same_shape(k1=k1, k2=k2)
    return jnp.sum(k1 * k2) / (jnp.linalg.norm(k1.ravel()) * jnp.linalg.norm(k2.ravel()))


def kernel_drift(k0: Float[Array, "..."], k1: Float[Array, "..."]) -> Float[Array, ""]:
    """||K1 - K0|| / ||K0|| in the Frobenius norm: the relative change of the kernel.

    Raises ValueError for kernels of different shapes.

    >>> print(f"{il.kernel_drift(jnp.eye(2), 1.1 * jnp.eye(2)):.3f}")
    0.100
    """
    check_same_shape(k0=k0, k1=k1)
    return jnp.linalg.norm((k1 - k0).ravel()) / jnp.linalg.norm(k0.ravel())


def kernel_matrix(kernel: Float[Array, "N1 N2 O O"]) -> Float[Array, "N1O N2O"]:
    """The (N1 O, N2 O) matrix form of a full kernel, rows ordered as those of the Jacobian."""
    n1, n2, o1, o2 = kernel.shape
    return kernel.transpose(0, 2, 1, 3).reshape(n1 * o1, n2 * o2)
