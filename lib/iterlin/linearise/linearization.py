"""First-order expansion of a network in its parameters, and products with its Jacobian.

f(params, x) is any pure function from inputs of N examples, an array or a pytree of arrays, to
outputs (N, ...) of any rank; params is any pytree. The Jacobian J = d f / d params, of shape
(N O, P) with O outputs for each example, is never formed unless `jacobian` is called. Leaves of
params that are not floating point, or not `trainable` (`parameters.partition`), have no part in it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from iterlin.linearise import examples
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.parameters import Trainable, bind_fixed, partition, trainable_mask
from iterlin.linearise.precision import full_precision
from iterlin.linearise.programs import Program, eval_program, jit_cached, trace_program
from iterlin.linearise.validation import check_bools, describe, is_traced, prefix_errors

Network = Callable[[PyTree, Any], Array]

COUPLED = (
    "f couples its examples: its outputs for one of them depend on the others, so rows of the "
    "Jacobian cannot be taken example by example. Give f in its evaluation mode; or "
    "independent=False, where the function that was called has that choice"
)
FEW = 5  # examples that are compared


def tree_sub(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.subtract, a, b)


def tree_add(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, a, b)


def linearize(f: Network, params: PyTree, *, trainable: Trainable = None) -> Network:
    """The proxy model f_lin(theta, x) = f(params, x) + J(x) (theta - params), eq. (1) of the paper.

    Returns a pure function of the same signature as f; one Jacobian-vector product a call, and
    nothing is stored. It is exact where f is affine in its parameters. Of theta, those that are not
    trained are not looked at: they stay those of params. Products are computed in the precision
    that f's are where it is called, so that proxy and network are equal at params.

    Raises ValueError as `parameters.partition`.

    >>> f_lin = il.linearize(lambda p, x: p**2 * x, jnp.array(3.0))
    >>> print(f_lin(jnp.array(4.0), jnp.array([1.0, 10.0])))  # (9 + 6) x
    [ 15. 150.]
    """
    mask = trainable_mask(params, trainable)
    anchor, fixed = partition(params, mask)
    of_moving = bind_fixed(f, fixed)

    def f_lin(theta: PyTree, x: Any) -> Array:
        displacement = tree_sub(partition(theta, mask)[0], anchor)
        outputs, tangents = jax.jvp(lambda p: of_moving(p, x), (anchor,), (displacement,))
        return outputs + tangents

    return f_lin


class JacobianProducts(NamedTuple):
    """Outputs f(params, x) of shape (N, ...) and the two products with J at that point.

    jvp maps a pytree like the trained part of params (`parameters.partition`) to J v, of the shape
    of the outputs; vjp maps such an array to J^T u, a pytree like that part.
    """

    outputs: Array
    jvp: Callable[[PyTree], Array]
    vjp: Callable[[Array], PyTree]


@with_auto_axes
@full_precision()
def jacobian_products(
    f: Network, params: PyTree, x: Any, *, trainable: Trainable = None
) -> JacobianProducts:
    """J v and J^T u at (params, x), both from one primal pass, whose activations they share.

    Nothing is divided by N, and f may couple its examples. Outputs and products are computed in
    full precision (`linearise.precision`). Raises ValueError as `parameters.partition`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> outputs, jvp, vjp = il.jacobian_products(lambda p, x: x @ p, jnp.zeros(2), x)
    >>> print(jvp(jnp.ones(2)), vjp(jnp.ones(2)))
    [3. 7.] [4. 6.]
    """
    moving, fixed = partition(params, trainable)
    of_moving = bind_fixed(f, fixed)
    outputs, jvp = jax.linearize(lambda p: of_moving(p, x), moving)
    transpose = jax.linear_transpose(jvp, moving)
    # The reverse rule of a custom_vjp is traced where J^T u is asked for.
    vjp = full_precision()(lambda u: transpose(u)[0])
    return JacobianProducts(outputs, with_auto_axes(jvp), with_auto_axes(vjp))


@with_auto_axes
@full_precision()
def jacobian(
    f: Network,
    params: PyTree,
    x: Any,
    *,
    independent: bool = True,
    trainable: Trainable = None,
) -> Float[Array, "NO P"]:
    """The dense Jacobian, rows ordered example by example and then as the outputs lie in memory,
    columns as `ravel_pytree` orders the trained part of params.

    Takes N O P numbers of memory. With `independent` examples each row is taken from its own
    example, which costs N O backward passes of one example rather than of N; pass False for an f
    that couples its examples (batch normalisation in training mode, or an f that ignores x).

    Raises ValueError if `independent` is claimed of an f that couples its examples, for an f that
    does not return one array (N, ...) of floating point numbers, inputs without an example, and as
    `parameters.partition`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> params = {"bias": jnp.zeros(()), "weight": jnp.zeros(2)}
    >>> print(il.jacobian(lambda p, x: x @ p["weight"] + p["bias"], params, x))
    [[1. 1. 2.]
     [1. 3. 4.]]
    """
    check_bools(independent=independent)
    moving, fixed = partition(params, trainable)
    of_moving = bind_fixed(f, fixed)
    if independent:
        require_independent(of_moving, moving, x)
        rows = jacobian_rows(of_moving, moving, x)
        return rows.reshape(-1, rows.shape[-1])
    flat, unravel = ravel_pytree(moving)
    outputs = output_shape(of_moving, moving, x)
    differentiate = jax.jacrev if outputs.size <= flat.size else jax.jacfwd
    return differentiate(lambda p: of_moving(unravel(p), x).reshape(-1))(flat)


def jacobian_rows(
    f: Network, params: PyTree, x: Any, outputs: slice = slice(None)
) -> Float[Array, "N o P"]:
    """Rows of J for the examples x and a slice of the outputs, each from its own example."""
    flat, unravel = ravel_pytree(params)

    def rows_of(example):
        value, vjp = jax.vjp(
            lambda p: f(unravel(p), examples.add_batch_axis(example)).reshape(-1), flat
        )
        basis = jnp.eye(value.size, dtype=value.dtype)[outputs]
        return jax.vmap(lambda u: vjp(u)[0])(basis)

    return jax.vmap(rows_of)(x)


def output_shape(f: Network, params: PyTree, x: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of f(params, x); ValueError unless it is one array that leads with N, of at
    least one floating point number for each example."""
    count = examples.num_examples(x)
    with prefix_errors(f"f(params, x) of inputs {describe(x)}"):
        found = jax.eval_shape(f, params, x)
    if not isinstance(found, jax.ShapeDtypeStruct):
        raise ValueError(f"f must return one array (N, ...), got {jax.tree.structure(found)}")
    if found.ndim == 0 or found.shape[0] != count:
        raise ValueError(
            f"f must return an array that leads with the {count} examples, got shape {found.shape}"
        )
    if found.size == 0:
        raise ValueError(f"f must return numbers for each example, got shape {found.shape}")
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(f"f must return floating point numbers, got {found.dtype}")
    return found


def require_independent(f: Network, params: PyTree, x: Any) -> None:
    """Raise ValueError if f couples its examples: in its outputs or in their gradient.

    Up to `FEW` examples are compared as a batch and each alone, at params and near them: a coupling
    behind a weight that is zero shows elsewhere, or in the gradient. Only shapes are checked where
    JAX traces x, params or what f closes over.
    """
    batch, single = (
        output_shape(f, params, x),
        jax.eval_shape(f, params, examples.batch_shapes(x, 1)),
    )
    if single.shape != (1, *batch.shape[1:]):
        raise ValueError(COUPLED)
    number = min(FEW, examples.num_examples(x))
    if number == 1 or any(map(is_traced, jax.tree.leaves((x, params)))):
        return
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(number, *batch.shape[1:])).astype(batch.dtype)

    def moved(leaf):
        """Each number by about a tenth of itself, so that it keeps its sign, and those at zero."""
        leaf = np.asarray(leaf)
        size = np.where(leaf == 0, 0.5, 0.1 * np.abs(leaf))
        return leaf + (rng.normal(size=leaf.shape) * size).astype(leaf.dtype)

    programs = [trace_program(f, params, examples.batch_shapes(x, size)) for size in (number, 1)]
    found = []
    try:
        with jax.ensure_compile_time_eval():
            compare, few = (
                jit_cached(_together_and_alone, *programs),
                examples.take_slice(x, 0, number),
            )
            for at in (params, jax.tree.map(moved, params)):
                found.append([_difference(*pair) for pair in compare(at, few, weights)])
    except Exception as error:
        if "Tracer" in repr(error):  # f closes over what JAX traces
            return
        raise
    # Rounding differs with the batch. Where a unit is at its kink, so does its derivative.
    types = {t.dtype for t in programs[0].types if jnp.issubdtype(t.dtype, jnp.floating)}
    rounding = min(1e3 * max(float(jnp.finfo(dtype).eps) for dtype in types), 0.1)
    for kind, tolerance in enumerate((rounding, math.sqrt(rounding))):
        differences, scales = zip(*(each[kind] for each in found), strict=True)
        if max(differences) > tolerance * max(scales):
            raise ValueError(COUPLED)


def _together_and_alone(together: Program, alone: Program, params, x, weights):
    """Pairs (together, alone) of the outputs and of the gradient of their weighted sum."""

    def in_batch(params):
        return eval_program(together, jax.tree.leaves((params, x)), {})[0]

    def each(params):
        def of_one(example):
            return eval_program(
                alone, jax.tree.leaves((params, examples.add_batch_axis(example))), {}
            )[0][0]

        return jax.lax.map(of_one, x)

    (outputs, pull), (singles, pull_each) = (jax.vjp(g, params) for g in (in_batch, each))
    return (outputs, singles), (pull(weights), pull_each(weights))


def _difference(together: PyTree, alone: PyTree) -> tuple[float, float]:
    """The largest difference of two numbers, and the largest number, where `together` is finite.

    A network that is NaN is no error, but one that is so for one example alone is infinitely far
    from the batch, such as one that divides by the batch's variance.
    """
    difference, scale = 0.0, 1e-30
    for pair in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        a, b = (np.asarray(leaf, float)[np.isfinite(pair[0])] for leaf in pair)
        scale = max(scale, np.max(np.abs(a), initial=0))
        difference = max(difference, np.max(np.nan_to_num(np.abs(a - b), nan=np.inf), initial=0))
    return difference, scale
