"""Precision of matrix products on devices that round float32 operands before multiplying.

By default GPUs round to 11 bits (TF32) and TPUs to 8 (bfloat16). A kernel J J^T computed so may not
be positive semidefinite, and the proxy would differ from the network at the anchor.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp


def matmul_precision() -> str:
    """Return the precision in which float32 matrix products are computed.

    "highest" (float32), unless `jax_default_matmul_precision` in the configuration of JAX names
    another, such as "tensorfloat32".
    """
    return jax.config.values["jax_default_matmul_precision"] or "highest"


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute products in `matmul_precision`, as a context manager or a decorator.

    On a CPU, which does not round operands, nothing changes: programs are traced to the same text.
    """
    if jax.default_backend() == "cpu":
        yield
    else:
        with jax.default_matmul_precision(matmul_precision()):
            yield


def widened(leaf):
    """Return an array of half precision in float32, anything else as it is.

    In half precision a long sum stalls (bfloat16 from 256 ones on) or overflows (float16).
    """
    dtype = getattr(leaf, "dtype", None)
    half = dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return leaf.astype(jnp.float32) if half else leaf
