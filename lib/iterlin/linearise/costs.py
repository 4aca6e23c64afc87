"""What a computation costs, counted before it is run: operations and memory."""

import math
from collections.abc import Callable

import jax
from jaxtyping import PyTree

from iterlin.linearise.linearization import Network


def device_memory(on_cpu: int, share: float) -> int:
    """Bytes to plan with on the device that JAX computes on: a share of a GPU's; or `on_cpu`, also
    on a device that does not say what it has."""
    device = jax.devices()[0]
    known = {} if device.platform == "cpu" else device.memory_stats() or {}
    limit = known.get("bytes_limit")
    return int(share * limit) if limit else on_cpu


def count_flops(function: Callable, *arguments) -> int:
    """Operations of the matrix products and convolutions in ``function(*arguments)``.

    Floating point ones; a multiplication and its addition count as 2. A loop of known length counts
    every time round, one of unknown length once, of a branch the dearest. Nothing is computed:
    arguments may be `jax.ShapeDtypeStruct`.
    """
    return _operations(jax.make_jaxpr(function)(*arguments).jaxpr)


def vjp_residual_bytes(f: Network, params: PyTree, x: PyTree) -> int:
    """Bytes of what one pass of f over x leaves behind for products with its Jacobian."""
    kept = jax.eval_shape(lambda p: jax.vjp(lambda q: f(q, x), p)[1], params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def intermediate_bytes(function: Callable, *arguments) -> int:
    """Bytes of every value on the way of ``function(*arguments)``, as if none were reused.

    Those of a loop's body count once, and all that it stacks.
    """
    return _intermediate_bytes(jax.make_jaxpr(function)(*arguments).jaxpr)


def _operations(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[i] for i in contracted)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            outputs = kernel[parameters["dimension_numbers"].rhs_spec[0]]
            total += 2 * equation.outvars[0].aval.size * math.prod(kernel) // outputs
        elif name == "cond":
            total += max(_operations(branch.jaxpr) for branch in parameters["branches"])
        else:
            inner = sum(_operations(part) for part in _inner(parameters))
            total += inner * (parameters["length"] if name == "scan" else 1)
    return total


def _intermediate_bytes(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        inner = list(_inner(equation.params))
        total += sum(_intermediate_bytes(part) for part in inner)
        if not inner or equation.primitive.name == "scan":
            total += sum(
                variable.aval.size * variable.aval.dtype.itemsize
                for variable in equation.outvars
                if hasattr(variable.aval, "size")
            )
    return total


def _inner(parameters):
    for value in parameters.values():
        for part in value if isinstance(value, tuple | list) else [value]:
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part
