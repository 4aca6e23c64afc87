import four_devices
import iterlin as il
import jax.numpy as jnp
import problems
import pytest


@pytest.fixture(scope="module")
def printed():
    """What `sharded_kernel.py` prints on four devices, by name."""
    lines = four_devices.run("sharded_kernel.py")
    return {name: tuple(map(float, numbers)) for name, *numbers in lines}


def test_four_devices_give_the_kernel_of_one(printed):
    differences = [largest for name, (largest, _) in printed.items() if "/" in name]
    assert len(differences) == 3
    assert max(differences) < 1e-5


def test_each_device_computes_its_rows_alone(printed):
    assert {rows for name, (_, rows) in printed.items() if "/16/" in name} == {4}
    assert printed["two"] == (2, 8)


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
