"""The empirical neural tangent kernel J J^T (eq. 5) within a memory limit.

A row of J is taken from one example, so f must treat its examples independently (no batch
normalisation in training mode). A call traces the network anew, because the values that it closes
over may have changed, and reuses the compiled function of an equal program
(`compiled.jit_cached`).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.blocks import assemble_kernel
from iterlin.kernels.cached import CachedKernel, CachePlan
from iterlin.kernels.factors import PAIRWISE, PRODUCT, TracedNetwork
from iterlin.linearise import examples, parameters
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.linearization import (
    Network,
    check_finite_examples,
    jacobian_products,
    require_independent,
)
from iterlin.linearise.parameters import Trainable
from iterlin.linearise.precision import widened
from iterlin.linearise.programs import trace_program
from iterlin.linearise.validation import (
    check_bools,
    check_positive_integer,
    check_same_tree,
)

# Bytes of rows of J that are alive while `cached_ntk` forms a matrix.
WORKSPACE = 2**28


@on_any_device
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
    """Compute the empirical neural tangent kernel Theta(x1, x2) = J(x1) J(x2)^T, eq. (5).

    Nothing is divided by N or by the number of outputs. f may be any function; for dense and
    convolutional layers and embeddings the kernel is computed from inputs and cotangents of the
    layer (`kernels.layers`, `kernels.lookups`) wherever that is cheaper than rows of J.

    The kernel of some of the outputs is that of a function that returns them, as
    ``lambda params, x: f(params, x)[:, -1, :10]``; of the others no derivative is computed. For the
    trace over a great many outputs, average the kernels of
    ``lambda params, x: jnp.tensordot(f(params, x), v, v.ndim)`` over random signs v shaped as the
    outputs of an example.

    A second call on the same shapes compiles nothing if f has the same operations, unless it has
    derivative rules or callbacks (custom_jvp, custom_vjp), which cannot be compared. It still
    traces f and checks that f treats its examples independently. Under ``jax.jit`` it does neither,
    which saves most of the time of a small kernel.

    Args:
        f: The network, f(params, x), which treats its examples independently.
        params: The parameters at which J is taken.
        x1: Inputs of N1 examples, an array or a pytree of arrays.
        x2: Inputs of N2 examples; None means x1, and each pair of blocks is then computed once.
        trace: Return the sum of the diagonal entries over outputs.
        diagonal: Return only the entries between an output and itself.
        trainable: Which parameters J is with respect to (`parameters.partition`): a predicate on
            paths such as "layers/0/weight", a mask, or None for all floating point leaves.
        memory_limit: The limit, in bytes, of the inputs, cotangents and rows of J that are kept at
            a time. The result and the activations of a few examples need memory beside it.

    Returns:
        The kernel ``(N1, N2, *out, *out)`` for outputs of shape ``(N, *out)``; with `diagonal`
        ``(N1, N2, *out)``; with `trace` (N1, N2).

    Raises:
        ValueError: If trace and diagonal are not bools or are both True; memory_limit is not a
            positive integer or does not hold one output of two examples; examples of x2 differ
            from those of x1 in shape or kind (integers, floats); f couples its examples; NaN or inf
            in an example reaches its outputs; and as `jacobian`.

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


@on_any_device
def ntk_matrix(
    f: Network,
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    *,
    trainable: Trainable = None,
    memory_limit: int = 2**28,
) -> Float[Array, "N1O N2O"]:
    """Compute the empirical neural tangent kernel as a matrix, with rows ordered as those of J.

    The result equals `kernel_matrix` of the full `empirical_ntk` without the transposed copy. It is
    not divided by N or by the number of outputs.

    Args:
        f, params, x1, x2, trainable, memory_limit: As of `empirical_ntk`.

    Returns:
        The matrix (N1 O, N2 O), with O the number of outputs of an example.

    Raises:
        ValueError: As `empirical_ntk`.

    >>> net = il.mlp((2, 16, 3))
    >>> il.ntk_matrix(net.apply, net.init(jax.random.key(0)), jnp.ones((5, 2))).shape
    (15, 15)
    """
    kernel, _ = _kernel(f, params, x1, x2, trainable, "matrix", memory_limit)
    return kernel.reshape(kernel.shape[0] * kernel.shape[1], -1)


@on_any_device
def cached_ntk(
    f: Network,
    params: PyTree,
    x: PyTree,
    *,
    trainable: Trainable = None,
    memory_limit: int = 2**31,
) -> CachedKernel:
    """Cache J J^T of N examples for many products with it: ``cached_ntk(...).product(v)``.

    The cache holds either the matrix, which has (N O)^2 entries for O outputs, or the inputs and
    cotangents of the layers of f, whose size is proportional to N. The form with fewer numbers to
    read for a product is chosen. Both are exact, and neither is divided by N.

    Args:
        f: The network, f(params, x), which treats its examples independently.
        params: The parameters at which J is taken.
        x: Inputs of N examples.
        trainable: As of `empirical_ntk`.
        memory_limit: The largest size of the cache, in bytes. The activations of a few examples
            need memory beside it.

    Returns:
        The cached kernel. Its method `product` maps v, an array shaped as the outputs, to J J^T v.

    Raises:
        ValueError: If neither form fits into memory_limit, and as `empirical_ntk`.

    >>> net, x = il.mlp((2, 16, 3)), jnp.ones((5, 2))
    >>> kernel = il.cached_ntk(net.apply, net.init(jax.random.key(0)), x)
    >>> kernel.product(jnp.ones((5, 3))).shape
    (5, 3)
    """
    trained, fixed = parameters.partition(params, trainable)
    return KernelMaker(parameters.bind_fixed(f, fixed), x, memory_limit=memory_limit)(trained)


class KernelMaker:
    """Make `cached_ntk` at one set of parameters after the other.

    The network is traced and checked at the first parameters of each shape, not at later ones: the
    values that f closes over must stay as they are.

    Args:
        f, x, memory_limit: As of `cached_ntk`.
    """

    def __init__(self, f: Network, x: PyTree, *, memory_limit: int = 2**31):
        self._f, self._x, self._limit = f, x, memory_limit
        self._plans: dict[tuple, CachePlan] = {}

    @on_any_device
    def __call__(self, params: PyTree) -> CachedKernel:
        """Return J J^T at the parameters. Raises ValueError as `cached_ntk`."""
        plan = self._plan(params)
        network = plan.network._replace(leaves=jax.tree.leaves(params))
        if plan.form == "factors":
            settings = {"form": PRODUCT, "count": examples.num_examples(self._x)}
            outputs = np.arange(network.num_outputs)
            return CachedKernel(factors=network.factors(self._x, outputs, **settings))
        kernel = _assemble(network, self._x, None, "matrix", min(self._limit, WORKSPACE))
        return CachedKernel(matrix=kernel.reshape(kernel.shape[0] * kernel.shape[1], -1))

    def shapes(self, params: PyTree) -> CachedKernel:
        """Return J J^T at the parameters, with shapes in the place of arrays. Raises as a call."""
        self._plan(params)  # Its checks take values.
        return jax.eval_shape(self, params)

    def _plan(self, params: PyTree) -> CachePlan:
        """Return the plan for parameters of these shapes; check it at the first call."""
        leaves, structure = jax.tree.flatten(params)
        kind = structure, *map(jax.typeof, leaves)
        if kind in self._plans:
            return self._plans[kind]
        f, x = self._f, self._x
        plan = plan_cache(f, params, x, self._limit)
        if plan.form is None:
            raise ValueError(
                f"J J^T of {examples.num_examples(x)} examples takes {plan.matrix} bytes as a "
                f"matrix and {plan.factors} as factors: with what it takes to make it, more than "
                f"memory_limit={self._limit}"
            )
        check_finite_examples(f, params, x)
        self._plans[kind] = plan
        return plan


def plan_cache(f: Network, params: PyTree, x: PyTree, memory_limit: int) -> CachePlan:
    """Choose the form of the cache of which a product reads less, from shapes alone."""
    check_positive_integer("memory_limit", memory_limit)
    count = examples.num_examples(x, "x")
    network = trace_network(f, params, x)
    outputs = network.num_outputs
    matrix = network.dtype.itemsize * (count * outputs) ** 2
    factors = count * network.factor_bytes(x, outputs, form=PRODUCT, count=count)
    form = "factors" if factors <= memory_limit else None
    if matrix <= memory_limit and (form is None or matrix < 2 * factors):
        # The matrix is made from the factors of two examples at least.
        least = 2 * network.factor_bytes(x, 1, form="matrix", count=count)
        form = "matrix" if least <= min(memory_limit, WORKSPACE) else form
    return CachePlan(network, matrix, factors, form)


def trace_network(f: Network, params: PyTree, x: PyTree) -> TracedNetwork:
    """Return the network traced for one example. Raises ValueError if f couples examples of x."""
    program = require_independent(f, params, x)
    if program is None:  # of one example, or of traced values, nothing was compared
        program = trace_program(f, params, examples.batch_shapes(x, 1))
    return TracedNetwork(program, jax.tree.leaves(params))


def _kernel(f, params, x1, x2, trainable, form: str, limit: int) -> tuple[Array, tuple[int, ...]]:
    """Compute the kernel in one of its forms, in chunks of outputs if the limit requires it.

    Returns the kernel, whose outputs are flattened to one axis, and the shape of an example's
    outputs.
    """
    check_positive_integer("memory_limit", limit)
    count = examples.num_examples(x1, "x1")
    other = count if x2 is None else examples.num_examples(x2, "x2")
    x1, x2 = (x1, None) if x2 is None else _promote(x1, x2)
    trained, fixed = parameters.partition(params, trainable)
    network = parameters.bind_fixed(f, fixed)
    for x in (x1,) if x2 is None else (x1, x2):
        check_finite_examples(network, trained, x)
    # The fixed parameters are constants of the program.
    traced = trace_network(network, trained, x1 if count >= other else x2)
    return _assemble(traced, x1, x2, form, limit), traced.out


def _assemble(network: TracedNetwork, x1, x2, form: str, limit: int) -> Array:
    """Compute the kernel of a traced network, with its outputs flattened to one axis."""
    count = examples.num_examples(x1)
    other = count if x2 is None else examples.num_examples(x2)
    number, settings = network.num_outputs, {"form": form, "count": other}
    chunk, size = _largest_chunk(network, x1, limit, **settings)
    total = count + (0 if x2 is None else other)
    group = total if size * total <= limit else max(1, limit // (2 * size))

    def factors_of(x, outputs):
        return network.factors(x, outputs, **settings)

    def between(first, second):
        same = x2 is None and first is second
        against = None if same else (x1 if x2 is None else x2, second)
        return assemble_kernel(factors_of, (x1, first), against, group, form, network.dtype)

    chunks = [np.arange(start, min(start + chunk, number)) for start in range(0, number, chunk)]
    if form in PAIRWISE:
        axes = (2, 3) if form == "full" else (1, 3)
        rows = [jnp.concatenate([between(a, b) for b in chunks], axes[1]) for a in chunks]
        return jnp.concatenate(rows, axes[0])
    found = [between(outputs, outputs) for outputs in chunks]
    return sum(found[1:], found[0]) if form == "trace" else jnp.concatenate(found, 2)


def _promote(x1: PyTree, x2: PyTree) -> tuple[PyTree, PyTree]:
    """Cast both inputs to their common dtype; raise ValueError if their examples differ."""
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


def _largest_chunk(network: TracedNetwork, x, memory_limit: int, **settings) -> tuple[int, int]:
    """Return how many outputs to treat at a time, and the bytes of an example's factors of them."""
    chunk = network.num_outputs
    while (needed := 2 * network.factor_bytes(x, chunk, **settings)) > memory_limit and chunk > 1:
        chunk = (chunk + 1) // 2
    if needed > memory_limit:
        raise ValueError(
            f"memory_limit of {memory_limit} bytes is below the {needed} that one output of two "
            "examples takes"
        )
    return chunk, max(1, needed // 2)


def ntk_product(
    f: Network, params: PyTree, x: PyTree, *, trainable: Trainable = None
) -> Callable[[Array], Array]:
    """Return the product with J J^T as a function, without forming J.

    A product costs one VJP and one JVP. It is not divided by N. f may couple its examples.

    Args:
        f: The network, f(params, x).
        params: The parameters at which J is taken.
        x: Inputs of N examples.
        trainable: As of `empirical_ntk`.

    Returns:
        The map v -> J J^T v on arrays shaped as the outputs ``(N, *out)``. It raises ValueError for
            a v of another shape.

    Raises:
        ValueError: As `jacobian_products`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> product = il.ntk_product(lambda p, x: x @ p, jnp.zeros(2), x)
    >>> print(product(jnp.ones(2)))
    [16. 36.]
    """
    products = jacobian_products(f, params, x, trainable=trainable)

    def product(v):
        check_same_tree("v", v, products.outputs)
        v = jnp.asarray(v, products.outputs.dtype)
        return products.jvp(products.vjp(v))

    return product


def kernel_alignment(k1: Float[Array, "..."], k2: Float[Array, "..."]) -> Float[Array, ""]:
    """Compute the alignment of two kernels, <K1, K2> / (||K1|| ||K2||), in the Frobenius product.

    Args:
        k1: A kernel of any shape.
        k2: A kernel of the same shape.

    Returns:
        A number between -1 and 1; 1 for proportional kernels.

    Raises:
        ValueError: If the shapes differ.

    >>> print(f"{il.kernel_alignment(jnp.eye(2), jnp.ones((2, 2))):.3f}")
    0.707
    """
    check_same_tree("k2", k2, k1)
    k1, k2 = (widened(k) * 1.0 for k in (k1, k2))  # products of integers may overflow
    return jnp.sum(k1 * k2) / (jnp.linalg.norm(k1.ravel()) * jnp.linalg.norm(k2.ravel()))


def kernel_drift(k0: Float[Array, "..."], k1: Float[Array, "..."]) -> Float[Array, ""]:
    """Compute the relative change of a kernel, ||K1 - K0|| / ||K0||, in the Frobenius norm.

    Args:
        k0: The kernel before, of any shape.
        k1: The kernel after, of the same shape.

    Returns:
        A non-negative number.

    Raises:
        ValueError: If the shapes differ.

    >>> print(f"{il.kernel_drift(jnp.eye(2), 1.1 * jnp.eye(2)):.3f}")
    0.100
    """
    check_same_tree("k1", k1, k0)
    k0, k1 = (widened(k) * 1.0 for k in (k0, k1))  # products of integers may overflow
    return jnp.linalg.norm((k1 - k0).ravel()) / jnp.linalg.norm(k0.ravel())


def kernel_matrix(kernel: Float[Array, "N1 N2 O O"]) -> Float[Array, "N1O N2O"]:
    """Reshape a full kernel (N1, N2, O, O) to a matrix (N1 O, N2 O), rows ordered as those of J."""
    n1, n2, o1, o2 = kernel.shape
    return kernel.transpose(0, 2, 1, 3).reshape(n1 * o1, n2 * o2)
