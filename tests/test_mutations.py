"""Breaking the library is noticed: by its tests, and by nbval where it executes pages.

Each mutant is a copy of the library with one line changed. What it is put to passes on a copy
without a change, or with one that changes nothing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from iterlin.study.provenance import PACKAGE

TESTS = Path(__file__).parent
ROOT = TESTS.parent
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]


@dataclass(frozen=True)
class Mutant:
    """What is broken where, and the tests (file, expression of -k) that notice."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, str] = ()


CLOSED_FORM = "convergence/closed_form"

MUTANTS = (
    Mutant(
        "sign of the displacement",
        "linearization",
        "tree_sub(split(theta, mask)[0], anchor)",
        "tree_sub(anchor, split(theta, mask)[0])",
        ("test_linearization.py", "exact_on_a_model_affine"),
    ),
    Mutant(
        "kernel block not transposed",
        "ntk",
        "return kernel.transpose(0, 2, 1, 3).reshape",
        "return kernel.reshape",
        ("test_ntk.py", "product_and_matrix"),
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
        "spectral_filters",
        "return float(num_steps), num_steps % 2 == 1",
        "return float(num_steps + 1), num_steps % 2 == 0",
        ("test_gradient_flow.py", "filters_at_their_limits"),
    ),
    Mutant(
        "step size left out",
        "spectral_filters",
        "x = step_size * safe",
        "x = safe",
        ("test_gradient_flow.py", "filters_at_their_limits"),
    ),
    Mutant(
        "no limit at a zero eigenvalue",
        "spectral_filters",
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
        "curvature/truncated_gauss_newton",
        "tolerance=beta,",
        "tolerance=beta**0.5,",
        ("test_gauss_newton.py", "certificate_is_kept"),
    ),
    Mutant(
        "Hessian of the loss left out",
        "curvature/products",
        "products.vjp(hessian(products.jvp(v)))",
        "products.vjp(products.jvp(v))",
        ("test_curvature.py", "hessian_of_the_linearised and cross_entropy"),
    ),
    Mutant(
        "steps uphill accepted",
        "iteration",
        "accepted &= new_loss <= loss",
        "accepted &= new_loss <= 10 * loss",
        ("test_truncated_gauss_newton.py", "rejected_step"),
    ),
    Mutant(
        "noise left out of the posterior",
        "curvature/laplace",
        "(self.eigenvalues + noise * delta)",
        "(self.eigenvalues + delta)",
        ("test_laplace.py", "gaussian_process and primal"),
    ),
    Mutant(
        "damping squared",
        "spectral_filters",
        "total = eigenvalues + damping",
        "total = eigenvalues + damping**2",
        ("test_gradient_flow.py", "filters_at_their_limits"),
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
        "displacement = None if plain else tree_sub(state.params, anchor)",
        "displacement = None if plain else tree_sub(state.params, state.anchor)",
        ("test_training.py", "plain_loop and regression"),
    ),
    Mutant(
        "half the penalty",
        "algorithm",
        "total = self.penalty * optax",
        "total = self.penalty / 2 * optax",
        ("test_algorithm.py", "penalty_is_that_of"),
    ),
    Mutant(
        "read where validation is worst",
        "study/early_stopping",
        'chosen.argmax("evaluation")',
        'chosen.argmin("evaluation")',
        ("test_early_stopping.py", "validation_chooses"),
    ),
)

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@dataclass(frozen=True)
class OnPage:
    """A mutant that the execution of a page notices, and an edit there that changes nothing."""

    page: str
    mutant: Mutant
    neutral: str = ""


ON_PAGES = (
    OnPage(
        "convergence/damping",
        BY_NAME["damping squared"],
        "total = damping + eigenvalues",
    ),
    OnPage(
        CLOSED_FORM,
        BY_NAME["kernel block not transposed"],
        "return jnp.transpose(kernel, (0, 2, 1, 3)).reshape",
    ),
)
# One page of each family of experiments: in closed form, by Gauss-Newton steps, of images, by
# integration over any period.
OF_EXPERIMENTS = (
    OnPage(
        "algorithm/regimes",
        BY_NAME["sign of the residual"],
        "left.T @ -(y - outputs).reshape(-1)",
    ),
    OnPage(
        "experiments/damping_quintic",
        Mutant(
            "damping left out",
            "curvature/gauss_newton",
            "cho_factor(gram + damping * jnp.eye(",
            "cho_factor(gram + 0.01 * jnp.eye(",
        ),
        "cho_factor(gram + 1.0 * damping * jnp.eye(",
    ),
    OnPage(
        "experiments/few_updates",
        Mutant(
            "a linearisation at almost every step",
            "study/groups",
            "return (step - begun) % (period * 2**halvings) == 0",
            "return (step - begun) % (period * 2**halvings) != 0",
        ),
        "return 0 == (step - begun) % (period * 2**halvings)",
    ),
    OnPage(
        "beyond/exact_integration",
        Mutant(
            "another point than the displacement's",
            "exact/flow",
            "jax.grad(self.loss)(self.model.outputs + image, self.targets)",
            "jax.grad(self.loss)(self.model.outputs + 1.01 * image, self.targets)",
        ),
        "jax.grad(self.loss)(image + self.model.outputs, self.targets)",
    ),
)


def environment(**variables):
    """That of a process of its own, which knows nothing of the test run that starts it."""
    variables = {**os.environ, "PYTHONHASHSEED": "0", **variables}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
        variables.pop(name, None)
    return variables


def copy_of_library(folder, module=None, old="", new=""):
    """A copy of the library in the folder, with that text of a module replaced."""
    shutil.copytree(PACKAGE, folder / "iterlin", ignore=shutil.ignore_patterns("__pycache__"))
    if module:
        path = folder / "iterlin" / f"{module}.py"
        source = path.read_text()
        assert source.count(old) == 1, f"not found once in {path.name}: {old}"
        path.write_text(source.replace(old, new))
    return folder


@dataclass
class Finished:
    status: int
    output: str


def is_noticed(finished):
    # 1 means that tests ran and failed; others that none was found or that pytest broke down.
    assert finished.status == 1, finished.output[-5000:]
    assert "1 failed" in finished.output


def passes(finished):
    assert finished.status == 0, finished.output[-5000:]
    assert " passed" in finished.output


# By tests: all mutants in forks of one process.


@pytest.fixture(scope="module")
def run_tests(tmp_path_factory):
    """(copy of the library, mutant) -> how the mutant's tests end on that copy."""
    log = tmp_path_factory.mktemp("forks") / "log"
    server = subprocess.Popen(
        [sys.executable, str(TESTS / "forks.py")],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(library, mutant):
        name, expression = mutant.tests
        arguments = [*OPTIONS, str(TESTS / name), "-k", expression]
        request = {"library": str(library), "arguments": arguments, "log": str(log)}
        print(json.dumps(request), file=server.stdin, flush=True)
        return Finished(int(server.stdout.readline()), log.read_text())

    with server:
        yield run
        server.stdin.close()


def some(parameters, number):
    """The first ones; with --nightly, in which tests/mutants.py tries other faults too, all."""
    later = (pytest.param(one, marks=pytest.mark.nightly) for one in parameters[number:])
    return [*parameters[:number], *later]


@pytest.mark.parametrize("mutant", some(MUTANTS, 6), ids=BY_NAME)
def test_a_broken_library_fails_its_tests(run_tests, tmp_path, mutant):
    library = copy_of_library(tmp_path, mutant.module, mutant.old, mutant.new)
    is_noticed(run_tests(library, mutant))


def test_the_whole_library_passes_them(run_tests, tmp_path):
    """Without it the tests above could fail for any reason. The last is of another module."""
    library = copy_of_library(tmp_path)
    for mutant in (MUTANTS[0], MUTANTS[-1]):
        passes(run_tests(library, mutant))


def test_edits_that_change_nothing_pass(run_tests, tmp_path):
    edited = [on_page for on_page in (*ON_PAGES, *OF_EXPERIMENTS) if on_page.mutant.tests]
    for number, on_page in enumerate(edited):
        mutant = on_page.mutant
        folder = tmp_path / str(number)
        passes(
            run_tests(copy_of_library(folder, mutant.module, mutant.old, on_page.neutral), mutant)
        )


# By pages: nbval executes the reference in a checkout of its own, so that no record is touched.

# An edit makes records older than the library, and a page says so before it has run anything.
FRESH = """

def is_stale(dataset):
    return False
"""


def execute(folder, on_page, new, cells=None):
    """How nbval's run of the page's first cells ends, where the library has the new text."""
    mutant = on_page.mutant
    library = copy_of_library(folder / "lib", mutant.module, mutant.old, new)
    with (library / "iterlin" / "study" / "records.py").open("a") as records:
        records.write(FRESH)
    for name in ("_toc.yml", "book", "data"):
        (folder / name).symlink_to(ROOT / name)
    path = folder / "tests" / "notebooks" / f"{on_page.page}.ipynb"
    path.parent.mkdir(parents=True)
    (path.parent / "conftest.py").symlink_to(TESTS / "pictures.py")
    reference = nbformat.read(TESTS / "notebooks" / f"{on_page.page}.ipynb", as_version=4)
    reference.cells = reference.cells[:cells]
    nbformat.write(reference, path)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, "--nbval", "--rootdir", folder, path],
        cwd=folder,
        env=environment(PYTHONPATH=str(library)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Finished(finished.returncode, finished.stdout)


def failed_cell(finished):
    is_noticed(finished)
    return int(re.search(r"::Cell (\d+)", finished.output)[1])


@pytest.mark.parametrize(
    "on_page", some((*ON_PAGES, *OF_EXPERIMENTS), 1), ids=lambda on_page: on_page.page
)
def test_a_broken_library_fails_the_page_and_an_edit_that_changes_nothing_does_not(
    tmp_path, on_page
):
    """The page passes to beyond the cell at which it failed."""
    failed = failed_cell(execute(tmp_path / "broken", on_page, on_page.mutant.new))
    passes(execute(tmp_path / "neutral", on_page, on_page.neutral, failed + 1))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["sign of the displacement", "one step too many"])
def test_a_broken_library_fails_the_page_on_the_closed_form(tmp_path, name):
    failed_cell(execute(tmp_path, OnPage(CLOSED_FORM, BY_NAME[name]), BY_NAME[name].new))
