"""neural-tangents' empirical NTK of the same networks."""

import sys
from types import ModuleType

# Its bridge to TensorFlow is imported with it; nothing here needs either.
sys.modules["neural_tangents.experimental"] = ModuleType("neural_tangents.experimental")

import jax  # noqa: E402
import neural_tangents as nt  # noqa: E402
import numpy as np  # noqa: E402

from bench import worker  # noqa: E402
from bench.peers import plain  # noqa: E402


def kernel(settings, arrays):
    """`implementation`: 1 contracts Jacobians, 2 takes products, 3 uses the structure of layers."""
    params, x = jax.device_put((arrays["params"], arrays["x"]))
    form = settings["form"]
    network = plain.network(settings)
    compute = jax.jit(
        nt.empirical_ntk_fn(
            network,
            trace_axes=(-1,) if form == "trace" else (),
            diagonal_axes=(-1,) if form == "diagonal" else (),
            vmap_axes=0,
            implementation=settings["implementation"],
        )
    )
    # Its trace is a mean over outputs.
    factor = jax.eval_shape(network, params, x).shape[-1] if form == "trace" else 1
    return worker.Prepared(
        run=lambda: compute(x, None, params).block_until_ready(),
        results=lambda found: {"kernel": factor * np.asarray(found)},
    )


if __name__ == "__main__":
    worker.serve(
        {"ntk": kernel},
        packages=("neural-tangents", "jax", "jaxlib", "numpy"),
        first=lambda: jax.device_put(np.ones(2)) + 1,
    )
