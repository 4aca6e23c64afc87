"""A network's change since its start, scaled: the dial of lazy training."""

from jaxtyping import PyTree

from iterlin.linearise.linearization import Network
from iterlin.linearise.validation import check_positive


def centred(f: Network, start: PyTree, scale=1.0) -> Network:
    """The network alpha (f(theta) - f(theta_0)), zero at the parameters theta_0 it starts from.

    With step sizes divided by alpha^2 the outputs move as fast for every alpha = scale, and the
    parameters 1/alpha as far: large alpha is lazy training (Chizat, Oyallon & Bach 2019). Its
    tangent kernel is alpha^2 times that of f. For the squared error it is f itself that is
    trained, on the targets f(theta_0) + y / alpha.

    Raises ValueError for a scale that is not positive and finite.

    >>> net, x = il.mlp((2, 16, 1)), jnp.ones((5, 2))
    >>> params = net.init(jax.random.key(0))
    >>> print(il.centred(net.apply, params, 10.0)(params, x).ravel())
    [0. 0. 0. 0. 0.]
    """
    check_positive("scale", scale)
    return lambda params, x: scale * (f(params, x) - f(start, x))
