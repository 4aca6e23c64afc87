"""The kernel of many examples, its rows dealt out to several devices.

Training needs no other call: given data that lie on several devices, `train` works there.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from iterlin.kernels.ntk import empirical_ntk
from iterlin.linearise import examples
from iterlin.linearise.devices import with_auto_axes
from iterlin.linearise.linearization import Network

ROWS = "rows"


@with_auto_axes
def sharded_ntk(
    f: Network,
    params: PyTree,
    x1: PyTree,
    x2: PyTree | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    **settings,
) -> Float[Array, "N1 N2 ..."]:
    """`ntk.empirical_ntk` with the rows of x1 on different devices, and the result's as well.

    Each device has all parameters and all of x2, computes its rows of the kernel from its part of
    x1, and hears nothing of the others: the same numbers to rounding. Of a kernel of x1 with itself
    each pair is computed twice, so that two devices gain nothing, and many half as much as there
    are. devices: all that there are unless told. If N1 is no multiple of their number the rows are
    brought together at the end. Each call compiles its own program. settings: those of
    `empirical_ntk`; its memory_limit is each device's.

    Raises ValueError for no devices, and as `empirical_ntk`.

    >>> net, x = il.mlp((2, 16, 3)), jnp.ones((5, 2))
    >>> il.sharded_ntk(net.apply, net.init(jax.random.key(0)), x, trace=True).shape
    (5, 5)
    """
    devices = jax.devices() if devices is None else list(devices)
    if not devices:
        raise ValueError("devices must name at least one device")
    mesh = Mesh(np.asarray(devices), (ROWS,))
    split, copied = PartitionSpec(ROWS), PartitionSpec()
    count = examples.num_examples(x1, "x1")
    x2 = x1 if x2 is None else x2
    padded = jax.tree.map(partial(_padded, multiple=len(devices)), x1)

    def kernel_rows(params, part, x2):
        return empirical_ntk(f, params, part, x2, **settings)

    rows = jax.shard_map(
        kernel_rows,
        mesh=mesh,
        in_specs=(copied, split, copied),
        out_specs=split,
        check_vma=False,  # a part's program is one device's, and not written for many
    )
    places = [NamedSharding(mesh, place) for place in (copied, split, copied)]
    kernel = jax.jit(rows)(*map(jax.device_put, (params, padded, x2), places))
    return kernel if len(kernel) == count else kernel[:count]


def _padded(leaf, multiple: int) -> Array:
    """The last example as often again as makes a multiple."""
    leaf = jnp.asarray(leaf)
    missing = -len(leaf) % multiple
    return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, 0)]) if missing else leaf
