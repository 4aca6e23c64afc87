"""Iterative linearisation: train a network's first-order expansion, renew it every K steps."""

import warnings
from importlib import metadata

from iterlin.algorithm3 import train, train_sweep
from iterlin.curvature.gauss_newton import gauss_newton
from iterlin.curvature.laplace import laplace
from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from iterlin.curvature.outer_loop import Status
from iterlin.curvature.products import empirical_fisher_product, ggn_product, hessian_product
from iterlin.curvature.truncated_gauss_newton import truncated_gauss_newton
from iterlin.kernels.gradient_flow import (
    eigenmodes,
    linearized_gradient_descent,
    linearized_gradient_flow,
    steps_for_tolerance,
)
from iterlin.kernels.infinite_width import relu_mlp_ntk
from iterlin.kernels.ntk import (
    cached_ntk,
    empirical_ntk,
    kernel_alignment,
    kernel_drift,
    ntk_matrix,
    ntk_product,
)
from iterlin.kernels.prediction import predict
from iterlin.kernels.sharded import sharded_ntk
from iterlin.linearise.hutchinson import hutchinson
from iterlin.linearise.linearization import jacobian, jacobian_products, linearize
from iterlin.linearise.slices import in_slices
from iterlin.linearise.spectral_filters import damping_filter, descent_filter, flow_filter
from iterlin.networks.adapters import from_equinox, from_linen, from_nnx
from iterlin.networks.mlp import mlp
from iterlin.networks.scaled import centred
from iterlin.training import losses, schedules
from iterlin.training.algorithm import Algorithm
from iterlin.training.mismatch import linearization_error, loss_ratio
from iterlin.training.schedules import every, never, when, when_solved
from iterlin.training.state import TrainState
from iterlin.training.step import Step
from iterlin.training.timed import for_time
from iterlin.training.watching import Watch
from iterlin.version import __version__ as __version__

__all__ = [
    "Algorithm",
    "LevenbergMarquardt",
    "Status",
    "Step",
    "TrainState",
    "Watch",
    "cached_ntk",
    "centred",
    "damping_filter",
    "descent_filter",
    "eigenmodes",
    "empirical_fisher_product",
    "empirical_ntk",
    "every",
    "flow_filter",
    "for_time",
    "from_equinox",
    "from_linen",
    "from_nnx",
    "gauss_newton",
    "ggn_product",
    "hessian_product",
    "hutchinson",
    "in_slices",
    "jacobian",
    "jacobian_products",
    "kernel_alignment",
    "kernel_drift",
    "laplace",
    "linearization_error",
    "linearize",
    "linearized_gradient_descent",
    "linearized_gradient_flow",
    "loss_ratio",
    "losses",
    "mlp",
    "never",
    "ntk_matrix",
    "ntk_product",
    "predict",
    "relu_mlp_ntk",
    "schedules",
    "sharded_ntk",
    "steps_for_tolerance",
    "train",
    "train_sweep",
    "truncated_gauss_newton",
    "when",
    "when_solved",
]

if metadata.version("jaxlib") == "0.10.2":
    warnings.warn(
        "jaxlib 0.10.2 computes wrong float32 Jacobians on CPUs: install another, such as "
        "jax==0.10.1",
        RuntimeWarning,
        stacklevel=2,
    )


def __dir__():
    return __all__
