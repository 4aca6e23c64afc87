from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from iterlin.linearise import costs

A, B, C = jnp.ones((3, 4)), jnp.ones((4, 5)), jnp.ones((3, 5))
IMAGES, FILTERS = jnp.ones((2, 3, 8, 8)), jnp.ones((6, 3, 3, 3))
LIMIT = {"bytes_limit": 100}


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (jnp.matmul, (A, B), 2 * 3 * 4 * 5),
        (lambda a, b: jax.lax.map(lambda _: a @ b, jnp.arange(7)), (A, B), 7 * 2 * 3 * 4 * 5),
        (lambda a, b: jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: C), (A, B), 2 * 3 * 4 * 5),
        (lambda x, k: jax.lax.conv(x, k, (1, 1), "VALID"), (IMAGES, FILTERS), 2 * 432 * 27),
    ],
    ids=["product", "loop", "branch", "convolution"],
)
def test_operations_count_products_convolutions_and_loops(function, arguments, expected):
    assert costs.count_flops(jax.make_jaxpr(function)(*arguments).jaxpr) == expected


@pytest.mark.parametrize(
    ("platform", "stats", "expected"),
    [("cpu", LIMIT, 7), ("gpu", LIMIT, 50), ("gpu", {}, 7), ("tpu", None, 7)],
)
def test_a_device_that_does_not_say_has_a_cpu_s_memory(monkeypatch, platform, stats, expected):
    device = SimpleNamespace(platform=platform, memory_stats=lambda: stats)
    other = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 1000})
    monkeypatch.setattr(jax, "devices", lambda: [device, other])  # computed on is the first
    assert costs.device_memory(7, 0.5) == expected
