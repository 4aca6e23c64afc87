"""The empirical kernel with its rows sharded over several devices."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.ntk import empirical_ntk
from iterlin.linearise import examples
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.linearization import Network, check_finite_examples, require_independent
from iterlin.linearise.parameters import bind_fixed, partition
from iterlin.linearise.validation import inside_trace


@with_auto_axes
def sharded_ntk(
    f: Network,
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    *,
    devices: Sequence[Any] | None = None,
    **settings,
) -> Float[Array, "N1 N2 ..."]:
    """Compute `empirical_ntk` with the examples of x1 sharded over several devices.

    Each device holds all parameters and all of x2 and computes its rows of the kernel without
    communication. The symmetry of a kernel of x1 with itself is not used, so D devices are at most
    D / 2 times as fast as one. Each call compiles a program.

    Args:
        f: As of `empirical_ntk`.
        params: As of `empirical_ntk`.
        x1: Inputs of N1 examples, sharded by this function.
        x2: Inputs of N2 examples; None means x1.
        devices: The `jax.Device` to use; None takes all.
        **settings: Other arguments of `empirical_ntk`. memory_limit holds for each device.

    Returns:
        The kernel of `empirical_ntk`, equal to rounding, with rows on different devices. If D does
        not divide N1 the rows are gathered.

    Raises:
        ValueError: If devices is empty, and as `empirical_ntk`.

    >>> net, x = il.mlp((2, 16, 3)), jnp.ones((5, 2))
    >>> il.sharded_ntk(net.apply, net.init(jax.random.key(0)), x, trace=True).shape
    (5, 5)
    """
    devices = jax.devices() if devices is None else list(devices)
    if not devices:
        raise ValueError("devices must name at least one device")
    trained, fixed = partition(params, settings.get("trainable"))
    for x in [x1] if x2 is None else [x1, x2]:  # what the traced kernel below cannot check
        require_independent(bind_fixed(f, fixed), trained, x)
        check_finite_examples(bind_fixed(f, fixed), trained, x)
    mesh = Mesh(np.asarray(devices), ("rows",))
    sharded, replicated = PartitionSpec("rows"), PartitionSpec()
    count = examples.num_examples(x1, "x1")
    x2 = x1 if x2 is None else x2
    padded = jax.tree.map(partial(_pad, multiple=len(devices)), x1)
    rows = jax.shard_map(
        lambda *given: empirical_ntk(f, *given, **settings),
        mesh=mesh,
        in_specs=(replicated, sharded, replicated),
        out_specs=sharded,
        check_vma=False,  # the program of one part is written for one device
    )
    shardings = [NamedSharding(mesh, spec) for spec in (replicated, sharded, replicated)]
    with nullcontext() if inside_trace() else jax.set_mesh(mesh):
        kernel = jax.jit(rows)(*map(jax.device_put, (params, padded, x2), shardings))
        return kernel if len(kernel) == count else kernel[:count]


def _pad(leaf, multiple: int) -> Array:
    """Repeat the last example until the number of examples is a multiple."""
    leaf = jnp.asarray(leaf)
    missing = -len(leaf) % multiple
    return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, 0)]) if missing else leaf
