"""Fifteen planted faults in the physics, each noticed by a quick test.

A fault is one line of a copy of the library, changed. The test that notices it runs in a process of
its own, forked from one that has imported everything but the library. This tests the tests, and so
it is left to the night.
"""

import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import jaxtyping
import pytest

pytestmark = pytest.mark.nightly
TESTS = Path(__file__).resolve().parents[1]
LIB = TESTS.parent / "lib"
PRELOADED = ["beartype", "hypothesis", "jaxtyping", "matplotlib.pyplot", "optax", "xarray"]

# name: (module, line, changed line, file with the test, -k expression for it)
FAULTS = {
    "step with the sign of the displacement flipped": (
        "iterlin/training/algorithm",
        "if at_anchor else tree_sub(theta, anchor)",
        "if at_anchor else tree_sub(anchor, theta)",
        "iterlin/test_training.py",
        "plain_loop and regression",
    ),
    "step at the previous anchor": (
        "iterlin/training/step",
        "anchor = _where(linearizing, state.params, state.anchor)",
        "anchor = state.anchor",
        "iterlin/test_training.py",
        "plain_loop and regression",
    ),
    "K off by one": (
        "iterlin/training/schedules",
        "return step % self.period == 0",
        "return (step + 1) % self.period == 0",
        "iterlin/test_schedules.py",
        "due_at_multiples",
    ),
    "half the penalty": (
        "iterlin/training/algorithm",
        "total = self.penalty * optax",
        "total = self.penalty / 2 * optax",
        "iterlin/test_algorithm.py",
        "penalty_is_that_of",
    ),
    "linearised outputs with the sign of J v flipped": (
        "iterlin/linearise/linearization",
        "tree_sub(partition(theta, mask)[0], anchor)",
        "tree_sub(anchor, partition(theta, mask)[0])",
        "iterlin/test_linearization.py",
        "exact_on_a_model_affine",
    ),
    "kernel not transposed": (
        "iterlin/kernels/ntk",
        "return kernel.transpose(0, 2, 1, 3).reshape",
        "return kernel.reshape",
        "iterlin/test_ntk.py",
        "matrix_is_the_full_kernel",
    ),
    "kernel without the first layer": (
        "iterlin/kernels/factors",
        "zip(first.dense, second.dense, strict=True)",
        "zip(first.dense[1:], second.dense[1:], strict=True)",
        "iterlin/test_ntk.py",
        "kernel_equals_jacrev_products",
    ),
    "closed form with the sign of the residual flipped": (
        "iterlin/kernels/gradient_flow",
        "left.T @ (outputs - y).reshape(-1)",
        "left.T @ (y - outputs).reshape(-1)",
        "iterlin/test_gradient_flow.py",
        "matrix_exponential and square",
    ),
    "gradient descent with one step too many": (
        "iterlin/linearise/spectral_filters",
        "return float(num_steps), num_steps % 2 == 1",
        "return float(num_steps + 1), num_steps % 2 == 0",
        "iterlin/test_gradient_flow.py",
        "filters_at_their_limits",
    ),
    "damping squared": (
        "iterlin/linearise/spectral_filters",
        "total = eigenvalues + damping",
        "total = eigenvalues + damping**2",
        "iterlin/test_gradient_flow.py",
        "filters_at_their_limits",
    ),
    "flow followed at another point": (
        "iterlin/exact/flow",
        "jax.grad(self.loss)(self.model.outputs + image, self.targets)",
        "jax.grad(self.loss)(self.model.outputs + 1.01 * image, self.targets)",
        "iterlin/test_flow.py",
        "closed_form_for_the_squared_loss",
    ),
    "Gauss-Newton without damping": (
        "iterlin/curvature/gauss_newton",
        "cho_factor(gram + damping * jnp.eye(",
        "cho_factor(gram + 0.01 * jnp.eye(",
        "iterlin/test_gauss_newton.py",
        "one_step_is_penalised_least_squares and cholesky",
    ),
    "Hessian of the cross-entropy left out": (
        "iterlin/curvature/products",
        "vjp(hessian(jvp(v)))",
        "vjp(jvp(v))",
        "iterlin/test_curvature.py",
        "hessian_of_the_linearised and cross_entropy",
    ),
    "posterior without the noise": (
        "iterlin/curvature/laplace",
        "(self.eigenvalues + self.noise_variance * self.prior_precision)",
        "(self.eigenvalues + self.prior_precision)",
        "iterlin/test_laplace.py",
        "gaussian_process and primal",
    ),
    "probe on the first layer only": (
        "iterlin_study/runs/probes",
        "{name: layer.reshape(-1) for name, layer in found.items()}",
        '{name: found["conv1"].reshape(-1) for name in found}',
        "study/test_probes.py",
        "flat_activations",
    ),
}
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(PRELOADED)


def run_test(library, file, expression, log):
    """In a process of its own: exit with pytest's status, or 99 if it ran another library."""
    with open(log, "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.path.insert(0, str(library))
    jaxtyping.install_import_hook = lambda *_: None  # checked types would take most of the time
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", expression]
    known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported already
    status = pytest.main([*options, *known, str(TESTS / file)])
    found = sys.modules["iterlin"].__file__
    sys.exit(int(status) if found.startswith(str(library)) else 99)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A copy of the library, which a test changes and restores."""
    root = tmp_path_factory.mktemp("library")
    for name in ("iterlin", "iterlin_study"):
        shutil.copytree(LIB / name, root / name)
    return root


@pytest.fixture
def outcome(library, tmp_path, monkeypatch):
    """(file, expression) -> pytest's exit status on the copy of the library, and its output."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(file, expression):
        log = tmp_path / "log"
        process = context.Process(target=run_test, args=(library, file, expression, log))
        process.start()
        process.join()
        return process.exitcode, log.read_text()

    return run


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_noticed(outcome, library, name):
    module, old, new, file, expression = FAULTS[name]
    path = library / f"{module}.py"
    source = path.read_text("utf8")
    assert source.count(old) == 1, f"{path.name} does not have this once: {old}"
    path.write_text(source.replace(old, new), "utf8")
    status, output = outcome(file, expression)
    path.write_text(source, "utf8")
    assert (status, "1 failed" in output) == (1, True), output[-5000:]


def test_without_a_fault_the_test_passes(outcome):
    """Otherwise the test above could fail for any reason."""
    *_, file, expression = FAULTS["kernel not transposed"]
    status, output = outcome(file, expression)
    assert status == 0, output[-5000:]
