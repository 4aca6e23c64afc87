from iterlin import losses as losses
from iterlin.algorithm import Algorithm
from iterlin.curvature.gauss_newton import gauss_newton, iterative_linearization
from iterlin.curvature.laplace import laplace
from iterlin.curvature.levenberg_marquardt import LevenbergMarquardt
from iterlin.curvature.products import ggn_product
from iterlin.curvature.truncated_gauss_newton import truncated_gauss_newton
from iterlin.features import alignment
from iterlin.gradient_flow import (
    eigenmodes,
    linearized_gradient_descent,
    linearized_gradient_flow,
    steps_for_tolerance,
)
from iterlin.infinite_width import relu_mlp_ntk
from iterlin.linearization import jacobian, jacobian_products, linearize
from iterlin.mismatch import linearization_error, loss_ratio
from iterlin.networks.adapters import from_equinox, from_linen, from_nnx
from iterlin.networks.mlp import mlp
from iterlin.networks.scaled import centred
from iterlin.ntk import (
    empirical_ntk,
    kept_ntk,
    kernel_alignment,
    kernel_drift,
    ntk_matrix,
    ntk_product,
)
from iterlin.prediction import predict
from iterlin.runtime.slices import in_slices
from iterlin.schedules import every, never, when, when_solved
from iterlin.sharded import sharded_ntk
from iterlin.spectral_filters import damping_filter, descent_filter, flow_filter
from iterlin.timed import for_time
from iterlin.training import train, train_sweep
from iterlin.watching import Watch

__version__: str

__all__ = [
    "Algorithm",
    "LevenbergMarquardt",
    "Watch",
    "alignment",
    "centred",
    "damping_filter",
    "descent_filter",
    "eigenmodes",
    "empirical_ntk",
    "every",
    "flow_filter",
    "for_time",
    "from_equinox",
    "from_linen",
    "from_nnx",
    "gauss_newton",
    "ggn_product",
    "in_slices",
    "iterative_linearization",
    "jacobian",
    "jacobian_products",
    "kept_ntk",
    "kernel_alignment",
    "kernel_drift",
    "laplace",
    "linearization_error",
    "linearize",
    "linearized_gradient_descent",
    "linearized_gradient_flow",
    "loss_ratio",
    "mlp",
    "never",
    "ntk_matrix",
    "ntk_product",
    "predict",
    "relu_mlp_ntk",
    "sharded_ntk",
    "steps_for_tolerance",
    "train",
    "train_sweep",
    "truncated_gauss_newton",
    "when",
    "when_solved",
]
