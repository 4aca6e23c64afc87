"""Operations and memory of a computation, counted from its jaxpr without running it."""

import math
from collections.abc import Iterator
from typing import Any

import jax


def device_memory(on_cpu: int, share: float) -> int:
    """Return the memory, in bytes, that a computation may plan with on JAX's default device.

    It is a share, between 0 and 1, of the device's memory; `on_cpu` on a CPU, and on a device that
    does not report its memory.
    """
    device = jax.devices()[0]
    stats = {} if device.platform == "cpu" else device.memory_stats() or {}
    limit = stats.get("bytes_limit")
    return int(share * limit) if limit else on_cpu


def count_flops(jaxpr) -> int:
    """Count the floating point operations of matrix products and convolutions in a program.

    A multiplication with its addition counts as 2. The body of a scan counts once for each
    iteration, the body of a while loop once, and a conditional as its most expensive branch.

    jaxpr: of a function, as ``jax.make_jaxpr(function)(*arguments).jaxpr``.
    """
    total = 0
    for equation in jaxpr.eqns:
        name, settings = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = settings["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[i] for i in contracted)
        elif name == "conv_general_dilated":
            filters = equation.invars[1].aval.shape
            features = filters[settings["dimension_numbers"].rhs_spec[0]]
            total += 2 * equation.outvars[0].aval.size * math.prod(filters) // features
        elif name == "cond":
            total += max(count_flops(branch.jaxpr) for branch in settings["branches"])
        else:
            inner = sum(count_flops(jaxpr) for jaxpr in _inner_jaxprs(settings))
            total += inner * (settings["length"] if name == "scan" else 1)
    return total


def intermediate_bytes(jaxpr) -> int:
    """Count the bytes of all intermediate values of a program: an upper bound on its memory.

    No buffer is counted as reused. Values inside the body of a loop count once, and the arrays that
    a scan stacks in full. jaxpr: as for `count_flops`.
    """
    total = 0
    for equation in jaxpr.eqns:
        inner = list(_inner_jaxprs(equation.params))
        total += sum(map(intermediate_bytes, inner))
        if not inner or equation.primitive.name == "scan":
            total += sum(
                variable.aval.size * variable.aval.dtype.itemsize
                for variable in equation.outvars
                if hasattr(variable.aval, "size")
            )
    return total


def _inner_jaxprs(settings: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among the settings of an equation, such as the body of a loop."""
    for part in jax.tree.leaves(settings):
        part = getattr(part, "jaxpr", part)
        if hasattr(part, "eqns"):
            yield part
