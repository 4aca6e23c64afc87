"""The generalised Gauss-Newton matrix J^T H J of any loss, known by its products alone.

H is the Hessian of loss(outputs, y) in the outputs: positive semidefinite for a convex loss, and
with it J^T H J (Schraudolph 2002; Martens 2020). It is the Hessian of the loss of the linearised
network. For `losses.squared_error` H is the identity, for `losses.cross_entropy` it is
diag(p) - p p^T for the probabilities p of each example.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iterlin.linearise import examples
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.linearization import Network, jacobian_products
from iterlin.linearise.parameters import Trainable, bind_fixed, partition
from iterlin.linearise.precision import full_precision
from iterlin.linearise.validation import check_positive_integer, check_same_tree, is_traced
from iterlin.training.losses import Loss, as_sum, check_loss, loss_over_slices


@with_auto_axes
@full_precision()
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
    """The map v -> J^T H J v of loss(f(params, x), y), for v like the trained part of params.

    Without `trainable` v is a pytree like params; with it, leaves that are not trained are None in
    v and in the product (`parameters.partition`). Divided by N just as the loss is. J and H are
    never formed: a product is one JVP and one VJP, from one primal pass that is made here.

    With a `slice_size` products go through that many examples at a time, and compute the
    activations anew: those of one slice are all the memory there is need for. f must then treat its
    examples independently, and the loss must be a sum over them (`losses.as_sum`).

    v is taken in the types of params. Raises ValueError for a v of another structure or other
    shapes, a loss that is no function, a slice_size that is not a positive integer, or one given
    with a loss not known to be a sum over examples.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> f, loss = lambda p, x: x @ p, il.losses.squared_error
    >>> product = il.ggn_product(f, jnp.zeros(2), x, jnp.ones(2), loss)
    >>> print(product(jnp.ones(2)))  # x^T x v
    [24. 34.]
    """
    require_function(loss)
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
    check_loss(loss, jax.eval_shape(f, moving, x), y)

    def typed(v):
        check_same_tree("v", v, moving)
        return jax.tree.map(lambda a, b: jnp.asarray(a, jnp.result_type(b)), v, moving)

    if slice_size is None:
        products = jacobian_products(f, moving, x)
        _, hessian = loss_derivatives(loss, products.outputs, y)

        @with_auto_axes
        @full_precision()
        def product(v):
            v = typed(v)
            return products.vjp(hessian(products.jvp(v)))

        return product

    @with_auto_axes
    @full_precision()
    def sliced(v):
        v = typed(v)

        def term(loss, x, y):
            return ggn_product(f, moving, x, y, loss)(v)

        return loss_over_slices(term, loss, slice_size, x, y)

    return sliced


def require_function(loss) -> None:
    """Refuses a loss that cannot be called, such as the name of one."""
    if not callable(loss):
        raise ValueError(f"loss must be a function of (outputs, targets), got {loss!r}")


def loss_derivatives(
    loss: Loss, outputs: Array, y: PyTree
) -> tuple[Array, Callable[[Array], Array]]:
    """The gradient of the loss in the outputs, and the map u -> H u; both shaped as the outputs."""
    return jax.linearize(jax.grad(lambda o: loss(o, y)), outputs)


def loss_blocks(loss: Loss, outputs: Float[Array, "N *out"], y: PyTree) -> Float[Array, "N O O"]:
    """H example by example, with O numbers in the outputs of each; for a sum over examples.

    Raises ValueError, unless traced, for a loss that couples its examples.
    """
    _, hessian = loss_derivatives(loss, outputs, y)
    # Half of the examples alone: the rest then has a zero tangent, and exactly zero products. Of
    # any two examples only one is among them for some binary digit of their places.
    direction = jax.random.normal(jax.random.key(0), outputs.shape, outputs.dtype)
    places = np.arange(len(outputs))
    for digit in range((len(outputs) - 1).bit_length()):
        (rest,) = np.nonzero((places >> digit) % 2)
        across = hessian(direction.at[rest].set(0))[rest]
        if is_traced(across):
            break
        if jnp.any(jnp.abs(across) > 0):
            raise ValueError(f"loss couples its examples, got {loss!r}: it must be a sum over them")

    def column(unit):
        return hessian(jnp.broadcast_to(unit, (len(outputs), unit.size)).reshape(outputs.shape))

    count = math.prod(outputs.shape[1:])
    columns = jax.vmap(column)(jnp.eye(count, dtype=outputs.dtype))
    blocks = jnp.moveaxis(columns.reshape(count, len(outputs), count), 0, 2)
    return blocks
