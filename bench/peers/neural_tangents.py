"""neural-tangents' empirical NTK of the same networks, written with plain JAX."""

import sys
from types import ModuleType

# Its bridge to TensorFlow is imported with it; nothing here needs either.
sys.modules["neural_tangents.experimental"] = ModuleType("neural_tangents.experimental")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import neural_tangents as nt  # noqa: E402
import numpy as np  # noqa: E402

from bench import worker  # noqa: E402
from bench.worker import Prepared  # noqa: E402


def lenet(params, x):
    for name in ("conv1", "conv2"):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(
            x, params[name]["kernel"], (1, 1), "VALID", dimension_numbers=numbers
        )
        x = jax.nn.relu(x + params[name]["bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    for name in ("dense1", "dense2", "dense3"):
        x = jax.nn.relu(x) if name != "dense1" else x
        x = x @ params[name]["kernel"] + params[name]["bias"]
    return x


def mlp(params, x):
    for index in range(len(params)):
        layer = params[str(index)]
        x = jax.nn.relu(x) if index else x
        x = x @ layer["weight"] + layer["bias"]
    return x


def kernel(settings, arrays):
    """`implementation`: 1 contracts Jacobians, 2 takes products, 3 uses the structure of layers."""
    params = {}
    for name, array in arrays.items():
        if name.startswith("params/"):
            _, layer, kind = name.split("/")
            params.setdefault(layer, {})[kind] = jnp.asarray(array)
    x, outputs = jnp.asarray(arrays["x"]), 10 if settings["network"] == "lenet" else None
    outputs = outputs or settings["network"][-1]
    form = settings["form"]
    network = lenet if settings["network"] == "lenet" else mlp
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
    factor = outputs if form == "trace" else 1
    return Prepared(
        run=lambda: compute(x, None, params).block_until_ready(),
        results=lambda found: {"kernel": factor * np.asarray(found)},
    )


if __name__ == "__main__":
    worker.serve(
        {"ntk": kernel},
        packages=("neural-tangents", "jax", "jaxlib", "numpy"),
        first=lambda: jax.device_put(np.ones(2)) + 1,
    )
