"""Iterative linearisation: train a network's first-order expansion, renew it every K steps.

The public names below are loaded on first use, so that a notebook depends only on the modules
whose names it mentions: the book uses this to decide which pages a change of the library touches.
"""

from importlib import import_module

__version__ = "0.1.0"

_EXPORTS = {
    "alignment": "features",
    "descent_filter": "gradient_flow",
    "damping_filter": "gradient_flow",
    "eigenmodes": "gradient_flow",
    "empirical_ntk": "ntk",
    "every": "schedules",
    "flow_filter": "gradient_flow",
    "gauss_newton": "least_squares",
    "integrate": "exact",
    "iterative_linearization": "least_squares",
    "jacobian": "linearization",
    "jacobian_products": "linearization",
    "kernel_alignment": "ntk",
    "kernel_drift": "ntk",
    "linearize": "linearization",
    "linearized_gradient_descent": "gradient_flow",
    "linearized_gradient_flow": "gradient_flow",
    "never": "schedules",
    "ntk_matrix": "ntk",
    "ntk_product": "ntk",
    "relu_mlp_ntk": "infinite_width",
    "steps_for_tolerance": "gradient_flow",
    "train": "training",
    "train_sweep": "training",
    "truncated_gauss_newton": "least_squares",
    "when_solved": "schedules",
}

_MODULES = (
    "algorithm",
    "checkpoints",
    "chunks",
    "claims",
    "claims_table",
    "convex_flow",
    "convex_minimum",
    "convnets",
    "convolution",
    "costs",
    "data",
    "decomposition",
    "diagnostics",
    "downloads",
    "early_stopping",
    "engine_choice",
    "engines",
    "exact",
    "exact_progress",
    "exact_runs",
    "features",
    "flat_program",
    "gradient_flow",
    "image_files",
    "image_problems",
    "images",
    "infinite_width",
    "intervals",
    "layers",
    "least_squares",
    "linear_model",
    "linearization",
    "losses",
    "models",
    "normalization",
    "ntk",
    "ntk_blocks",
    "ntk_factors",
    "plotting",
    "probes",
    "programs",
    "provenance",
    "records",
    "runs",
    "schedule_search",
    "schedules",
    "slices",
    "stopping",
    "tables",
    "task",
    "training",
    "validation",
)

__all__ = sorted([*_EXPORTS, *_MODULES])


def __getattr__(name):
    if name in _EXPORTS:
        value = getattr(import_module(f"iterlin.{_EXPORTS[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"iterlin.{name}")
    else:
        raise AttributeError(f"module 'iterlin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return __all__
