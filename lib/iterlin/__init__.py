"""Iterative linearisation: train a network's first-order expansion, renew it every K steps."""

from iterlin.algorithm import Algorithm
from iterlin.exact.integrate import integrate
from iterlin.features import alignment
from iterlin.gauss_newton import gauss_newton, iterative_linearization, truncated_gauss_newton
from iterlin.gradient_flow import (
    damping_filter,
    descent_filter,
    eigenmodes,
    flow_filter,
    linearized_gradient_descent,
    linearized_gradient_flow,
    steps_for_tolerance,
)
from iterlin.infinite_width import relu_mlp_ntk
from iterlin.linearization import jacobian, jacobian_products, linearize
from iterlin.networks.mlp import mlp
from iterlin.ntk import empirical_ntk, kernel_alignment, kernel_drift, ntk_matrix, ntk_product
from iterlin.schedules import every, never, when_solved
from iterlin.training import Watch, train, train_sweep

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Watch",
    "alignment",
    "damping_filter",
    "descent_filter",
    "eigenmodes",
    "empirical_ntk",
    "every",
    "flow_filter",
    "gauss_newton",
    "integrate",
    "iterative_linearization",
    "jacobian",
    "jacobian_products",
    "kernel_alignment",
    "kernel_drift",
    "linearize",
    "linearized_gradient_descent",
    "linearized_gradient_flow",
    "mlp",
    "never",
    "ntk_matrix",
    "ntk_product",
    "relu_mlp_ntk",
    "steps_for_tolerance",
    "train",
    "train_sweep",
    "truncated_gauss_newton",
    "when_solved",
]
