"""Breaking the library is noticed: by its tests, and by nbval on the reference notebooks.

Each mutant is a copy of the library with one line changed. A copy without a change passes a test
and a notebook; that the library passes all of them is what the rest of the suite shows.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from iterlin.study.provenance import PACKAGE

TESTS = Path(__file__).parent
NOTEBOOKS = TESTS / "notebooks"
WORKERS = 2


@dataclass(frozen=True)
class Mutant:
    """What is broken where; the tests (file, expression of -k) and the notebook that notice."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, str]
    notebook: str = ""


CLOSED_FORM = "convergence/closed_form"
DAMPING = "convergence/damping"

MUTANTS = (
    Mutant(
        "sign of the displacement",
        "linearization",
        "(tree_sub(theta, params),)",
        "(tree_sub(params, theta),)",
        ("test_linearization.py", "exact_on_a_model_affine"),
        CLOSED_FORM,
    ),
    Mutant(
        "kernel block not transposed",
        "ntk",
        "return kernel.transpose(0, 2, 1, 3).reshape",
        "return kernel.reshape",
        ("test_ntk.py", "product_and_matrix"),
        CLOSED_FORM,
    ),
    Mutant(
        "sign of the residual",
        "gradient_flow",
        "left.T @ (outputs - y).reshape(-1)",
        "left.T @ (y - outputs).reshape(-1)",
        ("test_gradient_flow.py", "infinite_time and square"),
    ),
    Mutant(
        "one step too many",
        "gradient_flow",
        "return float(num_steps), num_steps % 2 == 1",
        "return float(num_steps + 1), num_steps % 2 == 0",
        ("test_gradient_flow.py", "filters_at_their_limits"),
        CLOSED_FORM,
    ),
    Mutant(
        "step size left out",
        "gradient_flow",
        "x = step_size * safe",
        "x = safe",
        ("test_gradient_flow.py", "filters_at_their_limits"),
    ),
    Mutant(
        "no limit at a zero eigenvalue",
        "gradient_flow",
        "return jnp.where(eigenvalues > 0, -jnp.expm1(-safe * time) / safe, at_zero)",
        "return -jnp.expm1(-eigenvalues * time) / eigenvalues",
        ("test_gradient_flow.py", "filters_at_their_limits"),
    ),
    Mutant(
        "rank not cut off",
        "gradient_flow",
        "values = jnp.where(values > threshold, values, 0)",
        "values = jnp.where(values > threshold, values, values)",
        ("test_gradient_flow.py", "infinite_time and deficient"),
    ),
    Mutant(
        "no square root in the certificate",
        "gradient_flow",
        "total > 0, jnp.sqrt(jnp.sum(weights * contraction)",
        "total > 0, (jnp.sum(weights * contraction)",
        ("test_gradient_flow.py", "residual_ratio and square"),
    ),
    Mutant(
        "tolerance of the inner iteration not squared",
        "least_squares",
        "target = beta**2 * _dot(gradient, gradient)",
        "target = beta * _dot(gradient, gradient)",
        ("test_least_squares.py", "certificate_is_kept"),
    ),
    Mutant(
        "damping squared",
        "gradient_flow",
        "total = eigenvalues + damping",
        "total = eigenvalues + damping**2",
        ("test_gradient_flow.py", "filters_at_their_limits"),
        DAMPING,
    ),
    Mutant(
        "period off by one",
        "schedules",
        "return step % period == 0",
        "return (step + 1) % period == 0",
        ("test_schedules.py", "due_at_multiples"),
    ),
    Mutant(
        "expanded at the wrong anchor",
        "algorithm",
        "displacement = None if self.plain else tree_sub(state.params, anchor)",
        "displacement = None if self.plain else tree_sub(state.params, state.anchor)",
        ("test_training.py", "plain_loop and regression"),
    ),
    Mutant(
        "half the penalty",
        "algorithm",
        "g + 2 * self.penalty * d",
        "g + self.penalty * d",
        ("test_algorithm.py", "penalty_is_that_of"),
    ),
    Mutant(
        "read where validation is worst",
        "early_stopping",
        'chosen.argmax("evaluation")',
        'chosen.argmin("evaluation")',
        ("test_early_stopping.py", "validation_chooses"),
    ),
)

# What a copy without a change is put to.
CONTROL = next(mutant for mutant in MUTANTS if mutant.notebook == DAMPING)


def run(library, *arguments):
    """pytest in a process of its own, with that copy of the library first on the path."""
    environment = os.environ | {"PYTHONPATH": str(library), "PYTHONHASHSEED": "0"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-p", "no:xdist", *map(str, arguments)],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
    )


def by_tests(library, mutant):
    name, expression = mutant.tests
    return run(library, TESTS / name, "-k", expression)


def by_nbval(library, mutant):
    return run(library, "--noconftest", "--nbval", NOTEBOOKS / f"{mutant.notebook}.ipynb")


def copy_of_library(folder, mutant=None):
    """A copy of the library, changed as the mutant says."""
    shutil.copytree(PACKAGE, folder / "iterlin", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant:
        path = folder / "iterlin" / f"{mutant.module}.py"
        source = path.read_text()
        assert source.count(mutant.old) == 1, f"{mutant.name}: not found once in {path.name}"
        path.write_text(source.replace(mutant.old, mutant.new))
    return folder


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each copy's tests and notebook came to, by (mutant's name or None, route)."""
    jobs = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        whole = copy_of_library(tmp_path_factory.mktemp("whole"))
        jobs[None, "nbval"] = pool.submit(by_nbval, whole, CONTROL)
        jobs[None, "tests"] = pool.submit(by_tests, whole, CONTROL)
        for mutant in MUTANTS:
            library = copy_of_library(tmp_path_factory.mktemp("mutant"), mutant)
            jobs[mutant.name, "tests"] = pool.submit(by_tests, library, mutant)
            if mutant.notebook:
                jobs[mutant.name, "nbval"] = pool.submit(by_nbval, library, mutant)
        return {key: job.result() for key, job in jobs.items()}


@pytest.mark.parametrize("route", ["tests", "nbval"])
def test_the_whole_library_passes(outcomes, route):
    finished = outcomes[None, route]
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-1000:]
    assert " passed" in finished.stdout


def is_noticed(finished):
    # 1 means that tests ran and failed; others that none was found or that pytest broke down.
    assert finished.returncode == 1, finished.stdout[-5000:] + finished.stderr[-1000:]
    assert "1 failed" in finished.stdout


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_a_broken_library_fails_its_tests(outcomes, name):
    is_noticed(outcomes[name, "tests"])


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS if mutant.notebook])
def test_a_broken_library_fails_nbval(outcomes, name):
    is_noticed(outcomes[name, "nbval"])
