"""Fifteen planted faults in the physics, each noticed by a quick test.

A fault is one line of a copy of the library, changed. The test that notices it runs in a process of
its own. This tests the tests, and so it is left to the night.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
TESTS = Path(__file__).resolve().parents[1]
LIB = TESTS.parent / "lib"

# name: (module, line, changed line, the test)
FAULTS = {
    "step with the sign of the displacement flipped": (
        "iterlin/training/algorithm",
        "if at_anchor else optax.tree.sub(theta, anchor)",
        "if at_anchor else optax.tree.sub(anchor, theta)",
        "iterlin/test_training.py -k plain_loop and regression",
    ),
    "step at the previous anchor": (
        "iterlin/training/step",
        "anchor = optax.tree.where(linearizing, state.params, state.anchor)",
        "anchor = state.anchor",
        "iterlin/test_training.py -k plain_loop and regression",
    ),
    "K off by one": (
        "iterlin/training/schedules",
        "return step % as_argument(self.period",
        "return (step + 1) % as_argument(self.period",
        "iterlin/test_schedules.py -k due_at_multiples",
    ),
    "half the penalty": (
        "iterlin/training/algorithm",
        "total = as_argument(self.penalty) * optax",
        "total = as_argument(self.penalty) / 2 * optax",
        "iterlin/test_algorithm.py -k penalty_is_that_of",
    ),
    "linearised outputs with the sign of J v flipped": (
        "iterlin/linearise/linearization",
        "jnp.asarray(t - a, jnp.result_type(a))",
        "jnp.asarray(a - t, jnp.result_type(a))",
        "iterlin/test_linearization.py -k exact_on_a_model_affine",
    ),
    "kernel not transposed": (
        "iterlin/kernels/ntk",
        "return kernel.transpose(0, 2, 1, 3).reshape",
        "return kernel.reshape",
        "iterlin/test_ntk.py -k kernel_product_and_matrix",
    ),
    "kernel without the first layer": (
        "iterlin/kernels/factors",
        "zip(first.dense, second.dense, strict=True)",
        "zip(first.dense[1:], second.dense[1:], strict=True)",
        "iterlin/test_ntk.py -k kernel_equals_products",
    ),
    "closed form with the sign of the residual flipped": (
        "iterlin/kernels/gradient_flow",
        "left.T @ (outputs - y).reshape(-1)",
        "left.T @ (y - outputs).reshape(-1)",
        "iterlin/test_gradient_flow.py -k matrix_exponential and square",
    ),
    "gradient descent with one step too many": (
        "iterlin/linearise/spectral_filters",
        "return float(num_steps), num_steps % 2 == 1",
        "return float(num_steps + 1), num_steps % 2 == 0",
        "iterlin/test_gradient_flow.py -k filters_at_their_limits",
    ),
    "damping squared": (
        "iterlin/linearise/spectral_filters",
        "total = eigenvalues + (float(damping) if",
        "total = eigenvalues + damping * (float(damping) if",
        "iterlin/test_gradient_flow.py -k filters_at_their_limits",
    ),
    "flow followed at another point": (
        "iterlin/exact/flow",
        "jax.grad(self.loss)(self.model.outputs + image, self.targets)",
        "jax.grad(self.loss)(self.model.outputs + 1.01 * image, self.targets)",
        "iterlin/test_flow.py -k closed_form_for_the_squared_loss",
    ),
    "Gauss-Newton without damping": (
        "iterlin/curvature/gauss_newton",
        "cho_factor(gram + damping * jnp.eye(",
        "cho_factor(gram + 0.01 * jnp.eye(",
        "iterlin/test_gauss_newton.py -k one_step_is_penalised_least_squares and cholesky",
    ),
    "Hessian of the cross-entropy left out": (
        "iterlin/curvature/products",
        "vjp(hessian(jvp(v)))",
        "vjp(jvp(v))",
        "iterlin/test_curvature.py -k hessian_of_the_linearised and cross_entropy",
    ),
    "posterior without the noise": (
        "iterlin/curvature/laplace",
        "(self.eigenvalues + self.noise_variance * self.prior_precision)",
        "(self.eigenvalues + self.prior_precision)",
        "iterlin/test_laplace.py -k gaussian_process and primal",
    ),
    "probe on the first layer only": (
        "iterlin_study/runs/probes",
        "{name: layer.reshape(-1) for name, layer in found.items()}",
        '{name: found["conv1"].reshape(-1) for name in found}',
        "study/test_probes.py -k flat_activations",
    ),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A copy of the library, which a test changes and restores."""
    root = tmp_path_factory.mktemp("library")
    for name in ("iterlin", "iterlin_study"):
        shutil.copytree(LIB / name, root / name)
    return root


def outcome(library, test):
    """pytest's exit status for a test on the copy of the library, and its output."""
    variables = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    # Checking types at every call would take most of the time.
    variables |= {"PYTHONPATH": str(library), "JAXTYPING_DISABLE": "1"}
    file, _, expression = test.partition(" -k ")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-k", expression, str(TESTS / file)]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_noticed(library, name):
    module, old, new, test = FAULTS[name]
    path = library / f"{module}.py"
    source = path.read_text("utf8")
    assert source.count(old) == 1, f"{path.name} does not have this once: {old}"
    path.write_text(source.replace(old, new), "utf8")
    status, output = outcome(library, test)
    path.write_text(source, "utf8")
    assert (status, "1 failed" in output) == (1, True), output[-5000:]


def test_without_a_fault_the_test_passes(library):
    """Otherwise the test above could fail for any reason."""
    *_, test = FAULTS["kernel not transposed"]
    status, output = outcome(library, test)
    assert status == 0, output[-5000:]
