"""Data on a mesh as `jax.make_mesh` gives it, with Explicit axes, give what one device does."""

import four_devices
import numpy as np


def test_every_call_takes_data_on_explicit_axes():
    lines = four_devices.run("explicit_axes.py")
    assert len(lines) == 14 + 2
    largest = [float(difference) for *_, difference in lines]
    np.testing.assert_array_less(largest, 1e-9)
