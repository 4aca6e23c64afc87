"""What the page for those who come from neural-tangents says to write instead gives its numbers."""

import json
import re

import iterlin as il
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from from_neural_tangents import rows

ROWS = rows.read()
STORED = json.loads(rows.NUMBERS.read_text("utf8"))


@pytest.fixture(scope="module")
def names():
    found = rows.problem()
    f, params, x, x_test = (found[name] for name in ("f", "params", "x", "x_test"))
    kernels = {
        "k_dd": il.empirical_ntk(f, params, x),
        "k_td": il.empirical_ntk(f, params, x_test, x),
        "mean_dd": il.empirical_ntk(f, params, x, trace=True) / found["O"],
        "mean_td": il.empirical_ntk(f, params, x_test, x, trace=True) / found["O"],
        "ntk_dd": il.relu_mlp_ntk(x, depth=2, bias=False),
        "ntk_td": il.relu_mlp_ntk(x_test, x, depth=2, bias=False),
    }
    given = {name: jnp.asarray(value) for name, value in STORED["given"].items()}
    # Too little for all examples at once.
    others = {"il": il, "jax": jax, "limit": 500}
    return found | kernels | given | others


def test_every_row_has_its_numbers_of_the_pinned_versions():
    assert list(STORED["rows"]) == list(ROWS)
    lock = (rows.ROOT / "bench" / "neural_tangents.lock").read_text("utf8")
    assert dict(re.findall(r"^([\w-]+)==(\S+)", lock, re.M)).items() >= STORED["versions"].items()


@pytest.mark.parametrize("old", ROWS)
def test_a_row_gives_the_numbers_of_what_it_replaces(old, names):
    found, wanted = rows.run(ROWS[old], names), np.asarray(STORED["rows"][old])
    assert found.dtype == jnp.float64
    assert found.shape == wanted.shape
    # The arc cosine near 1, on the diagonal of a ReLU kernel, is right to sqrt(eps) alone.
    tolerance = 1e-8 if "ntk_dd" in ROWS[old] else 1e-10
    np.testing.assert_allclose(found, wanted, tolerance, tolerance * np.max(np.abs(wanted)))
