"""Scaling of a network's outputs, which sets how lazily it trains."""

from jaxtyping import Array, PyTree

from iterlin.linearise.linearization import Network
from iterlin.linearise.validation import as_python, check_positive


def centred(f: Network, start: PyTree, scale: float | Array = 1.0) -> Network:
    """Return the network scale (f(params, x) - f(start, x)), whose outputs are zero at `start`.

    A large scale alpha makes training lazy: with step sizes divided by alpha^2 the outputs move as
    fast as without scaling, but the parameters move 1/alpha as far. The tangent kernel is alpha^2
    times that of f. With the squared error, training the scaled network on targets y trains f on
    the targets f(start, x) + y / alpha.

    Source: Chizat, Oyallon & Bach (2019), On lazy training in differentiable programming.

    Args:
        f: The network, f(params, x).
        start: Parameters at which the outputs are zero.
        scale: The positive number alpha.

    Returns:
        The scaled network, a function of (params, x).

    Raises:
        ValueError: If scale is not positive and finite.

    >>> net, x = il.mlp((2, 16, 1)), jnp.ones((5, 2))
    >>> params = net.init(jax.random.key(0))
    >>> print(il.centred(net.apply, params, 10.0)(params, x).ravel())
    [0. 0. 0. 0. 0.]
    """
    check_positive("scale", scale, scalar=True)
    scale = as_python(scale)  # so that the outputs keep their type
    return lambda params, x: scale * (f(params, x) - f(start, x))
