"""The linearised model on its training examples, with the products with J J^T that training needs.

Gradients lie in the range of J^T, so training moves the parameters by -J^T a for some array a
(N, ...) like the outputs. Every first or second order method then needs one operation:
g -> (J^T g, J J^T g). There are two forms of it. In function space the kernel J J^T is stored, and
g itself represents J^T g, which is not computed. In parameter space J^T g is a pytree of
parameters, computed by Jacobian products.
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
    """The linearised model f(theta_s) + J (theta - theta_s) on N training examples.

    A displacement of the parameters in the range of J^T is represented by its coordinates c, a
    pytree, and its image, the change of the outputs (N, ...).

    Attributes:
        outputs: Outputs at theta_s, (N, ...).
        push: push(g) -> coordinates and image of J^T g.
        image: image(c) -> image of a displacement. An image that was summed over many steps has
            accumulated rounding errors; this one has not.
        inner: inner(c1, image1, c2, image2) -> inner product of two displacements in parameter
            space.
        displacement: displacement(c) -> the displacement, a pytree like the parameters.
        origin: Coordinates of the zero displacement.
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
    """Return the linear model in parameter space, where coordinates are the displacement itself.

    J is never formed. Without a slice_size, one pass over all examples stores their activations for
    all products. With a slice_size, each product computes the activations anew, slice by slice, and
    f must treat its examples independently.
    """
    if slice_size is None or slice_size >= examples.num_examples(x):
        outputs, jvp, vjp = jacobian_products(f, params, x)
    else:
        sliced = in_slices(f, slice_size)
        outputs = sliced(params, x)

        def pushed(direction):
            return jax.jvp(lambda p: sliced(p, x), (params,), (direction,))[1]

        def pulled(cotangent):
            def pull(part, u):
                return jax.vjp(lambda p: f(p, part), params)[1](u)[0]

            return sum_over_slices(pull, slice_size, x, cotangent)

        jvp, vjp = pushed, pulled

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
    *,
    slice_size: int | None = None,
) -> LinearModel:
    """Return the linear model in function space, where an array a (N, ...) represents J^T a.

    image: image(a) -> J J^T a at params, such as `cached_ntk(f, params, x).product`. slice_size: as
    for `from_products`, which pulls a displacement back.
    """
    outputs, push, *_ = from_products(f, params, x, slice_size=slice_size)

    def inner(c1, image1, c2, image2):
        return jnp.vdot(c1, image2)

    origin, pull = jnp.zeros_like(outputs), lambda a: push(a)[0]
    return LinearModel(outputs, lambda g: (g, image(g)), image, inner, pull, origin)
