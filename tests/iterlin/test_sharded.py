import re

import four_devices
import iterlin as il
import jax.numpy as jnp
import problems
import pytest


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What `sharded_kernel.py` prints on four devices, by name, and the programs it ran there."""
    programs = tmp_path_factory.mktemp("programs")
    lines, texts = four_devices.run("sharded_kernel.py", programs, "jit_kernel_rows")
    return {name: tuple(map(float, numbers)) for name, *numbers in lines}, texts


def test_four_devices_give_the_kernel_of_one(ended):
    printed, _ = ended
    differences = [largest for name, (largest, _) in printed.items() if "/" in name]
    assert len(differences) == 5
    assert max(differences) < 1e-5


def test_each_device_computes_its_rows_alone(ended):
    printed, programs = ended
    assert {rows for name, (_, rows) in printed.items() if "/16/" in name} == {4}
    assert printed["two"] == (2, 8)
    assert any("num_partitions=4" in text for text in programs)
    assert not any(re.search(r"all-(reduce|gather|to-all)|collective-", t) for t in programs)


def test_one_device_is_the_kernel_itself():
    f, params, x, _ = problems.network((3, 6, 4), examples=5)
    assert jnp.array_equal(il.sharded_ntk(f, params, x), il.empirical_ntk(f, params, x, x))


@pytest.mark.parametrize(
    ("x", "settings", "message"),
    [
        (jnp.ones((5, 3)), {"devices": []}, "devices"),
        (jnp.ones((5, 3)), {"trace": True, "diagonal": True}, "trace and diagonal"),
        ({"a": jnp.ones((5, 3)), "b": jnp.ones((2, 3))}, {}, "example"),
    ],
)
def test_bad_input_is_refused(x, settings, message):
    f, params, *_ = problems.network((3, 6, 4))
    with pytest.raises(ValueError, match=message):
        il.sharded_ntk(f, params, x, **settings)
