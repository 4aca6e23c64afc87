"""Power iterations and drift against dense linear algebra."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iterlin.training import losses
from iterlin_study.runs.diagnostics import kernel_diagnostics
from iterlin_study.runs.problems import half_squared
from problems import dense, flat, network

LOSSES = {"entropy": losses.mean(losses.cross_entropy), "squared": half_squared}


@pytest.fixture(scope="module")
def case():
    f, params, x, _ = network((4, 7, 3), examples=6)
    return f, params, network((4, 7, 3), seed=1)[1], (x, jnp.arange(6) % 3)


@pytest.mark.parametrize("loss", LOSSES)
def test_eigenvalues_are_those_of_the_dense_matrices(case, loss, monkeypatch):
    monkeypatch.setattr("iterlin_study.runs.diagnostics.ITERATIONS", 300)
    f, params, anchor, (x, y) = case
    compiled = jax.jit(partial(kernel_diagnostics, f, loss=LOSSES[loss]))
    seen = compiled(params, anchor, (x, y))
    jacobian = dense(f, anchor, x)
    kernel = np.linalg.eigvalsh(jacobian @ jacobian.T).max() / len(x)
    assert float(seen["kernel_eigenvalue"]) == pytest.approx(kernel, rel=1e-6)
    proxy = f(anchor, x).ravel() + jacobian @ (flat(params) - flat(anchor))
    hessian = jax.jit(jax.hessian(lambda o: LOSSES[loss](o.reshape(6, 3), y)))(jnp.asarray(proxy))
    curvature = np.linalg.eigvalsh(jacobian.T @ np.asarray(hessian) @ jacobian).max()
    assert float(seen["curvature"]) == pytest.approx(curvature, rel=1e-6)


def test_drift_is_that_of_the_projected_kernel_and_zero_at_the_anchor(case):
    f, params, anchor, (x, y) = case
    compiled = jax.jit(partial(kernel_diagnostics, f, loss=LOSSES["entropy"]))
    seen, still = (compiled(p, anchor, (x, y)) for p in (params, anchor))
    signs = np.asarray(jax.random.rademacher(jax.random.key(1), (3,), float))

    def kernel(p):
        rows = np.einsum("o,nop->np", signs, dense(f, p, x).reshape(6, 3, -1))
        return rows @ rows.T

    drift = np.linalg.norm(kernel(params) - kernel(anchor)) / np.linalg.norm(kernel(anchor))
    assert float(seen["kernel_drift"]) == pytest.approx(drift, rel=1e-9)
    distance = np.linalg.norm(flat(params) - flat(anchor))
    assert float(seen["parameter_distance"]) == pytest.approx(distance, rel=1e-12)
    assert still["kernel_drift"] == still["parameter_distance"] == 0
