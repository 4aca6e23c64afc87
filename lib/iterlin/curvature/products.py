"""Products with the generalised Gauss-Newton matrix, the empirical Fisher and the Hessian.

J is the Jacobian of the network's outputs in its parameters, and H the Hessian of loss(outputs, y)
in the outputs. J^T H J is the Hessian of the loss of the linearised network (Schraudolph 2002;
Martens 2020). It is positive semidefinite if the loss is convex in the outputs. H is the identity
for `losses.squared_error`, and diag(p) - p p^T for the class probabilities p of each example for
`losses.cross_entropy`. For these two losses J^T H J is also the Fisher information matrix of the
model whose negative log-likelihood is the loss.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iterlin.linearise import examples
from iterlin.linearise.devices import on_any_device
from iterlin.linearise.linearization import Network, jacobian_products, output_shape
from iterlin.linearise.parameters import Trainable, bind_fixed, partition
from iterlin.linearise.validation import check_positive_integer, check_same_tree
from iterlin.training.losses import Loss, Mean, as_sum, check_loss, loss_over_slices


def ggn_product(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    loss: Loss,
    *,
    trainable: Trainable = None,
    slice_size: int | None = None,
) -> Callable[[PyTree], PyTree]:
    """Return the function v -> J^T H J v, for the generalised Gauss-Newton matrix at params.

    J and H are never formed. A product takes one Jacobian-vector and one vector-Jacobian product,
    which share the activations of one forward pass (Schraudolph 2002; Martens 2020). For the
    squared error and the cross-entropy the matrix is the Fisher information, too.

    Args:
        f: The network, f(params, x), with outputs (N, ...).
        params: The parameters at which the products are taken.
        x: Inputs of N examples.
        y: Targets of N examples, as the loss takes them.
        loss: Function of (outputs, y) that returns one number. The matrix is that of the loss as it
            is: a mean over N T tokens divides it by N T.
        trainable: Which parameters are trained (`parameters.partition`); None for all.
        slice_size: Number of examples in a slice; None for all at once. With slices, memory holds
            the activations of one slice, and each product computes the activations anew. f must
            then treat its examples independently, and the loss must be a sum over the examples or
            the mean of one.

    Returns:
        A function that maps a pytree like params to another. With `trainable`, leaves that are not
        trained are None in both. v is converted to the types of params.

    Raises:
        ValueError: If loss is not a function, if slice_size is not a positive integer, or if
            slice_size is given with a loss that is not known to be a sum over the examples. The
            returned function raises ValueError for a v of another structure or other shapes.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> f, loss = lambda p, x: x @ p, il.losses.squared_error
    >>> product = il.ggn_product(f, jnp.zeros(2), x, jnp.ones(2), loss)
    >>> print(product(jnp.ones(2)))  # x^T x v
    [24. 34.]
    """

    def products_of(f, params, x, y, loss):
        outputs, jvp, vjp = jacobian_products(f, params, x)
        _, hessian = loss_gradient_and_hessian(loss, outputs, y)
        return lambda v: vjp(hessian(jvp(v)))

    return _product(products_of, f, params, x, y, loss, trainable, slice_size)


def empirical_fisher_product(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    loss: Loss,
    *,
    trainable: Trainable = None,
    slice_size: int | None = None,
) -> Callable[[PyTree], PyTree]:
    """Return the function v -> sum_n g_n (g_n . v), for the gradients g_n of the examples' losses.

    The empirical Fisher takes the gradients at the labels y. It is not the Fisher information, for
    which see `ggn_product` (Kunstner, Balles & Hennig 2019). A product costs as much as one of
    `ggn_product`.

    Args:
        f: Network as of `ggn_product`, which treats its examples independently (not checked).
        params, x, y, trainable, slice_size: As of `ggn_product`.
        loss: A loss that sums over the examples, or `losses.mean` of one. For a mean the sum over
            the examples is divided as the loss is, once; g_n is the gradient of the undivided loss.

    Returns:
        A function as that of `ggn_product`.

    Raises:
        ValueError: As `ggn_product`.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> f, loss = lambda p, x: x @ p, il.losses.squared_error
    >>> product = il.empirical_fisher_product(f, jnp.zeros(2), x, jnp.array([1.0, 2.0]), loss)
    >>> print(product(jnp.ones(2)))
    [ 87. 118.]
    """

    def products_of(f, params, x, y, loss):
        outputs, jvp, vjp = jacobian_products(f, params, x)
        total, divisor = loss, 1
        if isinstance(loss, Mean):
            total, divisor = loss.total, loss.divisor(len(outputs), y)
        gradient, _ = loss_gradient_and_hessian(total, outputs, y)

        def product(v):
            along = jnp.sum(gradient * jvp(v), range(1, outputs.ndim), keepdims=True)
            return vjp((gradient * along / divisor).astype(outputs.dtype))

        return product

    return _product(products_of, f, params, x, y, loss, trainable, slice_size)


def hessian_product(
    f: Network,
    params: PyTree,
    x: PyTree,
    y: PyTree,
    loss: Loss,
    *,
    trainable: Trainable = None,
    slice_size: int | None = None,
) -> Callable[[PyTree], PyTree]:
    """Return the function v -> H v, for the Hessian of loss(f(params, x), y) in the parameters.

    The Hessian is never formed (Pearlmutter 1994). It equals the matrix of `ggn_product` plus a
    term with the second derivatives of the network, and may have negative eigenvalues.

    Args:
        f: Network as of `ggn_product`; it may couple its examples unless slice_size is given.
        params, x, y, loss, trainable, slice_size: As of `ggn_product`.

    Returns:
        A function as that of `ggn_product`.

    Raises:
        ValueError: As `ggn_product`.

    >>> f, x, y = lambda p, x: x * p[0] * p[1], jnp.ones(1), jnp.zeros(1)
    >>> product = il.hessian_product(f, jnp.array([1.0, 2.0]), x, y, il.losses.squared_error)
    >>> print(product(jnp.array([1.0, 0.0])))
    [4. 4.]
    """

    def products_of(f, params, x, y, loss):
        return jax.linearize(jax.grad(lambda p: loss(f(p, x), y)), params)[1]

    return _product(products_of, f, params, x, y, loss, trainable, slice_size)


@on_any_device
def _product(products_of, f, params, x, y, loss, trainable, slice_size):
    """Check the arguments of a product and return it, over slices of the examples if asked for.

    products_of(f, params, x, y, loss) returns a function v -> A v, with A a sum over examples.
    """
    moving, fixed = partition(params, trainable)
    f = bind_fixed(f, fixed)
    if slice_size is not None:
        check_positive_integer("slice_size", slice_size)
        if as_sum(loss) is None:
            raise ValueError(
                "slice_size needs a loss that is known to be a sum over examples or the mean of "
                f"one, such as those of iterlin.training.losses, got {loss!r}"
            )
        examples.num_examples((x, y), "inputs and targets")
    check_loss(loss, output_shape(f, moving, x), y)
    whole = products_of(f, moving, x, y, loss) if slice_size is None else None

    @on_any_device
    def product(v):
        check_same_tree("v", v, moving)
        v = jax.tree.map(lambda a, b: jnp.asarray(a, jnp.result_type(b)), v, moving)
        if whole is not None:
            return whole(v)

        def term(loss, x, y):
            return products_of(f, moving, x, y, loss)(v)

        return loss_over_slices(term, loss, slice_size, x, y)

    return product


def loss_gradient_and_hessian(
    loss: Loss, outputs: Array, y: PyTree
) -> tuple[Array, Callable[[Array], Array]]:
    """Return the gradient of the loss in the outputs, and the function u -> H u of its Hessian."""
    return jax.linearize(jax.grad(lambda o: loss(o, y)), outputs)


def largest_coupling(loss: Loss, outputs: Float[Array, "N *out"], y: PyTree) -> Array:
    """Return 0 if the loss is a sum over the examples, otherwise a positive number.

    A direction that is zero for half of the examples must have a Hessian product that is exactly
    zero there. The halves are the binary digits of the examples' indices: any two indices differ in
    a digit, so that every pair of examples is separated at least once.
    """
    indices = np.arange(len(outputs)).reshape(-1, *[1] * (outputs.ndim - 1))
    direction = jax.random.normal(jax.random.key(0), outputs.shape, outputs.dtype)
    _, hessian = loss_gradient_and_hessian(loss, outputs, y)

    def coupling(digit):
        others = (indices >> digit) % 2 == 1
        return jnp.max(jnp.abs(hessian(jnp.where(others, 0, direction))), where=others, initial=0)

    return jnp.max(jax.lax.map(coupling, jnp.arange(len(outputs).bit_length())))


def loss_hessian_blocks(
    loss: Loss, outputs: Float[Array, "N *out"], y: PyTree
) -> Float[Array, "N O O"]:
    """Return the Hessian of a loss in the outputs of each example: the diagonal blocks of H.

    The other blocks are zero, as the loss is a sum over the examples.
    """
    _, hessian = loss_gradient_and_hessian(loss, outputs, y)

    def column(unit):
        return hessian(jnp.broadcast_to(unit, (len(outputs), unit.size)).reshape(outputs.shape))

    count = math.prod(outputs.shape[1:])
    columns = jax.vmap(column)(jnp.eye(count, dtype=outputs.dtype))
    return jnp.moveaxis(columns.reshape(count, len(outputs), count), 0, 2)
