"""First-order expansion of a network in its parameters, and products with its Jacobian.

f(params, x) is any pure function from inputs of N examples, an array or a pytree of arrays, to
outputs (N, ...) of any rank; params is any pytree. The Jacobian J = d f / d params, of shape
(N O, P) with O outputs for each example, is never formed unless `jacobian` is called. Leaves of
params that are not floating point, or not `trainable` (`parameters.split`), have no part in it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from iterlin import examples
from iterlin.independence import shown_independent
from iterlin.parameters import Trainable, bound, split, trainable_mask
from iterlin.runtime.precision import full_precision
from iterlin.validation import called, described, is_traced

Network = Callable[[PyTree, Any], Array]

COUPLED = (
    "f couples its examples: its outputs for one of them depend on the others, so rows of the "
    "Jacobian cannot be taken example by example. Give f in its evaluation mode; or "
    "independent=False, where the function that was called has that choice"
)


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

    Raises ValueError as `parameters.split`.

    >>> f_lin = il.linearize(lambda p, x: p**2 * x, jnp.array(3.0))
    >>> print(f_lin(jnp.array(4.0), jnp.array([1.0, 10.0])))  # (9 + 6) x
    [ 15. 150.]
    """
    mask = trainable_mask(params, trainable)
    anchor, fixed = split(params, mask)
    of_moving = bound(f, fixed)

    def f_lin(theta: PyTree, x: Any) -> Array:
        displacement = tree_sub(split(theta, mask)[0], anchor)
        outputs, tangents = jax.jvp(lambda p: of_moving(p, x), (anchor,), (displacement,))
        return outputs + tangents

    return f_lin


class JacobianProducts(NamedTuple):
    """Outputs f(params, x) of shape (N, ...) and the two products with J at that point.

    jvp maps a pytree like the trained part of params (`parameters.split`) to J v, of the shape of
    the outputs; vjp maps such an array to J^T u, a pytree like that part.
    """

    outputs: Array
    jvp: Callable[[PyTree], Array]
    vjp: Callable[[Array], PyTree]


@full_precision()
def jacobian_products(
    f: Network, params: PyTree, x: Any, *, trainable: Trainable = None
) -> JacobianProducts:
    """J v and J^T u at (params, x), both from one primal pass, whose activations they share.

    Nothing is divided by N, and f may couple its examples. Outputs and products are computed in
    full precision (`runtime.precision`). Raises ValueError as `parameters.split`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> outputs, jvp, vjp = il.jacobian_products(lambda p, x: x @ p, jnp.zeros(2), x)
    >>> print(jvp(jnp.ones(2)), vjp(jnp.ones(2)))
    [3. 7.] [4. 6.]
    """
    moving, fixed = split(params, trainable)
    of_moving = bound(f, fixed)
    outputs, jvp = jax.linearize(lambda p: of_moving(p, x), moving)
    transpose = jax.linear_transpose(jvp, moving)
    # The reverse rule of a custom_vjp is traced where J^T u is asked for.
    return JacobianProducts(outputs, jvp, full_precision()(lambda u: transpose(u)[0]))


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
    `parameters.split`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> params = {"bias": jnp.zeros(()), "weight": jnp.zeros(2)}
    >>> print(il.jacobian(lambda p, x: x @ p["weight"] + p["bias"], params, x))
    [[1. 1. 2.]
     [1. 3. 4.]]
    """
    if independent:
        require_independent(f, params, x)
    moving, fixed = split(params, trainable)
    of_moving = bound(f, fixed)
    if independent:
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
        value, vjp = jax.vjp(lambda p: f(unravel(p), examples.single(example)).reshape(-1), flat)
        basis = jnp.eye(value.size, dtype=value.dtype)[outputs]
        return jax.vmap(lambda u: vjp(u)[0])(basis)

    return jax.vmap(rows_of)(x)


def output_shape(f: Network, params: PyTree, x: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of f(params, x); ValueError unless it is one array that leads with N, of at
    least one floating point number for each example."""
    count = examples.count(x)
    with called(f"f(params, x) of inputs {described(x)}"):
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
    """Refuses an f whose output for one example depends on the others; ValueError says so.

    Shapes are always checked; then what f does, and where that does not show it, values, if x,
    params and what f holds are concrete: not where JAX traces these, but where it traces around
    them.
    """
    if known_independent(f, params, x):
        return
    if found := _first_alone_and_together(f, params, x):
        alone, together = found
        scale = np.max(np.abs(together)) + np.max(np.abs(alone))
        tolerance = 1e3 * jnp.finfo(output_shape(f, params, x).dtype).eps * max(scale, 1e-30)
        with np.errstate(invalid="ignore"):  # of two infinities
            agree = np.all(np.abs(alone - together) <= tolerance)
        # One example alone may be NaN (a batch of one has no variance); a NaN network is no proof.
        if not agree and np.all(np.isfinite(together)):
            raise ValueError(COUPLED)


def known_independent(f: Network, params: PyTree, x: Any) -> bool:
    """Whether the operations of f show what `require_independent` asks for (`independence`).

    Nothing is computed, and x may be shapes (`examples.shapes`). ValueError where the outputs'
    shapes show the opposite, and as `output_shape`.
    """
    batch, single = output_shape(f, params, x), jax.eval_shape(f, params, examples.shapes(x, 1))
    if single.shape != (1, *batch.shape[1:]):
        raise ValueError(COUPLED)
    return examples.count(x) == 1 or shown_independent(f, params, x)


def _first_alone_and_together(f: Network, params: PyTree, x: Any):
    """The first example's outputs, in a batch of its own and in one of two, which show a coupling
    as well as all, whose activations may not fit; None where they depend on what JAX traces."""
    if any(is_traced(leaf) for leaf in jax.tree.leaves((x, params))):
        return None
    try:
        with jax.ensure_compile_time_eval():
            found = [f(params, examples.part(x, 0, size))[0] for size in (1, 2)]
    except jax.errors.UnexpectedTracerError:
        return None
    # By NumPy, which has nothing to compile.
    return None if any(map(is_traced, found)) else [np.asarray(each, float) for each in found]
