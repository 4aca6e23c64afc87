"""The library itself as a contestant."""

import jax
import numpy as np

from bench import worker
from bench.peers.ours import exact, kernels, quintic, steps, sweeps

KINDS = {
    "step": steps.step,
    "matmul": steps.matmul,
    "kept": exact.kept,
    "periods": sweeps.periods,
    "sweep": sweeps.sweep,
    "ntk": kernels.kernel,
    "exact": exact.linearization,
    "flow": exact.flow_of_time,
    "gauss_newton": quintic.gauss_newton,
}
INPUTS = {"step": steps.inputs, "ntk": kernels.inputs, "gauss_newton": quintic.inputs}

if __name__ == "__main__":
    worker.serve(
        KINDS,
        inputs=INPUTS,
        packages=("jax", "jaxlib", "numpy"),
        first=lambda: jax.device_put(np.ones(2)) + 1,
    )
