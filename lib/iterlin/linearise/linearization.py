"""First-order expansion of a network in its parameters, and products with its Jacobian.

A network is a pure function f(params, x). The inputs x of N examples are an array, or a pytree of
arrays, that leads with N; the outputs are one array (N, ...). The Jacobian J = d f / d params has
shape (N O, P), for O outputs of an example and P trained parameters. Only `jacobian` forms it.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from iterlin.linearise import examples
from iterlin.linearise.compiled import jit_cached
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.parameters import Trainable, bind_fixed, partition, trainable_mask
from iterlin.linearise.programs import Program, eval_program, trace_program
from iterlin.linearise.validation import (
    check_bools,
    check_same_tree,
    describe,
    inside_trace,
    instead_of_module,
    is_traced,
    is_typed_key,
    prefix_errors,
)

Network = Callable[[PyTree, Any], Array]

COUPLED = (
    "f couples its examples: its outputs for one of them depend on the others, so rows of the "
    "Jacobian cannot be taken example by example. Give f in its evaluation mode; or "
    "independent=False, where the function that was called has that choice"
)
COMPARED = 5  # examples on which `require_independent` compares f
# The program that compares them runs twice: optimised, it would take twice as long to compile.
UNOPTIMIZED = {"xla_backend_optimization_level": 0}


def linearize(f: Network, params: PyTree, *, trainable: Trainable = None) -> Network:
    """Linearise a network: f_lin(theta, x) = f(params, x) + J(x) (theta - params), eq. (1).

    The result equals f if f is affine in its parameters. A call computes one Jacobian-vector
    product. It uses the precision of products that is set where it is called, as f does, so that
    proxy and network agree at params.

    Args:
        f: The network, f(params, x).
        params: The parameters to expand at.
        trainable: Which parameters the expansion is in (`parameters.partition`); None for all.

    Returns:
        The proxy f_lin(theta, x), a pure function with the signature of f. It ignores the fixed
        leaves of theta and uses those of params.

    Raises:
        ValueError: As `parameters.partition`.

    >>> f_lin = il.linearize(lambda p, x: p**2 * x, jnp.array(3.0))
    >>> print(f_lin(jnp.array(4.0), jnp.array([1.0, 10.0])))  # (9 + 6) x
    [ 15. 150.]
    """
    mask = trainable_mask(params, trainable)
    anchor, fixed = partition(params, mask)
    network = bind_fixed(f, fixed)

    def f_lin(theta: PyTree, x: Any) -> Array:
        moved = theta
        with suppress(ValueError):  # the check below tells how theta differs
            moved = jax.tree.map(lambda chosen, part: part if chosen else None, mask, theta)
        check_same_tree("theta", moved, anchor)
        displacement = jax.tree.map(
            lambda t, a: jnp.asarray(t - a, jnp.result_type(a)), moved, anchor
        )
        outputs, tangents = jax.jvp(lambda p: network(p, x), (anchor,), (displacement,))
        return outputs + tangents

    return f_lin


class JacobianProducts(NamedTuple):
    """The outputs of a network and products with its Jacobian J at the same parameters.

    Attributes:
        outputs: f(params, x), of shape (N, ...).
        jvp: Maps v, a pytree like the trained leaves of params (`parameters.partition`), to J v,
            an array shaped as the outputs.
        vjp: Maps u, an array shaped as the outputs, to J^T u, a pytree like the trained leaves.
    """

    outputs: Array
    jvp: Callable[[PyTree], Array]
    vjp: Callable[[Array], PyTree]


@on_any_device
def jacobian_products(
    f: Network, params: PyTree, x: Any, *, trainable: Trainable = None
) -> JacobianProducts:
    """Compute the outputs of a network and functions for the products J v and J^T u.

    Both products use the activations of one forward pass. They are computed in full precision
    (`linearise.precision`) and are not divided by N. f may couple its examples.

    Args:
        f: The network, f(params, x).
        params: The parameters at which J is taken.
        x: Inputs of N examples.
        trainable: Which parameters J is with respect to (`parameters.partition`); None for all.

    Returns:
        The tuple (outputs, jvp, vjp).

    Raises:
        ValueError: As `parameters.partition`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> outputs, jvp, vjp = il.jacobian_products(lambda p, x: x @ p, jnp.zeros(2), x)
    >>> print(jvp(jnp.ones(2)), vjp(jnp.ones(2)))
    [3. 7.] [4. 6.]
    """
    trained, fixed = partition(params, trainable)
    network = bind_fixed(f, fixed)
    outputs, jvp = jax.linearize(lambda p: network(p, x), trained)
    transpose = jax.linear_transpose(jvp, trained)
    # JAX traces the reverse rule of a custom_vjp only when vjp is called.
    vjp = on_any_device(lambda u: transpose(u)[0])
    return JacobianProducts(outputs, on_any_device(jvp), vjp)


@on_any_device
def jacobian(
    f: Network,
    params: PyTree,
    x: Any,
    *,
    independent: bool = True,
    trainable: Trainable = None,
) -> Float[Array, "NO P"]:
    """Compute the dense Jacobian of a network.

    Args:
        f: The network, f(params, x).
        params: The parameters at which J is taken.
        x: Inputs of N examples.
        independent: Whether f treats its examples independently. If so, a row costs a backward
            pass of one example instead of N. Pass False for an f that couples its examples, such as
            batch normalisation in training mode, or that ignores x.
        trainable: Which parameters J is with respect to (`parameters.partition`); None for all.

    Returns:
        J (N O, P). Rows are ordered by example and then by output, columns as `ravel_pytree` orders
        the trained leaves of params.

    Raises:
        ValueError: If independent is True of an f that couples its examples, f does not return one
            array (N, ...) of floating point numbers, or x holds no example; and as
            `parameters.partition`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> params = {"bias": jnp.zeros(()), "weight": jnp.zeros(2)}
    >>> print(il.jacobian(lambda p, x: x @ p["weight"] + p["bias"], params, x))
    [[1. 1. 2.]
     [1. 3. 4.]]
    """
    check_bools(independent=independent)
    trained, fixed = partition(params, trainable)
    network = bind_fixed(f, fixed)
    if independent:
        require_independent(network, trained, x)
        rows = jacobian_rows(network, trained, x)
        return rows.reshape(-1, rows.shape[-1])
    flat, unravel = ravel_pytree(trained)
    outputs = output_shape(network, trained, x)
    differentiate = jax.jacrev if outputs.size <= flat.size else jax.jacfwd
    return differentiate(lambda p: network(unravel(p), x).reshape(-1))(flat)


def jacobian_rows(f: Network, params: PyTree, x: Any) -> Float[Array, "N O P"]:
    """Compute the Jacobian row by row, each by a backward pass of one example.

    f treats its examples independently, and all params are trained.
    """
    flat, unravel = ravel_pytree(params)

    def rows_of(example):
        batch = examples.add_batch_axis(example)
        value, vjp = jax.vjp(lambda p: f(unravel(p), batch).reshape(-1), flat)
        basis = jnp.eye(value.size, dtype=value.dtype)
        return jax.vmap(lambda u: vjp(u)[0])(basis)

    return jax.vmap(rows_of)(x)


def output_shape(f: Network, params: PyTree, x: Any) -> jax.ShapeDtypeStruct:
    """Return shape (N, ...) and dtype of f(params, x), without computing it.

    Raises ValueError if f cannot be called on x, or does not return one array that leads with N and
    holds at least one floating point number for each example.
    """
    count, instead = examples.num_examples(x), instead_of_module(f)
    if not callable(f):
        raise ValueError(f"f must be a function of (params, x), got {type(f).__name__}{instead}")
    with prefix_errors(f"f(params, x) of inputs {describe(x)}", instead):
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


def check_finite_examples(f: Network, params: PyTree, x: Any) -> None:
    """Require that no NaN or inf in the inputs reaches the outputs; the first example is tried.

    f is not called if all inputs are finite. Traced values and mere shapes are not checked. Raises
    ValueError, which names the example, if an output is not finite.
    """
    leaves = jax.tree.leaves((params, x))
    if any(is_traced(leaf) or isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return
    for leaf in jax.tree.leaves(x):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            continue
        finite = np.isfinite(leaf).all(tuple(range(1, np.ndim(leaf))))  # of each example
        if finite.all():
            continue
        bad = np.flatnonzero(~finite).tolist()
        found = f(params, examples.take_slice(x, bad[0], bad[0] + 1))
        if not is_traced(found) and not np.all(np.isfinite(found)):
            raise ValueError(
                f"inputs must be finite, but {len(bad)} of {len(finite)} examples hold NaN or inf: "
                f"the first is number {bad[0]}"
            )


def require_independent(f: Network, params: PyTree, x: Any) -> Program | None:
    """Require that f treats its examples independently, by comparing a batch with single examples.

    Outputs and gradients of up to `COMPARED` examples are compared, at params and at a perturbation
    of them, because a weight of zero may hide a coupling. Only shapes are compared if JAX traces x,
    params or a value that f closes over.

    Returns f traced for a batch of one; None if outputs were not compared. Raises ValueError if f
    couples its examples, and as `output_shape`.
    """
    batch = output_shape(f, params, x)
    single = jax.eval_shape(f, params, examples.batch_shapes(x, 1))
    if single.shape != (1, *batch.shape[1:]):
        raise ValueError(COUPLED)
    number = min(COMPARED, examples.num_examples(x))
    if number == 1 or any(map(is_traced, jax.tree.leaves((x, params)))):
        return None
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(number, *batch.shape[1:])).astype(batch.dtype)

    def perturb(leaf):
        # A relative change of about a tenth keeps the sign of an entry.
        leaf = np.asarray(leaf)
        size = np.where(leaf == 0, 0.5, 0.1 * np.abs(leaf))
        return leaf + (rng.normal(size=leaf.shape) * size).astype(leaf.dtype)

    programs = [trace_program(f, params, examples.batch_shapes(x, size)) for size in (number, 1)]
    if any(is_traced(value) for program in programs for value in program.constants.values()):
        return None
    found, traced = [], inside_trace()
    options = None if traced else UNOPTIMIZED  # JAX takes options outside of a trace alone
    try:
        # Outside of a trace it would only compile the constants one by one.
        with jax.ensure_compile_time_eval() if traced else nullcontext():
            compare = jit_cached(_together_and_alone, *programs, compiler_options=options)
            # Of sorted or padded data the first ones may be equal, which would hide a coupling.
            spread = np.linspace(0, examples.num_examples(x) - 1, number).astype(int)
            on_host = jax.tree.map(lambda a: a if is_typed_key(a) else np.asarray(a), x)
            few = jax.tree.map(lambda leaf: leaf[spread], on_host)
            for at in (params, jax.tree.map(perturb, params)):
                found.append([_difference(*pair) for pair in compare(at, few, weights)])
    except Exception as error:
        if "Tracer" in repr(error):  # f closes over a traced value
            return None
        raise
    # Rounding depends on the size of the batch, and so does the derivative of a unit at its kink.
    types = {t.dtype for t in programs[0].types if jnp.issubdtype(t.dtype, jnp.floating)}
    rounding = min(1e3 * max(float(jnp.finfo(dtype).eps) for dtype in types), 0.1)
    for kind, tolerance in enumerate((rounding, math.sqrt(rounding))):
        differences, scales = zip(*(each[kind] for each in found), strict=True)
        if max(differences) > tolerance * max(scales):
            raise ValueError(COUPLED)
    return programs[1]


def _together_and_alone(together: Program, alone: Program, params, x, weights):
    """Return outputs, and gradients of their weighted sum, each as a pair (together, alone)."""

    def in_batch(params):
        return eval_program(together, jax.tree.leaves((params, x)), {})[0]

    def each(params):
        def of_one(example):
            leaves = jax.tree.leaves((params, examples.add_batch_axis(example)))
            return eval_program(alone, leaves, {})[0][0]

        return jax.lax.map(of_one, x)

    (outputs, pull), (singles, pull_each) = (jax.vjp(g, params) for g in (in_batch, each))
    return (outputs, singles), (pull(weights), pull_each(weights))


def _difference(together: PyTree, alone: PyTree) -> tuple[float, float]:
    """Return the largest difference and the largest entry, over entries finite in the batch.

    An entry that is finite in the batch and NaN alone counts as infinitely different. An f that
    divides by the variance of its batch gives such an entry.
    """
    difference, scale = 0.0, 1e-30
    for pair in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        a, b = (np.asarray(leaf, float)[np.isfinite(pair[0])] for leaf in pair)
        scale = max(scale, np.max(np.abs(a), initial=0))
        difference = max(difference, np.max(np.nan_to_num(np.abs(a - b), nan=np.inf), initial=0))
    return difference, scale
