from types import SimpleNamespace

import jax
import jax.numpy as jnp
import problems
import pytest
from iterlin.runtime import costs


def test_operations_count_products_convolutions_and_loops():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    assert costs.operations(jnp.matmul, a, b) == 2 * 3 * 4 * 5

    def loop(a, b):
        return jax.lax.scan(lambda c, _: (c, a @ b), 0, length=7)[1]

    assert costs.operations(loop, a, b) == 7 * 2 * 3 * 4 * 5

    def branch(a, b):
        return jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: jnp.zeros((3, 5)))

    assert costs.operations(branch, a, b) == 2 * 3 * 4 * 5
    image, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 6))

    def convolve(x, k):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=numbers)

    assert costs.operations(convolve, image, kernel) == 2 * (2 * 6 * 6 * 6) * (3 * 3 * 3)


def test_operations_agree_with_the_compiler_on_a_network():
    f, params, x, _ = problems.network((16, 32, 8), examples=64)
    compiled = jax.jit(f).lower(params, x).compile().cost_analysis()["flops"]
    counted = costs.operations(f, params, x)
    assert 0.7 * compiled < counted <= compiled


def test_intermediate_bytes_count_a_loops_body_once_and_what_it_stacks():
    x = jnp.ones((10, 4), jnp.float32)

    def stacked(x):
        return jax.lax.map(lambda row: 2 * row, x)

    assert costs.intermediate_bytes(stacked, x) == 4 * 4 + 10 * 4 * 4


def test_kept_bytes_are_those_of_the_activations():
    f, params, x, _ = problems.network((3, 64, 2), examples=100)
    few, many = (costs.kept_bytes(f, params, x[:n]) for n in (50, 100))
    assert many - few >= 50 * 64 * 8
    assert many < 2 * few


@pytest.mark.parametrize(
    ("platform", "stats", "expected"),
    [
        ("cpu", {"bytes_limit": 100}, 7),
        ("gpu", {"bytes_limit": 100}, 50),
        ("gpu", {"bytes_limit": 0}, 7),
        ("gpu", {}, 7),
        ("tpu", None, 7),
    ],
)
def test_memory_of_a_device_that_does_not_say_is_that_of_a_cpu(
    monkeypatch, platform, stats, expected
):
    device = SimpleNamespace(platform=platform, memory_stats=lambda: stats)
    other = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 1000})
    monkeypatch.setattr(jax, "devices", lambda: [device, other])  # computed on is the first
    assert costs.device_memory(7, 0.5) == expected
