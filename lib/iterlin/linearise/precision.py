"""The precision of products: that of their operands, also where a device would round these first.

GPUs and TPUs multiply matrices of float32 after rounding them to 11 bits (TF32) or 8 (bfloat16)
unless they are told not to. A kernel J J^T that has lost its definiteness to that cannot be solved
with, and proxy and network would differ at the anchor by more than rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


def matmul_precision() -> str:
    """What products of float32 are computed in: "highest" (float32), or what the configuration
    of JAX names (`jax_default_matmul_precision`, such as "tensorfloat32")."""
    return jax.config.jax_default_matmul_precision or "highest"


@contextmanager
def full_precision() -> Iterator[None]:
    """In here, or in a function that it decorates, products are computed in `matmul_precision`.

    A CPU does so anyway: nothing is changed there, not even the text of a program.
    """
    if jax.default_backend() == "cpu":
        yield
    else:
        with jax.default_matmul_precision(matmul_precision()):
            yield
