"""Iterative linearisation: train a network's first-order expansion, renew it every K steps.

What is exported is loaded on first use, and so are modules (`losses`): much of what comes with the
library, such as the records, the ledger and the book's machinery, needs no JAX, whose import takes
longer. `__init__.pyi` says the same to editors and type checkers.
"""

import warnings
from importlib import import_module, metadata
from importlib.util import find_spec

__version__ = "0.2.0"

_EXPORTS = {
    "Algorithm": "algorithm",
    "LevenbergMarquardt": "curvature.levenberg_marquardt",
    "Watch": "watching",
    "alignment": "features",
    "centred": "networks.scaled",
    "damping_filter": "spectral_filters",
    "descent_filter": "spectral_filters",
    "eigenmodes": "gradient_flow",
    "empirical_ntk": "ntk",
    "every": "schedules",
    "flow_filter": "spectral_filters",
    "for_time": "timed",
    "from_equinox": "networks.adapters",
    "from_linen": "networks.adapters",
    "from_nnx": "networks.adapters",
    "gauss_newton": "curvature.gauss_newton",
    "ggn_product": "curvature.products",
    "in_slices": "runtime.slices",
    "iterative_linearization": "curvature.gauss_newton",
    "jacobian": "linearization",
    "jacobian_products": "linearization",
    "kept_ntk": "ntk",
    "kernel_alignment": "ntk",
    "kernel_drift": "ntk",
    "laplace": "curvature.laplace",
    "linearization_error": "mismatch",
    "linearize": "linearization",
    "linearized_gradient_descent": "gradient_flow",
    "linearized_gradient_flow": "gradient_flow",
    "loss_ratio": "mismatch",
    "mlp": "networks.mlp",
    "never": "schedules",
    "ntk_matrix": "ntk",
    "ntk_product": "ntk",
    "predict": "prediction",
    "relu_mlp_ntk": "infinite_width",
    "sharded_ntk": "sharded",
    "steps_for_tolerance": "gradient_flow",
    "train": "training",
    "train_sweep": "training",
    "truncated_gauss_newton": "curvature.truncated_gauss_newton",
    "when": "schedules",
    "when_solved": "schedules",
}

__all__ = sorted(_EXPORTS)

if metadata.version("jaxlib") == "0.10.2":
    warnings.warn(
        "jaxlib 0.10.2 computes wrong float32 Jacobians on CPUs: install another, such as "
        "jax==0.10.1",
        RuntimeWarning,
        stacklevel=2,
    )


def __getattr__(name: str):
    if name in _EXPORTS:
        value = getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    elif name.isidentifier() and find_spec(f"{__name__}.{name}"):
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
