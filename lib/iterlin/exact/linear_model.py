"""The linearised model on its training examples, as what training it needs: products with J J^T.

Training moves the parameters by -J^T a for some a, one number for each output of each example:
(N, ...), like the outputs. So every first or second order method needs one operation, g -> (J^T g,
J J^T g), and it comes in two forms: with the kernel J J^T kept, where J^T g is left unformed and
stands as g itself (function space), and by Jacobian products, where it is a pytree of parameters
(parameter space).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from iterlin.linearise import examples
from iterlin.linearise.krylov import dot
from iterlin.linearise.linearization import Network, jacobian_products
from iterlin.linearise.slices import in_slices, sum_over_slices


class LinearModel(NamedTuple):
    """f(theta_s) + J (theta - theta_s) on N training examples.

    outputs (N, ...) are those at theta_s. A displacement of the parameters in the range of J^T is
    held as coordinates c, a pytree, together with its image, the change of the outputs (N, ...).
    push(g) gives coordinates and image of J^T g; image(c) the image of any displacement anew,
    without the rounding that one summed over many steps gathers. inner(c1, image1, c2, image2) is
    the inner product of two displacements in parameter space. displacement(c) -> pytree like the
    parameters. origin: coordinates of no displacement.
    """

    outputs: Float[Array, "N ..."]
    push: Callable[[Array], tuple[PyTree, Array]]
    image: Callable[[PyTree], Array]
    inner: Callable[[PyTree, Array, PyTree, Array], Array]
    displacement: Callable[[PyTree], PyTree]
    origin: PyTree


def from_products(
    f: Network, params: PyTree, x: PyTree, *, slice_size: int | None = None
) -> LinearModel:
    """In parameter space: coordinates are the displacement itself; J is never formed.

    With a slice_size the products go through the examples that many at a time and compute the
    activations anew in each product; without, they are kept from one pass over all examples.
    f must treat its examples independently if it is sliced.
    """
    if slice_size is None or slice_size >= examples.num_examples(x):
        outputs, jvp, vjp = jacobian_products(f, params, x)
    else:
        sliced = in_slices(f, slice_size)
        outputs = sliced(params, x)

        def jvp(direction):
            return jax.jvp(lambda p: sliced(p, x), (params,), (direction,))[1]

        def vjp(cotangent):
            def pull(part, u):
                return jax.vjp(lambda p: f(p, part), params)[1](u)[0]

            return sum_over_slices(pull, slice_size, x, cotangent)

    def push(g):
        direction = vjp(g)
        return direction, jvp(direction)

    def inner(c1, image1, c2, image2):
        return dot(c1, c2)

    origin = jax.tree.map(jnp.zeros_like, params)
    return LinearModel(outputs, push, jvp, inner, lambda c: c, origin)


def from_kernel(
    f: Network,
    params: PyTree,
    x: PyTree,
    image: Callable[[Array], Array],
) -> LinearModel:
    """In function space: coordinates a (N, ...) stand for J^T a; image(a) is J J^T a at params, as
    `cached_ntk` has it."""
    outputs, _, vjp = jacobian_products(f, params, x)

    def inner(c1, image1, c2, image2):
        return jnp.vdot(c1, image2)

    origin = jnp.zeros_like(outputs)
    return LinearModel(outputs, lambda g: (g, image(g)), image, inner, vjp, origin)
